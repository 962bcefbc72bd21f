"""One node per store: a lock on its name and a lock on its file, and a watch that the one still leads to the other."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
from pathlib import Path

import structlog

from mainspring.engines.sqlite import failures
from mainspring.errors import StoreBusyError, StoreError
from mainspring.private_files import open_own, refusal_reason

_BYTE = 0x4D535052 << 24
"""The byte of the file that is locked: far behind the largest file that SQLite makes, and none of the 512 bytes at 2**30 that it
locks itself. So the locks never meet, also where a file system keeps all of them in one list."""
_PROCESS = 32
"""So many bytes of the lock file name the process; a line about the file follows."""
_LOG_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")

log = structlog.get_logger("mainspring.store")


class FileLock:
    """Keeps other nodes away from a store while this one has it, and knows whether its file is still in its place.

    An exclusive ``flock`` on ``<store>.lock`` comes first: the lock file names the process that has the store. A lock on the file
    itself follows, for a file can have several names (hard links), and a lock file can be deleted. SQLite's own locks do not keep
    a second node out: they last for a transaction. Descriptors are closed on exec, so that executors do not inherit the locks,
    and taking them proves that the node before is gone.

    Release it after SQLite's connection is closed: closing any descriptor of a file ends the locks that SQLite has on it.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._log = Path(f"{store}-wal")
        self._path = Path(f"{store}.lock")
        self._name = self._file = -1
        self._identity = (0, 0)

    def take(self) -> None:
        """Take both locks; a file that does not exist is made.

        Raises StoreBusyError where another node has one of them, StoreFullError, and StoreError where the write-ahead log that
        lies here belongs to another file: SQLite would delete that log, or write it over this file.
        """
        try:
            self._take_name()
            self._check_log()
            self._take_file()
        except BaseException:
            self.release()
            raise
        with contextlib.suppress(OSError):
            # It is only there for messages; on a full disk there is no room for it.
            os.pwrite(self._name, b"%-31d\n" % os.getpid(), 0)

    def _take_name(self) -> None:
        try:
            self._name = open_own(self._path)
        except OSError as error:
            raise StoreError(
                f"cannot open the lock {self._path}: {refusal_reason(error)}; the store's directory must exist and be writable"
            ) from error
        try:
            fcntl.flock(self._name, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._name, _PROCESS, 0).decode("ascii", "replace").strip() or "unknown"
            raise StoreBusyError(
                f"{self._store} is in use by another node (process {owner}); "
                "stop that one, or give this one a store of its own with --store"
            ) from None

    def _take_file(self) -> None:
        try:
            self._file = open_own(self._store)
        except OSError as error:
            raise failures.cannot_open(self._store, error) from error
        try:
            _lock_byte(self._file)
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                raise StoreBusyError(
                    f"{self._store} is in use by another node, under another name or with a lock file that was deleted; "
                    "stop that one, or give this one a store of its own with --store"
                ) from None
            log.warning(
                "the file system has no locks of this kind: the lock file alone keeps other nodes away", why=str(error)
            )
        found = os.fstat(self._file)
        self._identity = (found.st_dev, found.st_ino)
        if found.st_nlink > 1:
            log.warning(
                "the store's file has several names: use one only, for its log goes by that name",
                path=str(self._store),
                names=found.st_nlink,
            )

    def _check_log(self) -> None:
        try:
            number = self._log.stat().st_ino
            with self._log.open("rb") as file:
                used = file.read(4) in _LOG_MAGIC
        except OSError:
            return  # there is none, or SQLite says what is wrong with it
        if not used:
            return
        try:
            found = self._store.stat()
        except FileNotFoundError:
            found = None
        if found is None or not found.st_size:
            raise failures.file_gone(self._store)
        former = os.pread(self._name, 100, _PROCESS).split()
        if len(former) == 2 and former[1] == b"%d" % number and former[0] != b"%d" % found.st_ino:
            raise failures.file_replaced(self._store, self._path)

    def remember(self) -> None:
        """Note which file and which log belong together, for the start after a crash: once SQLite has opened both."""
        with contextlib.suppress(OSError):
            os.pwrite(self._name, b"%-20d %-20d\n" % (self._identity[1], self._log.stat().st_ino), _PROCESS)

    def check(self) -> None:
        """Raise StoreUnavailableError where the file is not in its place: one look at the directory."""
        try:
            found = self._store.stat()
            if (found.st_dev, found.st_ino) == self._identity:
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise failures.cannot_look(self._store, error) from error
        raise failures.file_moved(self._store, deleted=not os.fstat(self._file).st_nlink, descriptor=self._file)

    def release(self) -> None:
        """Let the locks go; the lock file stays, since removing it would race with the next node."""
        for descriptor in (self._file, self._name):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._name = -1


def _lock_byte(descriptor: int) -> None:
    """Lock a byte of an open file for this descriptor alone. Raises OSError.

    Not ``flock``: on network file systems that is a lock on the whole file, and SQLite could not lock its bytes any more.
    """
    if sys.platform == "linux":
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, _BYTE, 1, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
