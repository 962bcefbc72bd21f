"""Folding the write-ahead log into the file.

SQLite would do it by itself, and say nothing where it cannot: the log would grow until the disk is full.
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
        self._turns = threading.Condition()
        self._is_read = False
        self._is_due = False
        """Whether the log is to be folded once the read under way has ended, and before the next one begins."""
        connection.set_wal_hook(self._committed)

    def _committed(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Let the node's own reader read, in its own thread; it waits while the log is folded.

        The log can be written from its beginning again only at a moment when nobody reads anything of it: with one read after
        the other there would be no such moment. So a read that would begin lets the folding pass.
        """
        with self._turns:
            self._turns.wait_for(lambda: not self._is_due)
            self._is_read = True
        try:
            yield
        finally:
            with self._turns:
                self._is_read = False

    def after_commit(self) -> None:
        """Fold what there is, where it is enough, unless the node's own reader reads: then after its read.

        Raises StoreBrokenError where the disk fails: nothing is lost by that, for what could not be folded stays in the log.
        """
        if self._pages < self._limit:
            self._tell_at = GROWN * self._limit
            return
        with self._turns:
            self._is_due = True
            if self._is_read:
                return
        self._fold()

    def after_read(self) -> None:
        """Fold what a read has kept from being folded, in no group. Raises StoreBrokenError, as `after_commit` does."""
        if self._is_due and not self._is_read:
            self._fold()

    def let_in(self) -> None:
        """Let the reader go on: nothing is folded any more."""
        with self._turns:
            self._is_due = False
            self._turns.notify_all()

    def _fold(self) -> None:
        try:
            self._checkpoint()
        finally:
            self.let_in()

    def _checkpoint(self) -> None:
        reason = READER
        try:
            pages, folded = self._connection.wal_checkpoint("main")
            if folded == pages:
                return
        except apsw.Error as error:
            failure = explain(error, self._path, self._connection.system_errno)
            if isinstance(failure, StoreBrokenError):
                raise failure from error
            reason = str(failure)
        if self._pages >= self._tell_at:
            self._tell_at = 2 * self._pages
            log.warning("the log of the store grows", log=f"{self._path}-wal", pages=self._pages, why=reason)
