"""Queries on SQLite: they run beside the groups, each inside one transaction of the reader's connection.

The reader has its own connection, in its own thread, so queries do not block groups. Lookups of jobs with little data run at
once, on a connection of the node's thread: they take less time than the other thread needs to get the interpreter and to give
the answer back.

A reader of a write-ahead log sees what was committed when it began, and delays only the folding of the log; see
`store_file.Folding`.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import apsw

from mainspring import namespaces
from mainspring.engines.sqlite import transaction
from mainspring.engines.sqlite.jobs import find_job, find_short
from mainspring.engines.sqlite.statements import SQL
from mainspring.engines.sqlite.transaction import LARGEST_ID, Transaction, explain
from mainspring.errors import StoreError
from mainspring.jobs.model import Priority, State, read_options
from mainspring.jobs.store import Counted, CountSome, ShowCounts, ShowJob, numbered
from mainspring.namespaces import DEFAULT
from mainspring.queries import MAX_KEYS, FirstInLine, Mark, QueryJobs, ReadArguments, Recall, Recalled, search
from mainspring.resources.rules import decode_limits
from mainspring.resources.store import ListLimits
from mainspring.storage.engine import Meter, Page, Query, in_parts, run_synchronously, unknown

if TYPE_CHECKING:
    from pathlib import Path

    from mainspring.engines.sqlite.store_file import Folding
    from mainspring.jobs.model import Job
    from mainspring.resources.rules import FunctionLimits
    from mainspring.storage.engine import Answered, Budget

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


_BY_STATE = {
    State.SCHEDULED: "few_scheduled",
    State.PENDING: "few_queued",
    State.LEASED: "few_queued",
    State.RUNNING: "few_queued",
    State.FAILED: "few_unsuccessful",
    State.CANCELLED: "few_unsuccessful",
    State.EXPIRED: "few_unsuccessful",
}
"""The statement that reads a state by its index."""


ALL_STATES = 0xFF
"""The set of all states, with a bit for each."""


NEAR = 4
"""Jobs that are searched for a following page before any index is read, as a multiple of its size."""


class _Jobs:
    """`SearchableJobs` in a file."""

    seeks = True

    def __init__(self, tx: Transaction, query: QueryJobs, function: int | None) -> None:
        self._tx = tx
        self._query = query
        self._where = where = query.where
        self._function = function
        self._criteria = (
            sum(1 << state for state in where.states) if where.states else ALL_STATES,
            function,
            where.unique,
            where.key,
            *where.in_options,
            where.error_prefix,
            where.created_from_us,
            where.created_to_us,
            where.namespace,
        )
        self._tagged = () if where.tag is None else (where.namespace or DEFAULT, where.tag)

    async def few(self, most: int) -> list[Job] | None:
        """Return the jobs of the requested states by their indexes; None if there are more than ``most``."""
        number, ids = 0, list[str]()
        if self._tagged:
            return None
        if self._query.after is not None and (near := self.near(self._query.after)):
            return near
        for state in self._where.states:
            found = self._of_state(state, most + 1 - number)
            if found is None:
                return None
            number += sum(count for count, _ in found)
            if number > most:
                return None
            ids += [some[1:-1] for count, some in found if count]
        return (
            self._list("list_these", self._query.after, self._query.limit, f"[{','.join(ids)}]")
            if self._where.states
            else None
        )

    def near(self, after: int) -> list[Job]:
        """Return the page after an id if it is among the next jobs, as it is where most jobs match; else an empty list.

        The indexes would be read for each page, up to their limit.
        """
        limit = self._query.limit
        mark = self._mark(after, NEAR * limit)
        found = self._list("list", after, limit, 0 if mark is None else mark.id)
        return found if len(found) == limit else []

    def _of_state(self, state: State, most: int) -> list[tuple[int, str]] | None:
        """Return numbers of jobs in a state by its indexes, each at most ``most``, with their ids as JSON; None: it has none."""
        statement = _BY_STATE.get(state)
        if statement is None:
            return None
        if statement == "few_queued" and self._function is not None:
            statement = "few_queued_of"
        values = (state, self._function, most)
        found = list(self._tx.cursor.execute(SQL[statement], values))
        if statement != "few_scheduled":
            roots = SQL["few_roots" if self._function is None else "few_roots_of"]
            found += self._tx.cursor.execute(roots, values)
        return found

    async def mark(self, before: int | None, rows: int) -> Mark | None:
        """Return the end of a part."""
        return self._mark(before, rows)

    def _mark(self, before: int | None, rows: int) -> Mark | None:
        statement = "mark_tagged" if self._tagged else "mark"
        for found in self._tx.cursor.execute(SQL[statement], (_id(before), rows - 1, *self._tagged)):
            return Mark(*found)
        return None

    async def part(self, before: int | None, rows: int, most: int) -> tuple[Mark | None, list[Job]]:
        """Return the end of a part, and its matching jobs."""
        mark = await self.mark(before, rows)
        low = 0 if mark is None else mark.id
        return mark, self._list("list_tagged" if self._tagged else "list", before, most, low)

    def _list(self, statement: str, before: int | None, most: int, among: object) -> list[Job]:
        """Return matching jobs. The statement finds candidates, of which nearly all match."""
        found: list[Job] = []
        while len(found) < most:
            values = (_id(before), most, among, *self._criteria, *self._tagged)
            candidates = transaction.stored_jobs(
                self._tx.cursor.execute(SQL[statement], values), self._tx.functions, read_options
            )
            found += filter(self._where.matches, candidates)
            if len(candidates) < most:
                break
            before = candidates[-1].id
        return found[:most]


def _id(before: int | None) -> int:
    return LARGEST_ID if before is None else min(before, LARGEST_ID)


async def list_jobs(tx: Transaction, query: QueryJobs, meter: Meter) -> Page[Job]:
    """List jobs, newest first."""
    jobs = _searchable(tx, query)
    return Page([]) if jobs is None else await search(jobs, query, meter)


def _searchable(tx: Transaction, query: QueryJobs) -> _Jobs | None:
    """Return the jobs that a query searches; None if its function has never had a job."""
    wanted = query.where.function
    function = None if wanted is None else tx.functions.find(wanted)
    return None if wanted is not None and function is None else _Jobs(tx, query, function)


def near(tx: Transaction, query: QueryJobs) -> Page[Job] | None:
    """Return a page that continues another one, if all of it is near: this reads few rows."""
    jobs = None if query.where.tag is not None else _searchable(tx, query)
    found = [] if jobs is None else jobs.near(query.after)
    return Page(found, found[-1].id) if found else None


async def read_arguments(tx: Transaction, query: ReadArguments, _: Meter) -> bytes | None:
    """Return the arguments of a job; see ``ReadArguments``."""
    found = [*tx.cursor.execute(SQL["arguments"], (query.id,))] if query.id <= LARGEST_ID else []
    payload: bytes | None = found[0][0] if found else None
    return payload


async def recall(tx: Transaction, query: Recall, _: Meter) -> Recalled | None:
    """Return the payload and the attempts of a job."""
    for payload, kept, attempts in tx.cursor.execute(SQL["recall"], (min(query.id, LARGEST_ID), query.most)):
        return Recalled(payload, bool(kept), (attempts or "").encode())
    return None


async def show_job(tx: Transaction, query: ShowJob, _: Meter) -> Job | None:
    """Return a job; see ``ShowJob``."""
    return find_job(tx, query.id, query.namespace)


async def first_in_line(tx: Transaction, query: FirstInLine, _: Meter) -> dict[bytes, int]:
    """Return since when the first job of each function waits; see ``FirstInLine``."""
    found = {}
    for name in query.functions:
        function = tx.functions.find(name)
        if function is None:
            continue
        times = [
            time_us
            for priority in Priority
            for (time_us,) in tx.cursor.execute(SQL["first_in_line"], (function, priority, MAX_KEYS))
        ]
        if times:
            found[name] = min(times)
    return found


async def list_limits(tx: Transaction, query: ListLimits, meter: Meter) -> Page[FunctionLimits]:
    """List the limits of functions, in the order of their namespaces and names."""

    async def behind(after: bytes | None, most: int) -> list[tuple[bytes, FunctionLimits]]:
        place = ("", b"") if after is None else namespaces.split(after)
        return [
            (limits.function, limits)
            for namespace, name, version, encoded in tx.cursor.execute(SQL["limits"], (*place, most))
            for limits in (decode_limits(encoded, namespaces.key(namespace, name), version),)
        ]

    return await in_parts(query, meter, behind)


async def show_counts(tx: Transaction, query: ShowCounts, _: Meter) -> Counted:
    """Return counts; see ``ShowCounts``. A page begins after the number of a function."""
    end = None
    if query.functions is None:
        after = numbered(query.after)
        for (end,) in tx.cursor.execute(SQL["page_end"], (after, query.limit - 1)):  # noqa: B007 - at most one row
            pass
        found = tx.cursor.execute(SQL["counts_between"], (*query.states, after, LARGEST_ID if end is None else end))
    else:
        numbers = [number for name in query.functions if (number := tx.functions.find(name)) is not None]
        found = tx.cursor.execute(SQL["counts_among"], (*query.states, json.dumps(numbers)))
    ((rows,),) = found
    numbers_of = json.loads(rows)
    tx.functions.load({function for function, *_ in numbers_of})
    counts = {(tx.functions.key(function), state, priority): number for function, state, priority, number in numbers_of}
    return Counted(counts, None if end is None else b"%d" % end)


Readers = dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Coroutine[Any, Any, Any]]]
READERS: Readers = {
    QueryJobs: list_jobs,
    FirstInLine: first_in_line,
    ShowJob: show_job,
    ReadArguments: read_arguments,
    Recall: recall,
    ListLimits: list_limits,
    ShowCounts: show_counts,
    CountSome: show_counts,
}
