"""The queries on SQLite, each inside one transaction of the reader's connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from mainspring.engines.sqlite import rows
from mainspring.engines.sqlite.rows import LARGEST_ID
from mainspring.engines.sqlite.statements import SQL
from mainspring.engines.sqlite.transaction import Transaction
from mainspring.jobs.model import Priority, State
from mainspring.jobs.store import Counted, ShowLive, numbered
from mainspring.queries.jobs import MAX_KEYS, FirstInLine, ListJobs, Mark, search
from mainspring.resources.model import decode_limits
from mainspring.resources.store import ListLimits
from mainspring.storage.query import Meter, Page, Query, in_parts

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from mainspring.resources.model import FunctionLimits

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


class _Jobs:
    """`SearchableJobs` in a file."""

    def __init__(self, tx: Transaction, query: ListJobs, function: int | None) -> None:
        self._tx = tx
        self._query = query
        self._function = function

    async def few(self, most: int) -> list[Job] | None:
        """Return the jobs of the requested state by its index; None if there are more than ``most``."""
        query, function = self._query, self._function
        statement = None if query.state is None else _BY_STATE.get(query.state)
        if statement is None:
            return None
        if statement == "few_queued" and function is not None:
            statement = "few_queued_of"
        values = (query.state, function, most + 1)
        ids = [job_id for (job_id,) in self._tx.cursor.execute(SQL[statement], values)]
        if statement != "few_scheduled" and len(ids) <= most:
            roots = SQL["few_roots" if function is None else "few_roots_of"]
            ids += [job_id for (job_id,) in self._tx.cursor.execute(roots, values)]
        return None if len(ids) > most else self._list("list_these", query.after, query.limit, json.dumps(ids))

    async def mark(self, before: int | None, rows: int) -> Mark | None:
        """Return the end of a part."""
        for found in self._tx.cursor.execute(SQL["mark"], (_id(before), rows - 1)):
            return Mark(*found)
        return None

    async def between(self, low: int, before: int | None, most: int) -> list[Job]:
        """Return the matching jobs of a part."""
        return self._list("list", before, most, low)

    def _list(self, statement: str, before: int | None, most: int, among: object) -> list[Job]:
        query = self._query
        values = (_id(before), query.state, self._function, query.unique, most, among)
        return rows.stored(self._tx.cursor.execute(SQL[statement], values), self._tx.functions)


def _id(before: int | None) -> int:
    return LARGEST_ID if before is None else min(before, LARGEST_ID)


async def list_jobs(tx: Transaction, query: ListJobs, meter: Meter) -> Page[Job]:
    """List jobs, newest first."""
    function = None if query.function is None else tx.functions.find(query.function)
    if query.function is not None and function is None:
        return Page([])
    return await search(_Jobs(tx, query, function), query, meter)


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
    """List the limits of functions, in the order of their names."""

    async def behind(after: bytes | None, most: int) -> list[tuple[bytes, FunctionLimits]]:
        return [
            (function, decode_limits(encoded))
            for function, encoded in tx.cursor.execute(SQL["limits"], (after or b"", most))
        ]

    return await in_parts(query, meter, behind)


async def show_live(tx: Transaction, query: ShowLive, _: Meter) -> Counted:
    """Return the counts of a page of functions. A page begins after the number of a function."""
    counts = {}
    last = left = 0
    for function, name, state, priority, number in tx.cursor.execute(
        SQL["counts_after"], (numbered(query.after), query.limit)
    ):
        if function != last:
            last, left = function, left + 1
        if state is not None:
            counts[name, state, priority] = number
    return Counted(counts, b"%d" % last if left >= query.limit else None)


Readers = dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Coroutine[Any, Any, Any]]]
READERS: Readers = {
    ListJobs: list_jobs,
    FirstInLine: first_in_line,
    ListLimits: list_limits,
    ShowLive: show_live,
}
