"""The memory of a run that leaves the worker is free at once: no cycle keeps it until the collector looks.

Each case was seen to fail without the code that breaks its cycles.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, workflow
from mainspring.errors import JobError
from mainspring.workflow_code.channels import Channel
from mainspring.workflows.history import ActivityTaskScheduled, MarkerRecorded

from .fake_node import FakeNode, FakeWorker, code_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

app = App()
notices: Channel[int] = Channel("notices", int)


@app.task
def act(number: int) -> int:
    return number


class Value:
    """A value in a workflow's memory."""


kept: list[weakref.ref[Any]] = []
"""Objects of a run: a value of its code, and its loop."""


def keep() -> Value:
    value = Value()
    kept.extend((weakref.ref(value), weakref.ref(asyncio.get_running_loop())))
    return value


def fail() -> None:
    raise ValueError("no")


# ---- runs that wait ----


async def activity(value: Value) -> None:
    await act.submit(1)


async def bare_future(value: Value) -> None:
    await asyncio.get_running_loop().create_future()


async def nested_gathers(value: Value) -> None:
    await asyncio.gather(asyncio.gather(act.submit(1), act.submit(2)), workflow.sleep(5))


async def kept_gathers(value: Value) -> None:
    outer = asyncio.gather(asyncio.gather(act.submit(1)), act.submit(2))
    waiting: list[asyncio.Future[Any]] = [outer, asyncio.create_task(activity(value))]
    await asyncio.wait(waiting, timeout=5)


async def completed(value: Value) -> None:
    waiting: list[Any] = [activity(value), act.submit(2)]
    for one in asyncio.as_completed(waiting, timeout=5):
        await one


async def group(value: Value) -> None:
    async with asyncio.timeout(9), asyncio.TaskGroup() as tasks:
        tasks.create_task(activity(value))
        tasks.create_task(nested_gathers(value))


async def shielded(value: Value) -> None:
    await asyncio.shield(asyncio.create_task(activity(value)))


async def signals(value: Value) -> None:
    await asyncio.gather(notices.receive(timeout=3), workflow.wait_until(lambda: value is None))


async def steps(value: Value) -> None:
    await asyncio.gather(workflow.step(fail), workflow.step(fail, record="together"), workflow.sleep(5))


async def generator(value: Value) -> None:
    async def items() -> AsyncIterator[Value]:
        await activity(value)
        yield value

    async for _ in items():
        pass


async def after_an_error(value: Value) -> None:
    """Wait after an activity has failed in a task."""
    try:
        await asyncio.create_task(errors(value))
    except JobError:
        await bare_future(value)


async def errors(value: Value) -> None:
    outcome = await act.submit(1).outcome()
    assert not outcome.ok
    with contextlib.suppress(JobError):
        await workflow.step(fail)
    await act.submit(2)


async def after_a_cancel(value: Value) -> None:
    found = await asyncio.gather(_cancelled(value), return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    await bare_future(value)


async def _cancelled(value: Value) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    del task
    await act.submit(1)


async def condition_of_a_failed_task(value: Value) -> None:
    tasks = [asyncio.create_task(errors(value))]
    await workflow.wait_until(lambda: tasks[0].done() and value is None)


async def after_a_timer(value: Value) -> None:
    try:
        await completed(value)
    except TimeoutError:
        await bare_future(value)


# ---- runs that have ended ----


async def returning(value: Value) -> None:
    await asyncio.wait([asyncio.create_task(workflow.sleep(5))], timeout=1)


async def failing(value: Value) -> None:
    await asyncio.create_task(errors(value))


async def parking(value: Value) -> None:
    raise TypeError("a defect")


CALLS = [
    activity,
    bare_future,
    nested_gathers,
    kept_gathers,
    completed,
    group,
    shielded,
    signals,
    steps,
    generator,
    after_an_error,
    after_a_cancel,
    condition_of_a_failed_task,
    after_a_timer,
    returning,
    failing,
    parking,
]
FAILED = [after_an_error, condition_of_a_failed_task, failing]
"""Their activities fail."""


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def evicted_at_the_end() -> None:
    """Do not keep the runs until the end of the test: their memory is looked at before."""


def drive(call: Callable[[Value], Any]) -> weakref.ref[Any]:
    """Run a workflow until it has ended or waits for nothing that comes, and evict it."""

    async def run() -> None:
        await call(keep())

    kept.clear()
    worker = FakeWorker(code_of(run), FakeNode())
    turn = worker.decide()
    for _ in range(5):
        if turn.parked or worker.node.closed:
            break
        if worker.running and call is not steps:
            turn = worker.end_steps()
        elif worker.node.decision_waits:
            turn = worker.decide()
        elif call in FAILED and worker.node.activities:
            worker.node.end_activity(*worker.node.activities, error="ValueError")
        elif call in (after_a_timer, returning) and worker.node.state.timers:
            worker.node.fire()
        else:
            break
    worker.instance.evict()
    return weakref.ref(worker.instance)


@pytest.mark.parametrize("call", CALLS)
def test_an_evicted_run_is_freed_without_the_collector(call: Callable[[Value], Any]) -> None:
    instance = drive(call)
    assert instance() is None
    assert [one() for one in kept] == [None, None]


async def own_cycle(value: Value) -> None:
    value.cycle = (value, asyncio.get_running_loop())  # type: ignore[attr-defined]
    await act.submit(1)


def test_a_cycle_of_the_users_own_keeps_the_loop_alone() -> None:
    assert drive(own_cycle)() is None
    value, loop = kept
    assert value() is not None
    assert loop() is not None


def test_the_record_of_a_side_effect_is_kept_until_the_code_has_called_it() -> None:
    async def run() -> None:
        workflow.side_effect(lambda: 1)
        await act.submit(1)
        workflow.side_effect(lambda: 2)
        await asyncio.get_running_loop().create_future()

    worker = FakeWorker(code_of(run), FakeNode())
    worker.decide()
    worker.node.end_activity("1", result=1)
    worker.decide()
    replaying = FakeWorker(code_of(run), worker.node)
    replaying.decide_only()
    commands = [one for one in worker.node.events if isinstance(one, (MarkerRecorded, ActivityTaskScheduled))]
    assert len(commands) == 3
    assert len({sys.getrefcount(one) for one in commands}) == 1
