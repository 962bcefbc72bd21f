"""One node per store: a lock on its path and a lock on its file, and a check that the path still leads to the file."""

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
"""The locked byte of the file: far above the largest file that SQLite writes, and none of the 512 bytes at 2**30 that SQLite
locks. So the locks never meet, even if a file system keeps all of them in one list."""
_PROCESS_BYTES = 32
"""The first bytes of the lock file name the process; a line about the store's file follows."""
_LOG_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")

log = structlog.get_logger("mainspring.store")


class FileLock:
    """Keeps other nodes away from a store, and checks that its file is still in its place.

    The first lock is an exclusive ``flock`` on ``<store>.lock``: the lock file names the process that has the store. The second
    is a lock on the file itself, since a file can have several names (hard links), and a lock file can be deleted. SQLite's own
    locks do not keep a second node out: they last for a transaction. Descriptors are closed on exec, so that executors do not
    inherit the locks, and a node that gets them has proof that the last node is gone.

    Release it after SQLite's connection is closed: closing any descriptor of a file ends SQLite's locks on it.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._log = Path(f"{store}-wal")
        self._path = Path(f"{store}.lock")
        self._name = self._file = -1
        self._identity = (0, 0)

    def acquire(self) -> None:
        """Acquire both locks; create the file if it does not exist.

        Raises StoreBusyError if another node has one of them, StoreFullError, and StoreError if the present write-ahead log
        belongs to another file: SQLite would delete that log, or write it over this file.
        """
        try:
            self._lock_path()
            self._check_log()
            self._lock_file()
        except BaseException:
            self.release()
            raise
        with contextlib.suppress(OSError):
            # The number is only for messages; a full disk may not have space for it.
            os.pwrite(self._name, b"%-31d\n" % os.getpid(), 0)

    def _lock_path(self) -> None:
        try:
            self._name = open_own(self._path)
        except OSError as error:
            raise StoreError(
                f"cannot open the lock {self._path}: {refusal_reason(error)}; the store's directory must exist and be writable"
            ) from error
        try:
            fcntl.flock(self._name, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._name, _PROCESS_BYTES, 0).decode("ascii", "replace").strip() or "unknown"
            raise StoreBusyError(
                f"{self._store} is in use by another node (process {owner}); "
                "stop that one, or give this one a store of its own with --store"
            ) from None

    def _lock_file(self) -> None:
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
                "the file system has no locks of this kind: only the lock file keeps other nodes away", why=str(error)
            )
        found = os.fstat(self._file)
        self._identity = (found.st_dev, found.st_ino)
        if found.st_nlink > 1:
            log.warning(
                "the store's file has several names: always use the same one, since its log has that name",
                path=str(self._store),
                names=found.st_nlink,
            )

    def _check_log(self) -> None:
        try:
            number = self._log.stat().st_ino
            with self._log.open("rb") as file:
                used = file.read(4) in _LOG_MAGIC
        except OSError:
            return  # there is no log, or SQLite will report what is wrong with it
        if not used:
            return
        try:
            found = self._store.stat()
        except FileNotFoundError:
            found = None
        if found is None or not found.st_size:
            raise failures.file_gone(self._store)
        former = os.pread(self._name, 100, _PROCESS_BYTES).split()
        if len(former) == 2 and former[1] == b"%d" % number and former[0] != b"%d" % found.st_ino:
            raise failures.file_replaced(self._store, self._path)

    def record_pair(self) -> None:
        """Record that the file and the log belong together, for a start after a crash; call it once SQLite has opened both."""
        with contextlib.suppress(OSError):
            os.pwrite(self._name, b"%-20d %-20d\n" % (self._identity[1], self._log.stat().st_ino), _PROCESS_BYTES)

    def check(self) -> None:
        """Raise StoreUnavailableError if the path no longer leads to the file: one ``stat``."""
        try:
            found = self._store.stat()
            if (found.st_dev, found.st_ino) == self._identity:
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise failures.cannot_check(self._store, error) from error
        raise failures.file_moved(self._store, deleted=not os.fstat(self._file).st_nlink, descriptor=self._file)

    def release(self) -> None:
        """Release the locks; the lock file stays, since removing it would race with the next node."""
        for descriptor in (self._file, self._name):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._name = -1


def _lock_byte(descriptor: int) -> None:
    """Lock a byte of an open file for this descriptor only. Raises OSError.

    Not ``flock``: on network file systems that is a lock on the whole file, and SQLite could not lock its bytes any more.
    """
    if sys.platform == "linux":
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, _BYTE, 1, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
