"""A page of runs reads their histories together: on PostgreSQL, each statement is a message to the server and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mainspring.storage.engine import Budget, Meter, run_synchronously
from mainspring.workflows.reading import PAGE_BYTES, ListedRun, list_runs
from mainspring.workflows.store import ListRuns, RunRow

if TYPE_CHECKING:
    from collections.abc import Collection

    from mainspring.workflows.reading import Mark
    from mainspring.workflows.tables import Runs


class Store:
    """Runs without events; it notes whose histories are read together."""

    def __init__(self, *history_bytes: int) -> None:
        sizes = enumerate(history_bytes, 1)
        rows = [RunRow(number, number, "default", "", "order", "1", history_bytes=size) for number, size in sizes]
        self._found = [ListedRun(row, has_snapshot=False) for row in reversed(rows)]
        self.reads: list[list[int]] = []

    async def few(self, most: int) -> None:
        del most

    async def part(self, before: int | None, rows: int, most: int) -> tuple[list[ListedRun], Mark | None]:
        del before, rows
        return self._found[:most], None

    async def histories(self, runs: Collection[int]) -> dict[int, list[bytes]]:
        self.reads.append([*runs])
        return {run: [] for run in runs}

    def list(self, **limits: Any) -> list[int]:
        page = run_synchronously(list_runs(self, cast("Runs", self), ListRuns(**limits), Meter(Budget(seconds=60.0))))
        return [one.row.id for one in page.items]


def test_the_histories_of_a_page_are_read_together() -> None:
    store = Store(*[200] * 120)
    assert store.list(limit=100) == [*range(120, 20, -1)]
    assert store.reads == [[*range(120, 20, -1)]]


def test_long_histories_are_read_in_parts() -> None:
    store = Store(PAGE_BYTES // 2, PAGE_BYTES // 2, PAGE_BYTES * 3, PAGE_BYTES // 4, PAGE_BYTES // 4)
    assert store.list() == [5, 4, 3, 2, 1]
    assert store.reads == [[5, 4], [3], [2, 1]]


def test_few_histories_are_read_first_for_a_page_of_some_bytes() -> None:
    store = Store(*[200] * 100)
    assert store.list(bytes=1) == [100]
    assert len(store.reads) == 1
    assert len(store.reads[0]) < 100
