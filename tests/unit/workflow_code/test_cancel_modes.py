"""The effects of cancelling an activity: the option ``cancel``."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, JobFailed, UsageError
from mainspring.workflows import history as h
from mainspring.workflows import requests as d

from .fake_node import FakeNode, FakeWorker, code_of

if TYPE_CHECKING:
    from mainspring.workflow_code.model import Turn

app = App()
trace: list[Any] = []


@app.task
def act(number: int) -> int:
    return number


@app.task(cancel="wait")
def careful(number: int) -> int:
    return number


patient = act.options(cancel="wait")
abandoned = act.options(cancel="abandon")


@pytest.fixture(autouse=True)
def _empty_trace() -> None:
    trace.clear()


def start(call: Any) -> FakeWorker:
    worker = FakeWorker(code_of(call), FakeNode())
    worker.hold = True  # workers have the activities: a request does not end them
    worker.decide()
    return worker


def end(worker: FakeWorker, activity_id: str, result: Any = None) -> Turn:
    """End an activity with a result, although its cancellation was requested; decide."""
    state = worker.node.state
    state.activities[state.activity_ids[activity_id]].cancel_requested = 0
    worker.node.end_activity(activity_id, result=result)
    return worker.decide()


def kinds(turn: Turn) -> list[str]:
    return [type(one).__name__ for one in turn.decisions]


def replays(worker: FakeWorker) -> None:
    """Replay each prefix of the run's history."""
    for last in worker.node.commits[:-1]:
        replay = FakeWorker(worker.code, FakeNode())
        turn = replay.instance.deliver(worker.node.events[:last], worker.node.events[last - 1].at_us)
        assert turn.parked is None, (last, turn.parked)


async def traced(awaited: Any) -> None:
    """Add the outcome of an awaited thing to the trace."""
    try:
        trace.append(await awaited)
    except asyncio.CancelledError as error:
        trace.append(("cancelled", *error.args))
        raise


# ---- try ----


def test_try_requests_the_cancel_and_goes_on_at_once() -> None:
    async def run() -> None:
        await traced(act.submit(1))

    worker = start(run)
    worker.node.request_cancel("enough")
    turn = worker.decide()
    assert kinds(turn) == ["RequestCancelActivityTask", "CancelWorkflowExecution"]
    assert trace == [("cancelled", "enough")]
    replays(worker)


# ---- wait ----


@pytest.mark.parametrize("function", [patient, careful])
def test_wait_goes_on_when_the_activity_has_ended(function: Any) -> None:
    async def run() -> None:
        await traced(function.submit(1))

    worker = start(run)
    worker.node.request_cancel("enough")
    assert kinds(worker.decide()) == ["RequestCancelActivityTask"]
    assert trace == []
    worker.node.end_activity("1")
    assert kinds(worker.decide()) == ["CancelWorkflowExecution"]
    assert trace == [("cancelled", "enough")]
    replays(worker)


def test_wait_returns_a_result_and_cancels_the_next_wait() -> None:
    async def run() -> None:
        await traced(patient.submit(1))
        await traced(act.submit(2))
        trace.append("not reached")

    worker = start(run)
    worker.node.request_cancel("enough")
    worker.decide()
    turn = end(worker, "1", 7)
    assert trace == [7, ("cancelled", "enough")]
    assert kinds(turn) == ["ScheduleActivityTask", "RequestCancelActivityTask", "CancelWorkflowExecution"]
    replays(worker)


def test_wait_returns_a_result_that_came_after_a_timeout() -> None:
    async def run() -> None:
        async with asyncio.timeout(5):
            await traced(patient.submit(1))
        await traced(act.submit(2))

    worker = start(run)
    worker.node.fire()
    worker.decide()
    assert kinds(end(worker, "1", 7)) == ["ScheduleActivityTask"]
    end(worker, "4", 8)
    assert trace == [7, 8]
    assert isinstance(worker.node.closed, h.WorkflowExecutionCompleted)
    replays(worker)


def test_wait_makes_a_timeout_of_a_cancelled_activity() -> None:
    async def run() -> None:
        try:
            async with asyncio.timeout(5):
                await patient.submit(1)
        except TimeoutError:
            trace.append("late")

    worker = start(run)
    worker.node.fire()
    worker.decide()
    assert trace == []
    worker.node.end_activity("1")
    worker.decide()
    assert trace == ["late"]


def test_a_group_ends_when_its_activities_have_ended() -> None:
    async def run() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(traced(patient.submit(1)))
                group.create_task(traced(act.submit(2)))
        except* JobFailed as errors:
            trace.append(len(errors.exceptions))

    worker = start(run)
    worker.node.end_activity("2", error="ValueError")
    assert kinds(worker.decide()) == ["RequestCancelActivityTask"]
    assert trace == []
    worker.node.end_activity("1")
    worker.decide()
    assert trace == [("cancelled",), 1]
    replays(worker)


def test_several_cancels_make_one_request() -> None:
    async def run() -> None:
        job: Any = patient.submit(1)
        trace.extend([job.cancel("one"), job.cancel("two"), job.state])
        await traced(job)

    worker = start(run)
    assert kinds(worker.turns[0]) == ["ScheduleActivityTask", "RequestCancelActivityTask"]
    worker.decide()  # no worker has had the activity: it is cancelled at once
    assert trace == [True, True, "running", ("cancelled", "one")]


def test_two_cancels_of_a_waiting_task_are_delivered_as_one() -> None:
    async def run() -> None:
        task = asyncio.create_task(work())
        await act.submit(1)
        task.cancel("one")
        task.cancel("two")
        await asyncio.wait([task])

    async def work() -> None:
        await traced(patient.submit(2))
        try:
            await traced(act.submit(3))
        except asyncio.CancelledError:
            await traced(act.submit(4))

    worker = start(run)
    end(worker, "1")
    end(worker, "2", 7)
    assert trace == [7, ("cancelled", "one")]
    (last,) = worker.node.activities
    end(worker, last, 9)
    assert trace == [7, ("cancelled", "one"), 9]
    assert worker.node.closed is not None


def test_the_run_closes_when_the_activities_of_its_tasks_have_ended() -> None:
    async def run() -> str:
        patient.submit(1)  # nobody awaits it
        tasks.append(asyncio.create_task(traced(patient.submit(2))))
        tasks.append(asyncio.create_task(traced(act.submit(3))))
        await act.submit(4)
        return "done"

    tasks: list[Any] = []
    worker = start(run)
    turn = end(worker, "4")
    assert kinds(turn) == ["RequestCancelActivityTask"] * 3
    assert worker.node.closed is None
    end(worker, "2", 5)
    worker.node.end_activity("1")
    assert kinds(worker.decide()) == ["CompleteWorkflowExecution"]
    assert trace == [("cancelled",), 5]
    closed: Any = worker.node.closed
    assert json.loads(closed.result) == "done"
    replays(worker)


def test_a_defect_parks_the_run_without_cancelling_its_activities() -> None:
    async def run() -> None:
        patient.submit(1)
        await act.submit(2)
        raise TypeError("mistake")

    worker = start(run)
    turn = end(worker, "2")
    assert turn.parked is not None
    assert turn.parked.kind == "defect"
    assert turn.decisions == ()


# ---- abandon ----


def test_abandon_goes_on_and_requests_nothing() -> None:
    async def run() -> None:
        task = asyncio.create_task(traced(abandoned.submit(1)))
        await act.submit(2)
        task.cancel("enough")
        await asyncio.wait([task])
        await act.submit(3)

    worker = start(run)
    assert kinds(end(worker, "2")) == ["ScheduleActivityTask"]
    assert trace == [("cancelled", "enough")]
    end(worker, "1", 7)
    end(worker, "3")
    assert worker.node.closed is not None
    replays(worker)


def test_the_close_keeps_the_job_of_an_abandoned_activity() -> None:
    async def run() -> None:
        abandoned.submit(1)
        act.submit(2)
        await act.submit(3)

    worker = start(run)
    jobs = {key: event.job for key, event in worker.node.activities.items()}
    end(worker, "3")
    assert worker.node.closed is not None
    assert worker.node.withdrawn == [jobs["2"]]


# ---- outside of workflows ----


def test_a_wrong_mode_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cancel must be 'try', 'wait' or 'abandon'"):
        act.options(cancel="later")  # type: ignore[arg-type]


def test_outside_of_workflows_the_option_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"act: cancel is for activities of workflows; cancel other jobs by job.cancel\(\)"
    ):
        patient.submit(1)


def test_the_decision_marks_an_abandoned_activity() -> None:
    async def run() -> None:
        await asyncio.gather(act.submit(1), patient.submit(2), abandoned.submit(3))

    (*commands,) = start(run).turns[0].decisions
    assert all(isinstance(one, d.ScheduleActivityTask) for one in commands)
    assert [one.abandoned for one in commands] == [False, False, True]  # type: ignore[union-attr]
