"""Folding the write-ahead log into the file.

SQLite would do it by itself, and say nothing where it cannot: the log would grow until the disk is full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import structlog

from mainspring.engines.sqlite.failures import explain
from mainspring.engines.sqlite.opening import LOG_PAGES
from mainspring.errors import StoreBrokenError

if TYPE_CHECKING:
    from pathlib import Path

GROWN = 4
"""A log of so many times its usual size is told of, and whenever it has doubled since."""
READER = "another program reads the store in a transaction that does not end: end it there"

log = structlog.get_logger("mainspring.store")


class Folding:
    """Folds the log of a connection whenever it has ``pages`` pages; told after each commit."""

    def __init__(self, connection: apsw.Connection, path: Path, pages: int = LOG_PAGES) -> None:
        self._connection = connection
        self._path = path
        self._limit = pages
        self._tell_at = GROWN * pages
        self._pages = 0
        connection.set_wal_hook(self._committed)

    def _committed(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def after_commit(self) -> None:
        """Fold what there is, where it is enough.

        Raises StoreBrokenError where the disk fails: nothing is lost by that, for what could not be folded stays in the log.
        """
        if self._pages < self._limit:
            self._tell_at = GROWN * self._limit
            return
        reason = READER
        try:
            self._connection.wal_checkpoint("main")
        except apsw.Error as error:
            failure = explain(error, self._path, self._connection.system_errno)
            if isinstance(failure, StoreBrokenError):
                raise failure from error
            reason = str(failure)
        if self._pages >= self._tell_at:
            self._tell_at = 2 * self._pages
            log.warning("the log of the store grows", log=f"{self._path}-wal", pages=self._pages, why=reason)
