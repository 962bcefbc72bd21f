"""One node per file: a lock beside the store that ends with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from mainspring.errors import StoreBusyError, StoreError


class FileLock:
    """An exclusive ``flock`` on ``<store>.lock``.

    SQLite's own locks do not keep a second node out: they last for a transaction. The descriptor is closed on exec, so that
    executors do not inherit the lock, and taking it proves that the node before is gone.
    """

    def __init__(self, store: Path) -> None:
        self._path = Path(f"{store}.lock")
        self._descriptor: int | None = None

    def take(self) -> None:
        """Take the lock; raises StoreBusyError where another process has it."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise StoreError(
                f"cannot open the lock {self._path}: {error.strerror}; the store's directory must exist and be writable"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreBusyError(
                f"{self._path.with_suffix('')} is in use by another node (process {owner}); "
                "stop that one, or give this one a store of its own with --store"
            ) from None
        self._descriptor = descriptor
        with contextlib.suppress(OSError):
            # The number is only there for the message above; on a full disk there is no room for it.
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Let the lock go; the file stays, since removing it would race with the next one."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
