"""Workflows of an App from their start to their end, with a node and a worker in memory."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import (
    App,
    ConflictError,
    JobCancelled,
    JobFailed,
    JobTimedOut,
    NotFoundError,
    Retry,
    UsageError,
    workflow,
)
from mainspring.callbacks import Callback
from mainspring.testing import in_memory
from mainspring.workflows.definitions import Definitions
from mainspring.workflows.model import PART_TAG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.testing.app import InMemory

app = App()
approved = app.signal("approved", dict[str, str])


@app.task
async def charge(order: int, cents: int) -> str:
    return f"{cents} for {order}"


@app.task
def label(item: str) -> str:
    return f"label {item}"


@app.task
def price(order: int) -> int:
    return 100 * order


@app.workflow(timeout="30d")
async def order(number: int, items: list[str]) -> dict[str, Any]:
    cents = await price.step(number)
    payment = await charge.submit(number, cents)
    approval = await approved.receive(timeout=timedelta(days=3)) if cents > 1_000 else {}
    labels = await asyncio.gather(*(label.submit(item) for item in items))
    await workflow.sleep("3d")
    return {"payment": payment, "labels": labels} | approval


@app.workflow
async def failing(number: int) -> None:
    raise LookupError(f"no order {number}")


@app.workflow
async def nesting() -> object:
    return await app.function("failing").options(priority="high").submit(1)


numbers = count(1)


@app.workflow
async def unrepeatable() -> None:
    await label.submit(str(next(numbers)))
    await workflow.sleep("1d")


@app.task(retry=Retry(max_attempts=10, initial="1m", factor=1, jitter=0), schedule_to_close="150s")
def broken() -> None:
    raise OSError("again")


@app.workflow
async def late() -> list[str]:
    jobs: list[Any] = [app.function("nobody").options(schedule_to_start="5m").submit(), broken.submit()]
    errors = [(await job.outcome()).error for job in jobs]
    return [error.kind for error in errors if isinstance(error, JobTimedOut)]


@pytest.fixture
def fleet() -> Iterator[InMemory]:
    with in_memory(app) as fleet:
        yield fleet


def test_a_run_from_its_start_to_its_result(fleet: InMemory) -> None:
    run = order.submit(7, ["cat", "owl"])
    assert (run.state, run.info()["state"], run.details()["type"]) == ("running", "running", "order")
    fleet.advance("3d")
    assert run.result(5) == {"payment": "700 for 7", "labels": ["label cat", "label owl"]}
    assert (run.state, run.details()["status"]) == ("succeeded", "completed")


def test_a_submission_right_after_the_start_begins_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    define = Definitions.define

    async def define_later(*args: Any) -> None:
        await Callback[None](lambda done, _: asyncio.get_running_loop().call_later(0.05, done, None))
        await define(*args)

    monkeypatch.setattr(Definitions, "define", define_later)
    with in_memory(app):
        assert order.submit(7, []).details()["status"] == "open"


def test_a_workflow_id_has_one_open_run(fleet: InMemory) -> None:
    first = order.options(id="order-1").submit(1, [])
    second = order.options(id="order-1").submit(2, [])
    assert (second.handle, second.joined) == (first.handle, True)
    fleet.advance("3d")
    assert order.get("order-1").result(5)["payment"] == "100 for 1"
    third = order.options(id="order-1").submit(3, [])
    assert third.handle != first.handle
    assert order.get("order-1").handle == third.handle
    assert order.get(first.handle).result(5)["payment"] == "100 for 1"


def test_signals_reach_runs_by_handle_and_by_workflow_id(fleet: InMemory) -> None:
    by_handle = order.submit(17, [])
    by_id = order.options(id="order-18").submit(18, [])
    fleet.advance(1)
    assert "approved" in by_handle.details()["waits_for"]
    by_handle.signal(approved, {"by": "eva"})
    order.get("order-18").signal("approved", {"by": "adam"})
    fleet.advance("3d")
    assert (by_handle.result(5)["by"], by_id.result(5)["by"]) == ("eva", "adam")


def test_a_signal_begins_a_delayed_run(fleet: InMemory) -> None:
    run = order.options(id="order-19", delay="1h").submit(19, [])
    assert run.state == "scheduled"
    order.get("order-19").signal(approved, {"by": "eva"}, request="r1")
    order.get("order-19").signal(approved, {"by": "adam"}, request="r1")
    assert run.state == "running"
    fleet.advance("3d")
    assert run.result(5)["by"] == "eva"


def test_runs_end_without_a_result(fleet: InMemory) -> None:
    cancelled, terminated = order.submit(1, []), order.submit(2, [])
    late, failed = order.options(timeout="1m").submit(3, []), failing.submit(4)
    fleet.advance(1)
    assert cancelled.cancel("changed") == "running"
    terminated.terminate("wrong")
    fleet.advance("1m")
    with pytest.raises(JobCancelled, match="was cancelled: changed"):
        cancelled.result(5)
    with pytest.raises(ConflictError, match=r"is closed \(cancelled\) and takes no requests"):
        cancelled.cancel("once more")
    assert cancelled.details()["cancel_reason"] == "changed"
    with pytest.raises(JobFailed, match="WorkflowTerminated: the run was terminated: wrong"):
        terminated.result(5)
    with pytest.raises(JobTimedOut):
        late.result(5)
    with pytest.raises(JobFailed, match="LookupError: no order 4"):
        failed.result(5)
    details = [run.details() for run in (cancelled, terminated, late, failed)]
    assert [one["status"] for one in details] == ["cancelled", "terminated", "timed_out", "failed"]
    assert [(one["error"] or "").partition(":")[0] for one in details] == [
        "Cancelled",
        "WorkflowTerminated",
        "Timeout",
        "LookupError",
    ]
    with pytest.raises(ConflictError, match="is closed"):
        cancelled.signal(approved, {"by": "eva"})


def test_a_schedule_starts_runs() -> None:
    app = App()
    done: list[int] = []

    @app.task
    def note(number: int) -> None:
        done.append(number)

    @app.scheduled(every="1h", args=(7,))
    @app.workflow
    async def hourly(number: int) -> None:
        await workflow.sleep("1m")
        await note.submit(number)

    with in_memory(app) as fleet:
        fleet.advance("2h")
        fleet.advance("2m")
    assert done == [7, 7]


def test_a_workflow_does_not_submit_another_one_as_an_activity(fleet: InMemory) -> None:
    run = nesting.submit()
    fleet.advance("1s")
    parked = run.details()["parked"]
    assert parked["kind"] == "defect"
    assert "failing is a workflow, and an activity is a task's: start a child with" in parked["message"]


def test_any_client_starts_runs(fleet: InMemory) -> None:
    run = app.function("order").submit([5, ["bat"]])
    fleet.advance("3d")
    assert b"500 for 5" in run.result(5)


def test_a_run_that_does_not_exist(fleet: InMemory) -> None:
    for key in ("order-99", "H:test:1000000000099"):
        with pytest.raises(NotFoundError):
            order.get(key).details()


def test_wrong_arguments_are_refused_at_the_start(fleet: InMemory) -> None:
    with pytest.raises(TypeError):
        order.submit(1)  # type: ignore[call-arg]
    run = app.function("order").submit([1])
    fleet.advance(1)
    with pytest.raises(JobFailed, match="missing a required argument"):
        run.result(5)


def test_the_names_of_a_workflow_work_only_inside_of_one() -> None:
    with pytest.raises(UsageError, match="works only inside of a workflow"):
        workflow.now()


def test_each_decision_is_checked_by_a_replay(fleet: InMemory) -> None:
    run = unrepeatable.submit()
    fleet.settle()
    parked = run.details()["parked"]
    assert (parked["kind"], parked["recorded"][0], parked["code"][0]) == (
        "mismatch",
        'activity #1 label ["1"]',
        'activity #1 label ["2"]',
    )


def test_activities_that_start_or_end_late_raise_errors_that_name_the_clock(fleet: InMemory) -> None:
    run = late.submit()
    fleet.advance("149s")
    assert [one["attempt"] for one in run.details()["activities"] if one["function"] == "broken"] == [3]
    fleet.advance("1s")
    assert [one["function"] for one in run.details()["activities"]] == ["nobody"]
    fleet.advance("3m")
    assert run.result(5) == ["schedule_to_start", "schedule_to_close"]


def test_the_tags_of_a_submit_are_none_of_the_run() -> None:
    """Tags of a run are given by code of workers alone: one of them tells that a run is a part of a map."""
    own = App()

    @own.workflow
    async def tagged(value: int) -> int:
        return value

    with in_memory(own) as fleet:
        job = own.function(tagged.name).options(tags=[PART_TAG]).submit(b"[5]")
        assert fleet.result(job) == b"5"
        assert job.info()["tags"] == [PART_TAG]
        assert not fleet.history(job).events[0].get("tags")


def test_id_is_the_workflow_id_and_unique_its_former_name() -> None:
    app = App()

    @app.workflow(id=lambda number: f"own-{number}")
    async def own(number: int) -> str:
        return workflow.info().id

    with in_memory(app) as fleet:
        assert fleet.result(own.submit(1)) == "own-1"
        for renamed in (own.options(id="a"), own.options(id=lambda number: "a")):
            run = renamed.submit(2)
            assert fleet.result(run) == "a"
            assert run.details()["id"] == "a"
        with pytest.raises(UsageError, match="id has 65 bytes"):
            own.options(id="a" * 65)
