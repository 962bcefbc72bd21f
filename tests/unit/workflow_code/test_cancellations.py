"""Cancellations of runs and tasks: none is forgotten, none takes the place of an outcome, and a run is cancelled once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from mainspring import App, workflow
from mainspring.worker.workflows.replay_checks import replay
from mainspring.workflows import history as h
from mainspring.workflows.model import SEMANTICS

from .fake_node import FakeNode, FakeWorker, code_of

app = App()
trace: list[Any] = []


@app.task
def act(number: int) -> int:
    return number


patient = act.options(cancel="wait")


@pytest.fixture(autouse=True)
def _empty_trace() -> None:
    trace.clear()


def start(call: Any, *, semantics: int | None = None) -> FakeWorker:
    """Begin a run. ``semantics``: those that the node of its start records."""
    node = FakeNode()
    if semantics is not None:
        node.events[0] = msgspec.structs.replace(node.events[0], semantics=semantics)
    worker = FakeWorker(code_of(call), node)
    worker.hold = True  # workers have the activities: a request does not end them
    worker.decide()
    return worker


def end(worker: FakeWorker, *ids: str, result: Any = None) -> None:
    """End activities with a result, although their cancellation may be requested."""
    state = worker.node.state
    for one in ids:
        state.activities[state.activity_ids[one]].cancel_requested = 0
    worker.node.end_activity(*ids, result=result)


def replays(worker: FakeWorker) -> None:
    """Replay the run's history, and each prefix of it."""
    kept = trace[:]
    assert replay(worker.code, worker.node.events).difference is None
    for last in worker.node.commits[:-1]:
        other = FakeWorker(worker.code, FakeNode())
        turn = other.instance.deliver(worker.node.events[:last], worker.node.events[last - 1].at_us)
        assert turn.parked is None, (last, turn.parked)
    trace[:] = kept


def scheduled(worker: FakeWorker) -> list[bytes]:
    """Return the arguments of all activities, in order."""
    return [event.input for event in worker.node.events if isinstance(event, h.ActivityTaskScheduled)]


async def traced(awaited: Any) -> Any:
    """Add the outcome of an awaited thing to the trace."""
    try:
        trace.append(await awaited)
    except asyncio.CancelledError:
        trace.append("cancelled")
        raise
    return trace[-1]


# ---- an outcome and a cancellation in one activation ----


async def undone() -> None:
    async with workflow.Saga() as saga:
        payment = await patient.submit(1)
        saga.undo(act, payment)
        await workflow.sleep(1000)


async def undone_by_a_helper() -> None:
    async def charge() -> int:
        return await patient.submit(1)

    async with workflow.Saga() as saga:
        payment = await asyncio.create_task(charge())
        saga.undo(act, payment)
        await workflow.sleep(1000)


@pytest.mark.parametrize("code", [undone, undone_by_a_helper])
@pytest.mark.parametrize("first", ["end", "cancel"])
def test_code_gets_a_result_that_comes_together_with_a_cancellation(code: Any, first: str) -> None:
    worker = start(code)
    if first == "cancel":
        worker.node.request_cancel("enough")
    worker.node.end_activity("1", result=7)
    if first == "end":
        worker.node.request_cancel("enough")
    worker.decide()
    assert scheduled(worker) == [b"[1]", b"[7]"]  # the payment is undone
    (undoing,) = worker.node.activities
    end(worker, undoing)
    worker.decide()
    assert isinstance(worker.node.closed, h.WorkflowExecutionCanceled)
    replays(worker)


@pytest.mark.parametrize("code", [undone, undone_by_a_helper])
def test_code_gets_a_result_that_comes_after_the_cancellation(code: Any) -> None:
    worker = start(code)
    worker.node.request_cancel("enough")
    worker.decide()
    end(worker, "1", result=7)
    worker.decide()
    assert scheduled(worker) == [b"[1]", b"[7]"]
    replays(worker)


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("first", ["end", "timeout"])
@pytest.mark.parametrize("helps", [False, True])
def test_code_gets_a_result_that_comes_together_with_a_timeout(goes_on: bool, first: str, helps: bool) -> None:
    async def inner() -> int:
        return await patient.submit(1)

    async def run() -> str:
        try:
            async with asyncio.timeout(5):
                trace.append(await (asyncio.create_task(inner()) if helps else inner()))
                if goes_on:
                    await workflow.sleep(1000)
        except TimeoutError:
            return "late"
        return "in time" if await act.submit(2) else "none"

    worker = start(run)
    if first == "end":
        worker.node.end_activity("1", result=7)
    worker.node.fire()
    if first == "timeout":
        worker.node.end_activity("1", result=7)
    worker.decide()
    assert trace[:1] == [7]
    if not goes_on:  # the timeout is over: it cancels nothing that follows
        (following,) = worker.node.activities
        end(worker, following, result=8)
        worker.decide()
    closed = worker.node.closed
    assert isinstance(closed, h.WorkflowExecutionCompleted)
    assert closed.result == (b'"late"' if goes_on else b'"in time"')
    replays(worker)


def test_a_request_and_a_timeout_together_are_two() -> None:
    async def run() -> None:
        try:
            async with asyncio.timeout(5):
                await traced(patient.submit(1))
        except TimeoutError:
            trace.append("late")
        await traced(act.submit(2))

    worker = start(run)
    worker.node.request_cancel()
    worker.node.fire()
    worker.node.end_activity("1", result=7)
    worker.decide()
    assert trace == [7, "cancelled"]
    assert isinstance(worker.node.closed, h.WorkflowExecutionCanceled)
    replays(worker)


# ---- a cancellation is not forgotten ----


def test_a_cancellation_is_raised_after_all_jobs_that_succeed_in_spite_of_it() -> None:
    async def run() -> None:
        first, second, third = (patient.submit(one) for one in (1, 2, 3))
        for job in (first, second, third):
            await traced(job)
        await traced(workflow.sleep(1000))

    worker = start(run)
    worker.node.request_cancel()
    worker.decide()
    for one in ("1", "2", "3"):
        end(worker, one, result=int(one))
        worker.decide()
    assert trace == [1, 2, 3, "cancelled"]
    assert isinstance(worker.node.closed, h.WorkflowExecutionCanceled)
    replays(worker)


def test_a_cancellation_is_not_forgotten_by_a_task_that_waits_for_another() -> None:
    async def inner() -> int:
        return await patient.submit(1)

    async def run() -> None:
        await traced(asyncio.create_task(inner()))
        await traced(workflow.sleep(1000))

    worker = start(run)
    worker.node.request_cancel()
    worker.decide()
    end(worker, "1", result=7)
    worker.decide()
    assert trace == [7, "cancelled"]
    replays(worker)


def test_a_task_that_has_dealt_with_a_cancellation_does_not_pass_it_on() -> None:
    """As in asyncio."""

    async def inner() -> str:
        await patient.submit(1)
        try:
            await workflow.sleep(1000)
        except asyncio.CancelledError:
            return "partial"
        return "whole"

    async def run() -> str:
        return str(await asyncio.create_task(inner())) + str(await act.submit(2))

    worker = start(run)
    worker.node.request_cancel()
    worker.decide()
    end(worker, "1", result=7)
    worker.decide()
    (last,) = worker.node.activities
    end(worker, last, result=8)
    worker.decide()
    assert worker.node.closed.result == b'"partial8"'
    replays(worker)


# ---- a run is cancelled once ----


async def cleans_up() -> None:
    try:
        await workflow.sleep(1000)
    finally:
        await act.submit(1)
        await act.submit(2)


def test_a_second_request_does_not_interrupt_the_cleanup_of_the_first() -> None:
    worker = start(cleans_up)
    for _ in range(2):
        worker.node.request_cancel("enough")
        worker.decide()
    for _ in range(2):
        (one,) = worker.node.activities
        end(worker, one)
        worker.node.request_cancel("at last")
        worker.decide()
    assert scheduled(worker) == [b"[1]", b"[2]"]
    assert isinstance(worker.node.closed, h.WorkflowExecutionCanceled)
    replays(worker)


def test_code_that_goes_on_after_a_cancellation_takes_another_one() -> None:
    async def run() -> None:
        for _ in range(2):
            try:
                await workflow.sleep(1000)
            except asyncio.CancelledError:
                trace.append("cancelled")
                task: Any = asyncio.current_task()
                task.uncancel()

    worker = start(run)
    for _ in range(2):
        worker.node.request_cancel()
        worker.decide()
    assert trace == ["cancelled"] * 2
    assert isinstance(worker.node.closed, h.WorkflowExecutionCompleted)
    replays(worker)


# ---- the tasks that the workflow leaves ----


def test_the_close_waits_for_the_cleanup_of_the_tasks_that_the_workflow_leaves() -> None:
    async def hold() -> None:
        try:
            await workflow.sleep(1000)
        finally:
            trace.append(await act.submit(1))
            await workflow.sleep(5)
            trace.append(await act.submit(2))

    async def run() -> str:
        task = asyncio.create_task(hold())
        await workflow.sleep(1)
        assert not task.done()
        return "ended"

    worker = start(run)
    worker.node.fire()
    worker.decide()
    for _ in range(2):
        assert worker.node.closed is None
        (one,) = worker.node.activities
        end(worker, one, result=int(one))
        worker.decide()
        if worker.node.closed is None:
            worker.node.fire()
            worker.decide()
    assert len(trace) == 2
    assert worker.node.closed.result == b'"ended"'
    replays(worker)


# ---- what earlier versions have recorded ----


def test_a_run_that_an_earlier_node_began_keeps_its_behaviour() -> None:
    worker = start(cleans_up, semantics=0)
    for _ in range(2):
        worker.node.request_cancel("enough")
        worker.decide()
    assert scheduled(worker) == [b"[1]"]  # the second request interrupts the cleanup
    assert isinstance(worker.node.closed, h.WorkflowExecutionCanceled)
    replays(worker)


def test_a_replay_repeats_each_decision_with_the_behaviour_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of the last version decides about a run that a node of this version has begun."""

    async def run() -> None:
        trace.append(await patient.submit(1))
        trace.append(await act.submit(2))

    worker = start(run)
    with monkeypatch.context() as patched:
        patched.setattr("mainspring.workflow_code.instance.SEMANTICS", 0)
        worker.restart()
        worker.node.end_activity("1", result=7)
        worker.node.request_cancel()
        worker.decide()
    assert trace == []  # the cancellation took the place of the result
    assert [one.semantics for one in worker.node.events if isinstance(one, h.DecisionTaskCompleted)] == [SEMANTICS, 0]
    replays(worker)
