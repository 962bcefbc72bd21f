"""Upgrades of a file's schema without a running node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

from mainspring.engines.sqlite import failures, opening
from mainspring.engines.sqlite.lock import FileLock

if TYPE_CHECKING:
    from pathlib import Path


def migrate_file(path: Path, *, copied: bool = True) -> list[int]:
    """Create the file or update its schema; return the numbers of the applied migrations. With ``copied``, it is copied first.

    Raises StoreBusyError if a node has the file, and StoreError as opening it does.
    """
    path = opening.real(path)
    opening.check_file(path)
    lock = FileLock(path)
    lock.acquire()
    try:
        connection = apsw.Connection(str(path))
        connection.set_busy_timeout(5000)  # blocking this thread delays no other work
        try:
            ((version,),) = connection.execute("PRAGMA user_version")
            opening.prepare(connection, path, update=opening.Update(copied=copied))
        finally:
            connection.close()
    except apsw.Error as error:
        raise failures.explain(error, path) from error
    finally:
        lock.release()
    return list(range(version + 1, opening.SCHEMA_VERSION + 1))
