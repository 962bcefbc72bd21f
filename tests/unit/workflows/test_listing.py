"""A page of runs reads their histories together: on PostgreSQL, each statement is a message to the server and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mainspring.storage.engine import Budget, Meter, run_synchronously
from mainspring.workflows import reading
from mainspring.workflows.model import Status
from mainspring.workflows.reading import PAGE_BYTES, RUNS_AT_ONCE, ListedRun, folded, list_runs
from mainspring.workflows.store import ListRuns, RunRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    import pytest

    from mainspring.jobs.model import Options
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

    async def job_options(self, jobs: Collection[int]) -> dict[int, Options]:
        del jobs
        return {}

    def close(self, *runs: int) -> None:
        for row, _ in self._found:
            if row.id in runs:
                row.status = Status.COMPLETED

    def list(self, pause: Callable[[], Awaitable[None]] | None = None, **limits: Any) -> list[int]:
        meter = Meter(Budget(seconds=60.0), next_turn=pause)
        page = run_synchronously(list_runs(self, cast("Runs", self), ListRuns(**limits), meter))
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


def test_the_states_of_a_page_are_built_in_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    turns: list[int] = []

    def counted(row: RunRow, *rest: Any) -> Any:
        built.append(row.id)
        return folded(row, *rest)

    async def pause() -> None:
        turns.append(len(built))

    monkeypatch.setattr(reading, "folded", counted)
    number = 4 * RUNS_AT_ONCE
    assert Store(*[200] * number).list(pause, limit=number) == [*range(number, 0, -1)]
    assert turns == [RUNS_AT_ONCE, 2 * RUNS_AT_ONCE, 3 * RUNS_AT_ONCE, number]


def test_a_list_without_closed_states_reads_no_histories_of_closed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(*[PAGE_BYTES] * 6)
    store.close(6, 5, 3, 1)
    built: list[int] = []

    def noted(row: RunRow, *rest: Any) -> Any:
        built.append(row.id)
        return folded(row, *rest)

    monkeypatch.setattr(reading, "folded", noted)
    assert store.list(closed_states=False) == [6, 5, 4, 3, 2, 1]
    assert built == [4, 2]
    assert [run for read in store.reads for run in read] == [4, 2]
