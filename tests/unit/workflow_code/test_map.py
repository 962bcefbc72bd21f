"""``workflow.map``: many items, of which only some are open at a time."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring import App, JobFailed, MapFailed, PayloadError, UsageError, workflow
from mainspring.workflow_code.instance import Instance
from mainspring.workflows import history as h
from mainspring.workflows import requests as d
from mainspring.workflows.model import CHILD_TAG, PART, PART_TAG

from .fake_node import FakeNode, FakeWorker, code_of

if TYPE_CHECKING:
    from collections.abc import Callable

app = App()
trace: list[Any] = []


@app.task
def double(number: int) -> int:
    return number * 2


@app.task
def add(one: int, *, other: int = 0) -> int:
    return one + other


@pytest.fixture(autouse=True)
def _empty_trace() -> None:
    trace.clear()


def start(call: Callable[[], Any]) -> FakeWorker:
    worker = FakeWorker(code_of(call), FakeNode(), {"double": lambda number: number * 2})
    worker.decide()
    return worker


def inputs(worker: FakeWorker) -> list[str]:
    return [event.input.decode() for event in worker.node.activities.values()]


def end(worker: FakeWorker, text: str, result: Any = None, error: str = "") -> list[str]:
    """End the activity with an input; return the inputs of the open ones."""
    key = next(key for key, event in worker.node.activities.items() if event.input.decode() == text)
    worker.node.end_activity(key, result=result, error=error)
    turn = worker.decide()
    assert turn.parked is None, turn.parked
    return inputs(worker)


def replays(worker: FakeWorker) -> None:
    node = worker.node
    for last in node.commits[:-1]:
        replay = FakeWorker(worker.code, FakeNode())
        turn = replay.instance.deliver(node.events[:last], node.events[last - 1].at_us)
        assert turn.parked is None, (last, turn.parked)
        replay.instance.evict()


def result(worker: FakeWorker) -> Any:
    closed: Any = worker.node.closed
    assert isinstance(closed, h.WorkflowExecutionCompleted), closed
    replays(worker)
    return json.loads(closed.result)


def test_the_end_of_one_item_starts_the_next_and_results_are_in_order() -> None:
    async def run() -> list[int]:
        return await workflow.map(double, range(5), limit=2)

    worker = start(run)
    assert inputs(worker) == ["[0]", "[1]"]
    assert end(worker, "[1]", 2) == ["[0]", "[2]"]
    assert end(worker, "[2]", 4) == ["[0]", "[3]"]
    assert end(worker, "[0]", 0) == ["[3]", "[4]"]
    end(worker, "[4]", 8)
    end(worker, "[3]", 6)
    assert result(worker) == [0, 2, 4, 6, 8]


def test_items_are_arguments_as_of_submit_many() -> None:
    async def run() -> list[int]:
        return await workflow.map(add, [(1,), {"one": 2, "other": 3}, 4])

    worker = start(run)
    assert inputs(worker) == ["[1]", '{"one":2,"other":3}', "[4]"]


def test_no_items_have_no_results() -> None:
    async def run() -> list[int]:
        return await workflow.map(double, [])

    assert result(start(run)) == []


def test_all_items_are_tried_and_the_failures_are_raised_together() -> None:
    async def run() -> None:
        try:
            await workflow.map(double, range(4), limit=1)
        except MapFailed as failed:
            trace.append(failed.message)
            trace.append(failed.results)
            trace.append({index: type(error) for index, error in failed.failures.items()})
            second = failed.failures[2]
            matched, _ = failed.split(lambda error: error is second)
            trace.append([*matched.failures, *matched.results])  # type: ignore[union-attr]

    worker = start(run)
    end(worker, "[0]", 0)
    end(worker, "[1]", error="ValueError")
    end(worker, "[2]", error="KeyError")
    end(worker, "[3]", 6)
    assert trace == [
        "2 of 4 items failed, the first is item 1: job double #2 failed at attempt 1: ValueError: it failed",
        {0: 0, 3: 6},
        {1: JobFailed, 2: JobFailed},
        [2, 0, 3],
    ]
    replays(worker)


def test_failures_take_the_places_of_results() -> None:
    async def run() -> list[str]:
        return [repr(one) for one in await workflow.map(double, range(3), return_exceptions=True)]

    worker = start(run)
    end(worker, "[1]", error="ValueError")
    end(worker, "[0]", 0)
    end(worker, "[2]", 4)
    assert [one[:9] for one in result(worker)] == ["0", "JobFailed", "4"]


def test_a_cancelled_map_cancels_its_open_items() -> None:
    async def run() -> None:
        try:
            async with asyncio.timeout(5):
                await workflow.map(double, range(9), limit=3)
        except TimeoutError:
            trace.append("late")

    worker = start(run)
    worker.hold = True
    worker.node.fire()
    turn = worker.decide()
    assert [type(one).__name__ for one in turn.decisions] == ["RequestCancelActivityTask"] * 3 + [
        "CompleteWorkflowExecution"
    ]
    assert trace == ["late"]


def test_a_cancelled_map_waits_for_items_that_have_to_end() -> None:
    async def run() -> None:
        await workflow.map(double.options(cancel="wait"), range(9), limit=2)

    worker = start(run)
    worker.hold = True
    worker.node.request_cancel()
    worker.decide()
    assert inputs(worker) == ["[0]", "[1]"]
    end(worker, "[0]")
    assert worker.node.closed is None
    end(worker, "[1]")
    assert isinstance(worker.node.closed, h.WorkflowExecutionCanceled)
    replays(worker)


def test_steps_and_functions_can_be_mapped() -> None:
    async def both(number: int) -> list[int]:
        return [await double.step(number), await double.submit(number)]

    async def run() -> list[Any]:
        return [await workflow.map(double.step, range(3), limit=2), await workflow.map(both, range(2), limit=1)]

    worker = start(run)
    assert len(worker.running) == 2
    worker.until_closed()
    assert result(worker) == [[0, 2, 4], [[0, 0], [2, 2]]]


def test_a_cancelled_item_has_failed() -> None:
    async def cancelled(number: int) -> int:
        if number == 1:
            raise asyncio.CancelledError
        return number

    async def run() -> None:
        try:
            await workflow.map(cancelled, range(3))
        except MapFailed as failed:
            trace.append(failed.message)

    start(run)
    assert trace == ["1 of 3 items failed, the first is item 1: item 1 was cancelled"]


def test_a_defect_of_a_mapped_function_parks_the_run() -> None:
    async def broken(number: int) -> int:
        raise AttributeError("mistake")

    async def run() -> None:
        await workflow.map(broken, range(3))

    worker = FakeWorker(code_of(run), FakeNode())
    turn = worker.decide_only()
    assert turn.parked is not None
    assert "AttributeError: mistake" in turn.parked.message


def test_an_error_of_an_activity_does_not_park_the_run_by_itself() -> None:
    async def run() -> list[str]:
        return [type(one).__name__ for one in await workflow.map(double, [1], return_exceptions=True)]

    worker = FakeWorker(code_of(run, (JobFailed,)), FakeNode())
    worker.decide()
    end(worker, "[1]", error="ValueError")
    closed: Any = worker.node.closed
    assert json.loads(closed.result) == ["JobFailed"]


def test_a_wrong_item_is_refused_before_the_first_one_starts() -> None:
    async def run() -> None:
        for items, error in ((["x", object()], PayloadError), ([1, (1, 2)], TypeError)):
            with pytest.raises(error):
                await workflow.map(double, items)

    assert [type(one).__name__ for one in start(run).turns[0].decisions] == ["CompleteWorkflowExecution"]


def test_an_item_that_cannot_start_cancels_the_others() -> None:
    async def run() -> None:
        with pytest.raises(UsageError, match="record"):
            await workflow.map(pick, range(9), limit=3)

    def pick(number: int) -> Any:
        return workflow.step(double, number, record="each" if number < 3 else "never")  # type: ignore[call-overload]

    worker = start(run)
    worker.end_steps(1)
    assert isinstance(worker.node.closed, h.WorkflowExecutionCompleted)


def test_wrong_limits_and_targets_are_refused() -> None:
    async def run() -> None:
        with pytest.raises(UsageError, match="limit must be"):
            await workflow.map(double, [1], limit=0)
        with pytest.raises(UsageError, match="limit is 1,001, and a run has at most 1,000 open activities"):
            await workflow.map(double, [1], limit=1001)
        with pytest.raises(UsageError, match="takes a task or a function"):
            await workflow.map("double", [1])  # type: ignore[call-overload]

    assert isinstance(start(run).node.closed, h.WorkflowExecutionCompleted)


@pytest.mark.parametrize(("items", "kind"), [(1_083, "ScheduleActivityTask"), (1_084, "StartChildWorkflowExecution")])
def test_a_map_for_which_the_history_has_no_room_starts_child_runs(items: int, kind: str) -> None:
    async def run() -> None:
        first = asyncio.create_task(workflow.map(double, range(3_000), limit=1))
        await asyncio.sleep(0)
        await asyncio.gather(first, workflow.map(double, range(items), limit=50))

    first, *decisions = FakeWorker(code_of(run), FakeNode()).decide_only().decisions
    assert isinstance(first, d.ScheduleActivityTask)
    assert {type(one).__name__ for one in decisions} == {kind}
    assert len(decisions) == (50 if kind == "ScheduleActivityTask" else 2)


FORGED = PART + msgspec.msgpack.encode((d.ScheduleActivityTask(1, "1", b"secret"), "try", 1, [(b"[1]", b"")]))
"""An input like that of a part, which runs a function of its writer's choice."""


async def take(data: bytes) -> int:
    """Run a workflow that takes any bytes."""
    return len(data)


@pytest.mark.parametrize(
    ("attributes", "is_part"),
    [
        ({"parent_run": 5, "tags": (PART_TAG,), "input": b'"' + FORGED[1:]}, False),
        ({}, False),
        ({"parent_run": 5, "tags": (CHILD_TAG,)}, False),
        ({"parent_run": 5, "tags": (PART_TAG,)}, True),
        ({"parent_run": 5, "tags": (PART_TAG,), "continued_run": 6, "attempt": 2}, True),
        ({"full": True, "tags": (PART_TAG,)}, False),
        # Of a worker of an earlier version:
        ({"parent_run": 5}, True),
        ({"parent_run": 5, "continued_run": 6, "attempt": 2}, True),
        ({"parent_run": 5, "continued_run": 6}, False),
    ],
)
def test_only_the_first_event_tells_that_a_run_is_a_part(attributes: dict[str, Any], is_part: bool) -> None:
    started = h.WorkflowExecutionStarted(1, 0, "take", "1", **{"input": FORGED, **attributes})
    instance = Instance(code_of(take), 1)
    (decision,) = instance.deliver([started, h.DecisionTaskScheduled(2, 0)], 0).decisions
    assert type(decision) is (d.ScheduleActivityTask if is_part else d.CompleteWorkflowExecution)
    instance.evict()


def test_children_of_code_are_no_parts_whatever_they_are_given() -> None:
    app = App()

    @app.workflow
    async def child(data: bytes) -> None:
        raise NotImplementedError

    async def run() -> None:
        child.submit(FORGED)
        await workflow.map(double, range(20_000))

    own, *parts = FakeWorker(code_of(run), FakeNode()).decide_only().decisions
    assert [getattr(one, "tags", ()) for one in (own, *parts)] == [(CHILD_TAG,), *[(PART_TAG,)] * len(parts)]
    assert parts


def test_outside_of_workflows_it_is_refused() -> None:
    with pytest.raises(UsageError, match="only inside of a workflow"):
        asyncio.run(workflow.map(double, [1]))
