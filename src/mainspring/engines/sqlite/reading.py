"""Queries on their own connection, in their own thread: they do not block groups.

Lookups of jobs with little data run at once, on a connection of the node's thread: they take less time than the other thread
needs to get the interpreter and to give the answer back.

A reader of a write-ahead log sees what was committed when it began, and delays only the folding of the log; see `folding`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any

import apsw

from mainspring.engines.sqlite.failures import explain
from mainspring.engines.sqlite.finding import find_short
from mainspring.engines.sqlite.transaction import Transaction
from mainspring.errors import StoreError
from mainspring.jobs.store import ShowJob
from mainspring.storage.operation import unknown
from mainspring.storage.query import Meter
from mainspring.storage.synchronous import run_synchronously

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mainspring.engines.sqlite.folding import Folding
    from mainspring.engines.sqlite.queries import Readers
    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Answered
    from mainspring.storage.query import Budget, Query

BUSY_MS = 2000
"""Milliseconds that a read waits if another program has locked the file even against readers."""


class Reader:
    """Answers queries about a file; ``deliver`` runs a function on the node's own thread."""

    def __init__(
        self, path: Path, folding: Folding, deliver: Callable[[Callable[[], None]], object], readers: Readers
    ) -> None:
        """Open the file, which the node already uses. Raises apsw.Error."""
        self._readers = readers
        self._path = path
        self._folding = folding
        self._deliver = deliver
        self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        self._connection.set_busy_timeout(BUSY_MS)
        self._tx = Transaction(self._connection.cursor(), 0, {}, None)
        self._own_connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        self._own_connection.set_busy_timeout(0)
        self._own_tx = Transaction(self._own_connection.cursor(), 0, {}, None)
        """Used by the node's thread."""
        self._asked: queue.SimpleQueue[tuple[Query[Any], Budget, Answered] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sqlite reads", daemon=True)
        self._thread.start()

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query; ``answered`` is called on the node's thread."""
        if type(query) not in self._readers:
            raise unknown("SQLite", [type(query)])
        job = self._look_up(query) if isinstance(query, ShowJob) else None
        if job is None:
            self._asked.put((query, budget, answered))
        else:
            answered(job)

    def _look_up(self, query: ShowJob) -> Job | None:
        """Return a job with little data; None if the thread has to look it up."""
        try:
            return find_short(self._own_tx, query.id, query.namespace)
        except apsw.Error:
            return None

    def close(self) -> None:
        """End the thread, and close the connection."""
        self._asked.put(None)
        self._thread.join()
        self._connection.close()
        self._own_connection.close()

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            query, budget, answered = asked
            # A small read takes no longer than the moment between two pages of a folding, and is not worth a wait for all of it.
            with contextlib.nullcontext() if query.is_small else self._folding.reading():
                outcome = self._answer(query, budget)
            self._deliver(lambda then=answered, what=outcome: then(what))  # type: ignore[misc] # of this round

    def _answer(self, query: Query[Any], budget: Budget) -> Any:
        try:
            read = self._readers[type(query)]
            if query.is_small:  # one statement; each one more would wait for the interpreter under a busy loop
                return run_synchronously(read(self._tx, query, Meter(budget)))
            self._tx.cursor.execute("BEGIN")  # all statements of a read see the same
            try:
                return run_synchronously(read(self._tx, query, Meter(budget)))
            finally:
                self._tx.cursor.execute("ROLLBACK")
        except apsw.Error as error:
            failure = explain(error, self._path, self._connection.system_errno)
            failure.__cause__ = error
            return failure
        except StoreError as refusal:
            return refusal
        except Exception as error:  # noqa: BLE001 - a defect in this code costs one answer, not the thread
            failure = StoreError(f"{self._path}: a defect in the store's code: {error!r}")
            failure.__cause__ = error
            return failure
