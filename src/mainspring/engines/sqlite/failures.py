"""Translates SQLite's errors into the store's errors, with advice."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import apsw

from mainspring.errors import (
    StoreBrokenError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreFullError,
    StoreUnavailableError,
)
from mainspring.private_data import refusal_reason

if TYPE_CHECKING:
    from pathlib import Path

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})


def explain(error: apsw.Error, path: Path, system_error: int = 0) -> StoreError:
    """Translate an error of SQLite's into one for the store at ``path``; ``system_error`` is its ``errno``."""
    if isinstance(error, apsw.FullError):
        return _full(path)
    if isinstance(error, (apsw.IOError, apsw.CantOpenError)) and system_error in _NO_SPACE:
        return _full(path)
    if isinstance(error, apsw.IOError):
        return disk_failed(path, str(error))
    if isinstance(error, apsw.NotADBError):
        return not_a_database(path)
    if isinstance(error, apsw.CorruptError):
        return StoreCorruptError(
            # SQLite reports the same error if the disk cannot be read.
            f"{path} is damaged ({error}); check the system's log for failures of its disk, restore a backup, "
            "or save the readable jobs as docs/how-to/back-up.md describes"
        )
    if isinstance(error, apsw.CantOpenError) and system_error in _NO_FILES:
        return _too_many_files(path)
    if isinstance(error, (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError)):
        return _no_permission(path, str(error))
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return StoreBusyError(f"another program has locked {path} ({error}); close it there, and try again")
    return StoreError(f"{path}: {error}")


def cannot_open(path: Path, error: OSError) -> StoreError:
    """Return the error for a file that the system does not open or create."""
    if error.errno in _NO_SPACE:
        return full_at_start(path)
    if error.errno in _NO_FILES:
        return _too_many_files(path)
    return _no_permission(path, refusal_reason(error))


def _too_many_files(path: Path) -> StoreError:
    return StoreError(f"cannot open {path}: too many open files; raise the limit (ulimit -n; systemd's LimitNOFILE=)")


def _no_permission(path: Path, reason: str) -> StoreError:
    return StoreError(f"cannot write {path} ({reason}); check the permissions of the file and of its directory")


def file_moved(path: Path, *, deleted: bool, descriptor: int) -> StoreUnavailableError:
    """Return the error for a path that leads to another file than the open one, or to none."""
    if deleted:
        return StoreUnavailableError(
            f"{path} was deleted while the node uses it, and nothing is stored any more: before you stop the node, "
            f"copy /proc/{os.getpid()}/fd/{descriptor} to {path}, and leave {path}-wal, which belongs to it, in its place"
        )
    return StoreUnavailableError(
        f"{path} was moved or replaced while the node uses it, and nothing is stored until the same file is back: put it back, "
        f"and leave {path}-wal, which belongs to it, in its place"
    )


def cannot_check(path: Path, error: OSError) -> StoreUnavailableError:
    """Return the error for a path that cannot be checked."""
    return StoreUnavailableError(
        f"{path} cannot be checked ({error.strerror}), and nothing is stored until it can: check the directories of its path"
    )


def file_gone(path: Path) -> StoreError:
    """Return the error for a log without its file."""
    return StoreError(
        f"{path} is gone or empty, and its log {path}-wal is still there: the file was moved or deleted while a node used "
        "it, and the log can have accepted jobs; put the file back, or, to begin with an empty store, "
        f"move {path}-wal and {path}-shm away"
    )


def file_replaced(path: Path, lock: Path) -> StoreError:
    """Return the error for a log of another file."""
    return StoreError(
        f"{path} was replaced, and the log {path}-wal belongs to the file before, and can have accepted jobs; put that back, "
        f"or, to continue with this one (a restored copy), move {path}-wal and {path}-shm away; "
        f"if log and file do belong together, remove {lock} and start again"
    )


def disk_failed(path: Path, reason: str, system_error: int = 0) -> StoreError:
    """Return the error for a read or write that has failed, or whose result is unknown."""
    if system_error in _NO_SPACE:
        return _full(path)
    return StoreBrokenError(
        f"the disk failed under {path} ({reason}): check the system's log, then start the node again; "
        "jobs acknowledged before are on the disk"
    )


def _full(path: Path) -> StoreFullError:
    return StoreFullError(
        f"no space is left for {path}: free some, or raise the quota; accepted jobs are safe, and the node continues "
        "as soon as there is space"
    )


def full_at_start(path: Path) -> StoreFullError:
    """Return the error for a full disk at the start, which ends the opening: it does not wait as it would later."""
    return StoreFullError(
        f"no space is left for {path}, and the node cannot start: free some, or raise the quota, and start it again; "
        "jobs accepted before are safe"
    )


def not_a_database(path: Path) -> StoreCorruptError:
    """Return the error for a file whose first bytes are not SQLite's."""
    return StoreCorruptError(f"{path} is not a SQLite database; move it away, or name another file with --store")


def of_gearmand(path: Path) -> StoreForeignError:
    """Return the error for the queue of a gearmand."""
    return StoreForeignError(
        f"{path} is a queue of gearmand's and was left untouched; start the server with a store of its own, "
        f"then run: mainspring import {path}"
    )


def foreign(path: Path) -> StoreForeignError:
    """Return the error for a SQLite database of another program."""
    return StoreForeignError(
        f"{path} is a database of another program and was left untouched; name another file with --store"
    )


def newer(path: Path, version: int, supported: int) -> StoreForeignError:
    """Return the error for a file that a newer Mainspring has written."""
    return StoreForeignError(
        f"{path} has schema {version} of a newer Mainspring, this one supports {supported}: "
        "use that version, or name another file with --store"
    )
