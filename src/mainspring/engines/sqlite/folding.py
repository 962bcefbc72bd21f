"""Folding of the write-ahead log into the file.

SQLite would fold it itself, but without a report of failures: the log would grow until the disk is full.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import apsw
import structlog

from mainspring.engines.sqlite.failures import explain
from mainspring.engines.sqlite.opening import LOG_PAGES
from mainspring.errors import StoreBrokenError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPORTED_GROWTH = 4
"""The log is reported once it has this multiple of its limit, and whenever it has doubled since."""
FOREIGN_READER = "another program reads the store in a transaction that does not end: end it there"

log = structlog.get_logger("mainspring.store")


class Folding:
    """Folds the log of a connection whenever it has ``pages`` pages; called after each commit."""

    def __init__(self, connection: apsw.Connection, path: Path, pages: int = LOG_PAGES) -> None:
        self._connection = connection
        self._path = path
        self._limit = pages
        self._report_at = REPORTED_GROWTH * pages
        self._pages = 0
        self._condition = threading.Condition()
        self._is_read = False
        self._is_due = False
        """Whether to fold the log after the read under way and before the next one."""
        connection.set_wal_hook(self._committed)

    def _committed(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Run a read of the node's own reader, in its thread; it first waits for a folding that is due.

        SQLite can write the log from its beginning again only while no reader uses it, and consecutive reads would leave no such
        moment. So a new read waits for the folding.
        """
        with self._condition:
            self._condition.wait_for(lambda: not self._is_due)
            self._is_read = True
        try:
            yield
        finally:
            with self._condition:
                self._is_read = False

    def after_commit(self) -> None:
        """Fold the log if it has reached its limit: now, or after the read of the node's own reader.

        Raises StoreBrokenError if the disk fails. Nothing is lost: pages that were not folded stay in the log.
        """
        if self._pages < self._limit:
            self._report_at = REPORTED_GROWTH * self._limit
            return
        with self._condition:
            self._is_due = True
            if self._is_read:
                return
        self._fold()

    def after_read(self) -> None:
        """Fold the log if a read has delayed that, outside of any group. Raises StoreBrokenError, as `after_commit` does."""
        if self._is_due and not self._is_read:
            self._fold()

    def admit_reader(self) -> None:
        """Let the reader continue: no folding is due."""
        with self._condition:
            self._is_due = False
            self._condition.notify_all()

    def _fold(self) -> None:
        try:
            self._checkpoint()
        finally:
            self.admit_reader()

    def _checkpoint(self) -> None:
        reason = FOREIGN_READER
        try:
            pages, folded = self._connection.wal_checkpoint("main")
            if folded == pages:
                return
        except apsw.Error as error:
            failure = explain(error, self._path, self._connection.system_errno)
            if isinstance(failure, StoreBrokenError):
                raise failure from error
            reason = str(failure)
        if self._pages >= self._report_at:
            self._report_at = 2 * self._pages
            log.warning("the log of the store grows", log=f"{self._path}-wal", pages=self._pages, why=reason)
