"""SQLite's errors as the store's, in sentences that say what to do."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import apsw

from mainspring.errors import (
    StoreBrokenError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreFullError,
)

if TYPE_CHECKING:
    from pathlib import Path

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def explain(error: apsw.Error, path: Path, system_error: int = 0) -> StoreError:
    """Return what an error of SQLite's means for the store at ``path``; ``system_error`` is the ``errno`` behind it."""
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
            # SQLite says the same where the disk cannot read.
            f"{path} is damaged ({error}); look into the system's log whether its disk fails, restore a backup, "
            "or save what can be read, as docs/how-to/back-up.md says"
        )
    if isinstance(error, apsw.CantOpenError) and system_error in {errno.EMFILE, errno.ENFILE}:
        return StoreError(
            f"cannot open {path}: too many open files; raise the limit (ulimit -n; systemd's LimitNOFILE=)"
        )
    if isinstance(error, (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError)):
        return StoreError(f"cannot write {path} ({error}); check the permissions of the file and of its directory")
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return StoreBusyError(f"another program has locked {path} ({error}); close it there, and try again")
    return StoreError(f"{path}: {error}")


def disk_failed(path: Path, reason: str, system_error: int = 0) -> StoreError:
    """Reading or writing has failed, or nobody can tell whether it has."""
    if system_error in _NO_SPACE:
        return _full(path)
    return StoreBrokenError(
        f"the disk failed under {path} ({reason}): look into the system's log, then start the node again; "
        "what was acknowledged before is on the disk"
    )


def _full(path: Path) -> StoreFullError:
    return StoreFullError(
        f"no space is left for {path}: free some, or raise the quota; what was accepted is safe, and the node goes on "
        "by itself once there is space"
    )


def full_at_start(path: Path) -> StoreFullError:
    """There is no space to begin with, and whoever opens the store ends: it does not wait as it would later."""
    return StoreFullError(
        f"no space is left for {path}, and the node cannot start: free some, or raise the quota, and start it again; "
        "what was accepted before is safe"
    )


def not_a_database(path: Path) -> StoreCorruptError:
    """The file's first bytes are not SQLite's."""
    return StoreCorruptError(f"{path} is not a SQLite database; move it away, or name another file with --store")


def of_gearmand(path: Path) -> StoreForeignError:
    """The file is the queue of a gearmand."""
    return StoreForeignError(
        f"{path} is a queue of gearmand's and was left untouched; start the server with a store of its own, "
        f"then run: mainspring import {path}"
    )


def foreign(path: Path) -> StoreForeignError:
    """The file is a SQLite database, but none of ours."""
    return StoreForeignError(
        f"{path} is a database of another program and was left untouched; name another file with --store"
    )


def newer(path: Path, version: int, known: int) -> StoreForeignError:
    """The file was written by a newer Mainspring."""
    return StoreForeignError(
        f"{path} has schema {version} of a newer Mainspring, this one knows {known}: "
        "use that version, or name another file with --store"
    )
