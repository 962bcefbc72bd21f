"""Maps for which one history has no room: child runs, with a node and a worker in memory. Replays check each decision."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, JobCancelled, JobFailed, JobTimedOut, MapFailed, workflow
from mainspring.testing import in_memory
from mainspring.workflow_code import mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.testing.app import InMemory

app = App()


class Load:
    """The activities that are open, and the most that were."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = self.most = self.calls = 0


load = Load()


@app.task
def double(number: int) -> tuple[int, str]:
    with load.lock:
        load.calls += 1
        load.open += 1
        load.most = max(load.most, load.open)
    if number % 5 == 3:
        raise ValueError(f"no {number}")
    with load.lock:
        load.open -= 1
    return 2 * number, "x"


away = app.function("away")
"""A function without a worker."""


@app.workflow
async def doubled(count: int, limit: int) -> list[Any]:
    return [one[0] for one in await workflow.map(double, [n for n in range(count) if n % 5 != 3], limit=limit)]


@app.workflow
async def failing(count: int) -> list[Any]:
    try:
        return await workflow.map(double, range(count))
    except MapFailed as failed:
        return [failed.message, *(f"{index} {type(one).__name__} {one}" for index, one in failed.failures.items())]


@app.workflow
async def late() -> list[str]:
    outcomes = await workflow.map(away.options(schedule_to_start="5s"), [b"a"] * 3, return_exceptions=True)
    return [f"{type(one).__name__} {getattr(one, 'kind', '')}" for one in outcomes]


@app.workflow
async def held(mode: str) -> str:
    try:
        await workflow.map(away.options(cancel=mode), [b"a"] * 6, limit=4)  # type: ignore[arg-type]
    except MapFailed as failed:
        return f"{len(failed.failures)} {failed.exceptions[0]}"
    return "done"


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemory]:
    monkeypatch.setattr(mapping, "room_of", lambda _: 0)
    monkeypatch.setattr(mapping, "PART_ITEMS", 3)
    monkeypatch.setattr(mapping, "PART_LIMIT", 2)
    load.__init__()  # type: ignore[misc]
    with in_memory(app) as running:
        yield running


def parts(fleet: InMemory, run: Any) -> list[dict[str, Any]]:
    del fleet
    runs = app.connections.blocking().call("workflows.list", {"limit": 100})["items"]
    return [one for one in runs if one["handle"] != run.handle]


def test_results_are_in_order_and_the_parts_are_runs_of_the_same_workflow(fleet: InMemory) -> None:
    run = doubled.submit(20, 5)
    fleet.settle()
    assert run.result(5) == [2 * n for n in range(20) if n % 5 != 3]
    found = parts(fleet, run)
    assert len(found) == 6  # 16 items
    assert {(one["type"], one["version"], one["status"]) for one in found} == {("doubled", "1", "completed")}


def test_at_most_limit_activities_are_open(fleet: InMemory) -> None:
    run = held.submit("try")
    fleet.settle()
    waiting = app.connections.blocking().call("jobs.list", {"function": "away", "state": "pending"})["items"]
    assert len(waiting) == 4
    run.terminate()


def test_failures_have_the_indices_of_their_items(fleet: InMemory) -> None:
    run = failing.submit(9)
    fleet.settle()
    assert run.result(5) == [
        "2 of 9 items failed, the first is item 3: job double[3] failed at attempt 1: ValueError: no 3",
        "3 JobFailed job double[3] failed at attempt 1: ValueError: no 3",
        "8 JobFailed job double[8] failed at attempt 1: ValueError: no 8",
    ]


def test_timeouts_of_items_are_timeouts(fleet: InMemory) -> None:
    run = late.submit()
    fleet.settle()
    fleet.advance("10s")
    assert run.result(5) == ["JobTimedOut schedule_to_start"] * 3


def test_a_cancelled_map_cancels_its_parts(fleet: InMemory) -> None:
    run = held.submit("try")
    fleet.settle()
    run.cancel()
    fleet.settle()
    with pytest.raises(JobCancelled):
        run.result(5)
    assert {one["status"] for one in parts(fleet, run)} == {"cancelled"}
    assert app.connections.blocking().call("jobs.list", {"function": "away"})["items"] == []


def test_a_lost_part_fails_its_items(fleet: InMemory) -> None:
    run = held.submit("try")
    fleet.settle()
    held.get(parts(fleet, run)[0]["handle"]).terminate("enough")
    fleet.settle()
    (other,) = (one for one in parts(fleet, run) if one["status"] == "open")
    held.get(other["handle"]).terminate("enough")
    fleet.settle()
    assert run.result(5).startswith("6 job held #")


def test_parts_have_few_bytes(fleet: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "PART_BYTES", 5)
    run = doubled.submit(7, 5)  # six items of three bytes
    fleet.settle()
    assert run.result(5) == [0, 2, 4, 8, 10, 12]
    assert len(parts(fleet, run)) == 6


def test_a_worker_that_is_lost_repeats_no_item(fleet: InMemory) -> None:
    run = doubled.submit(20, 5)
    for _ in range(3):
        fleet.crash_worker()
    fleet.settle()
    assert run.result(5) == [2 * n for n in range(20) if n % 5 != 3]


@pytest.mark.parametrize(("room", "items"), [(24_500, 1_000), (980, 81), (5, 1)])
def test_a_part_has_room_for_its_items(room: int, items: int) -> None:
    assert mapping.part_items(room) == items


def test_errors_survive_their_way() -> None:
    outcomes = [
        b"1",
        JobTimedOut("a #1", "Timeout", "late", None, 2, "heartbeat"),
        JobFailed("a #1", "OSError", "away", "lines", 3),
        JobCancelled("a #1", "was cancelled"),
    ]
    ends = [mapping.item_end(one) for one in outcomes]
    call: Any = type("Call", (), {"name": "a", "decode": staticmethod(int)})
    first, late, failed, cancelled = (mapping.outcome_of(call, 7, end) for end in ends)
    assert first == 1
    assert (late.handle, late.kind, late.attempt, late.type_name) == ("a[7]", "heartbeat", 2, "Timeout")
    assert (type(failed), failed.traceback, failed.reason) == (JobFailed, "lines", "away")
    assert (type(cancelled), str(cancelled)) == (JobCancelled, "was cancelled")
    assert isinstance(mapping.outcome_of(call, 7, mapping.item_end(b"x")), ValueError)
