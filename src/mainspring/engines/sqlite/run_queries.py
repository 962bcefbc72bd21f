"""The queries of the workflows slice on SQLite."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.sqlite.rows import LARGEST_ID
from mainspring.engines.sqlite.run_rows import SqliteRunReads
from mainspring.engines.sqlite.statements import SQL
from mainspring.workflows import latest_events, reading
from mainspring.workflows.definition_store import CountOpen
from mainspring.workflows.latest_events import ReadLatest
from mainspring.workflows.store import CountParked, FindDefinitions, ListRuns, ReadHistory, ShowRun

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.storage.query import Meter, Page, Query
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import Definition
    from mainspring.workflows.store import Shown, ShownRun


class _Reads(SqliteRunReads):
    def __init__(self, tx: Transaction) -> None:
        self._tx = tx


class _Searchable:
    """`SearchableRuns` in a file."""

    def __init__(self, tx: Transaction, query: ListRuns) -> None:
        self._tx = tx
        self._query = query

    async def few(self, most: int) -> list[int] | None:
        """Return the runs of a workflow id, or the parked ones, by their index; None if there are more than ``most``."""
        query = self._query
        if query.workflow_id is not None:
            ids = self._ids("few_named", query.namespace, query.workflow_id, most + 1)
        elif query.parked:
            ids = self._ids("few_parked", query.namespace, most + 1)
        else:
            return None
        return None if len(ids) > most else self._list("list_these_runs", query.after, json.dumps(ids), query.limit + 1)

    async def mark(self, before: int | None, rows: int) -> reading.Mark | None:
        """Return the end of a part."""
        for run, started_us in self._tx.cursor.execute(SQL["mark_run"], (_id(before), rows - 1)):
            return reading.Mark(run, started_us)
        return None

    async def between(self, low: int, before: int | None, most: int) -> list[int]:
        """Return the matching runs of a part."""
        return self._list("list_runs", before, low, most)

    def _list(self, statement: str, before: int | None, among: object, most: int) -> list[int]:
        query = self._query
        statuses = sum(1 << status for status in set(query.status))
        filters = (query.namespace, statuses, query.type, query.since_us, query.workflow_id, query.parked)
        return self._ids(statement, _id(before), among, *filters, query.needs_decision, most)

    def _ids(self, statement: str, *values: Any) -> list[int]:
        return [run for (run,) in self._tx.cursor.execute(SQL[statement], values)]


def _id(before: int | None) -> int:
    return LARGEST_ID if before is None else min(before, LARGEST_ID)


async def list_runs(tx: Transaction, query: ListRuns, meter: Meter) -> Page[ShownRun]:
    """List runs, newest first."""
    return await reading.list_runs(_Searchable(tx, query), _Reads(tx), query, meter)


async def show_run(tx: Transaction, query: ShowRun, _: Meter) -> Shown:
    """Return a run with its state, or waiting jobs."""
    return await reading.show_run(_Reads(tx), query)


async def read_history(tx: Transaction, query: ReadHistory, meter: Meter) -> Page[Event]:
    """Return a page of events."""
    return await reading.read_history(_Reads(tx), query, meter)


async def read_latest(tx: Transaction, query: ReadLatest, meter: Meter) -> dict[int, list[Event] | str]:
    """Return the newest events of runs."""
    return await latest_events.read_latest(_Reads(tx), query, meter)


async def count_parked(tx: Transaction, _query: CountParked, _: Meter) -> dict[tuple[str, str, str], int]:
    """Count parked runs."""
    return {(key[0], key[1], key[2]): number for *key, number in tx.cursor.execute(SQL["count_parked"])}


async def count_open(tx: Transaction, _query: CountOpen, _: Meter) -> dict[tuple[str, str, str], int]:
    """Count open runs."""
    return {(key[0], key[1], key[2]): number for *key, number in tx.cursor.execute(SQL["count_open"])}


async def find_definitions(tx: Transaction, _query: FindDefinitions, _: Meter) -> list[Definition]:
    """Return all definitions."""
    return await _Reads(tx).definitions()


READERS: Final[Mapping[type[Query[Any]], Callable[[Transaction, Any, Meter], Coroutine[Any, Any, Any]]]] = {
    ListRuns: list_runs,
    ShowRun: show_run,
    ReadHistory: read_history,
    ReadLatest: read_latest,
    CountParked: count_parked,
    CountOpen: count_open,
    FindDefinitions: find_definitions,
}
