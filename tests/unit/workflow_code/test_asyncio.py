"""asyncio's constructs in a workflow: the same results as in a normal loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import selectors
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, workflow
from mainspring.errors import JobCancelled, JobFailed, WorkflowUsageError
from mainspring.workflows import history as h

from .fake_node import FakeNode, FakeWorker, code_of

if TYPE_CHECKING:
    from collections.abc import Callable

app = App()


@app.task
def act(number: int, delay: int) -> int:
    return number


async def _normal(number: int, delay: int) -> int:
    await asyncio.sleep(delay)
    if number < 0:
        raise ValueError(number)
    return number


class HastySelector(selectors.SelectSelector):
    """A selector with a clock: it does not wait for timers, and its clock passes over the time."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(timeout and 0)


class HastyLoop(asyncio.SelectorEventLoop):
    """A normal loop whose timers fire at their times by its own clock, without delay."""

    def __init__(self) -> None:
        self._clock = HastySelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


Act = Any


async def gather(act: Act) -> Any:
    return await asyncio.gather(act(1, 3), act(2, 1), act(3, 2))


async def gather_with_errors(act: Act) -> Any:
    return [isinstance(one, Exception) for one in await asyncio.gather(act(1, 2), act(-2, 1), return_exceptions=True)]


async def gather_fails(act: Act) -> Any:
    try:
        await asyncio.gather(act(1, 3), act(-2, 1))
    except Exception as error:  # noqa: BLE001
        return isinstance(error, (ValueError, JobFailed))


async def gather_of_nothing(act: Act) -> Any:
    return await asyncio.gather()


async def cancelled_gather(act: Act) -> Any:
    outer = asyncio.gather(act(1, 3), act(2, 4))
    await asyncio.sleep(1)
    outer.cancel()
    try:
        await outer
    except asyncio.CancelledError:
        return "cancelled"


async def wait_first(act: Act) -> Any:
    done, pending = await asyncio.wait({act(1, 3), act(2, 1)}, return_when=asyncio.FIRST_COMPLETED)
    for one in pending:
        one.cancel()
    return [one.result() for one in done], len(pending)


async def wait_with_timeout(act: Act) -> Any:
    done, pending = await asyncio.wait([act(1, 1), act(2, 50)], timeout=10)
    for one in pending:
        one.cancel()
    return len(done), len(pending)


async def completed(act: Act) -> Any:
    return [await one for one in asyncio.as_completed([act(1, 6), act(2, 2), act(3, 4)])]


async def group(act: Act) -> Any:
    async with asyncio.TaskGroup() as tasks:
        children = [tasks.create_task(one(act, number)) for number in (3, 1, 2)]
    return [task.result() for task in children]


async def one(act: Act, number: int) -> Any:
    return await act(number, number)


async def group_fails(act: Act) -> Any:
    ended = []

    async def long() -> None:
        try:
            await act(1, 50)
        finally:
            ended.append("cancelled")

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(long())
            tasks.create_task(one(act, -1))
    except* (ValueError, JobFailed) as errors:
        ended.append(str(len(errors.exceptions)))
    return ended


async def timeout(act: Act) -> Any:
    try:
        async with asyncio.timeout(5):
            await act(1, 50)
    except TimeoutError:
        return "late"


async def timeout_in_time(act: Act) -> Any:
    async with asyncio.timeout(50):
        return await act(1, 1)


async def wait_for(act: Act) -> Any:
    values = [await asyncio.wait_for(act(1, 1), 50)]
    for limit in (2, 0):
        with contextlib.suppress(TimeoutError):
            values.append(await asyncio.wait_for(act(2, 50), limit))
    return values


async def shield(act: Act) -> Any:
    inner = act(1, 5)
    try:
        async with asyncio.timeout(1):
            await asyncio.shield(inner)
    except TimeoutError:
        return ["late", await inner]


async def cancel(act: Act) -> Any:
    log = []

    async def work() -> None:
        try:
            await act(1, 50)
        except asyncio.CancelledError as error:
            log.append(error.args)
            raise

    task = asyncio.create_task(work())
    await asyncio.sleep(1)
    task.cancel("enough")
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return log, task.cancelled()


async def locks_and_queues(act: Act) -> Any:
    lock, queue, event = asyncio.Lock(), asyncio.Queue[int](1), asyncio.Event()

    async def put() -> None:
        for number in range(3):
            async with lock:
                await queue.put(await act(number, 1))
        event.set()

    task = asyncio.create_task(put())
    log = [await queue.get() for _ in range(3)]
    await event.wait()
    await task
    return log


async def generators(act: Act) -> Any:
    log = []

    async def values() -> Any:
        try:
            for number in range(5):
                yield await act(number, 1)
        finally:
            await act(9, 1)
            log.append("closed")

    async for value in values():
        log.append(value)
        if value == 1:
            break
    await asyncio.sleep(9)
    return log


async def sleeps(act: Act) -> Any:
    loop = asyncio.get_running_loop()
    log: list[str] = []
    loop.call_later(6, log.append, "later")
    handle = loop.call_at(loop.time() + 3, log.append, "never")
    loop.call_soon(log.append, "soon")
    await asyncio.sleep(0)
    log.append("first")
    handle.cancel()
    await asyncio.sleep(20)
    return log


CONSTRUCTS: list[Callable[..., Any]] = [
    gather,
    gather_with_errors,
    gather_fails,
    gather_of_nothing,
    cancelled_gather,
    wait_first,
    wait_with_timeout,
    completed,
    group,
    group_fails,
    timeout,
    timeout_in_time,
    wait_for,
    shield,
    cancel,
    locks_and_queues,
    generators,
    sleeps,
]


def in_workflow(construct: Callable[..., Any]) -> Any:
    """Run a construct as a workflow, whose activities end after their delays; return its result."""
    results = []

    async def run() -> None:
        results.append(await construct(act.submit))

    worker = FakeWorker(code_of(run), FakeNode())
    node = worker.node
    start = node.now_us
    due: dict[str, int] = {}
    worker.decide()
    while node.closed is None:
        for key, event in node.activities.items():
            due.setdefault(key, node.now_us + int(event.input.strip(b"[]").split(b",")[1]) * 1_000_000)
        ends = [(due[key], 1, key) for key in node.activities]
        timers = [(one.fire_us, 0, key) for key, one in node.state.timers.items()]
        time_us, kind, key = min(ends + timers)
        node.now_us = max(node.now_us, time_us)
        if kind == 0:
            node.fire()
        else:
            number = int(node.activities[key].input.strip(b"[]").split(b",")[0])
            node.end_activity(key, result=number, error="ValueError" if number < 0 else "")
        turn = worker.decide()
        assert turn.parked is None, turn.parked
    assert isinstance(node.closed, h.WorkflowExecutionCompleted), node.closed
    assert node.now_us - start < 60_000_000
    return results[0]


@pytest.mark.parametrize("construct", CONSTRUCTS, ids=lambda one: one.__name__)
def test_a_construct_behaves_as_in_a_normal_loop(construct: Callable[..., Any]) -> None:
    def task(number: int, delay: int) -> asyncio.Task[int]:
        return asyncio.ensure_future(_normal(number, delay))

    with asyncio.Runner(loop_factory=HastyLoop) as runner:
        expected = runner.run(construct(task))
    assert in_workflow(construct) == expected
    assert in_workflow(construct) == expected  # nothing of the first run is left


def test_context_variables_belong_to_the_run() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    async def run(act: Act) -> Any:
        before = variable.get()
        variable.set("of the run")
        await act(1, 1)
        return before, variable.get(), await asyncio.create_task(read())

    async def read() -> str:
        return variable.get()

    variable.set("of the worker")
    assert in_workflow(run) == ("unset", "of the run", "of the run")
    assert variable.get() == "of the worker"


# ---- jobs ----


def test_a_job_has_no_result_before_its_end() -> None:
    async def run(_act: Act) -> Any:
        job = act.submit(1, 1)
        with pytest.raises(WorkflowUsageError, match="await job"):
            job.result()
        states = [job.state]
        value = await job
        return states, job.state, value, job.result(), await job.aresult(), repr(job)

    assert in_workflow(run) == (["running"], "succeeded", 1, 1, 1, "WorkflowJob('act #1', succeeded)")


@pytest.mark.parametrize("argument", [{}, {"reason": "x"}, {"msg": "x"}])
def test_a_job_cancels_as_asyncio_expects(argument: dict[str, str]) -> None:
    async def run(_act: Act) -> Any:
        job: Any = act.submit(1, 1)
        answers = [job.cancel(**argument), job.cancel(**argument)]
        try:
            await job
        except asyncio.CancelledError as error:
            return answers, error.args, job.state
        return None

    words = tuple(argument.values())
    assert in_workflow(run) == ([True, False], words, "cancelled")


def test_errors_of_jobs_are_those_outside() -> None:
    async def run(_act: Act) -> Any:
        try:
            await act.submit(-1, 1)
        except JobFailed as error:
            outcome = await act.submit(-2, 1).outcome()
            good = await act.submit(2, 1).outcome()
            return error.type_name, error.reason, error.attempt, outcome.ok, type(outcome.error), good
        return None

    assert in_workflow(run) == ("ValueError", "it failed", 1, False, JobFailed, (2, None))


def test_a_cancelled_activity_raises_job_cancelled() -> None:
    errors = []

    async def run() -> None:
        try:
            await act.submit(1, 1)
        except JobCancelled as error:
            errors.append(str(error))

    worker = FakeWorker(code_of(run), FakeNode())
    worker.decide()
    activity = worker.node.state.activities[worker.node.state.activity_ids["1"]]
    activity.cancel_requested = 5  # a client has cancelled the activity's job
    worker.node.end_activity("1")
    worker.decide()
    assert errors == ["act #1 was cancelled"]


def test_a_failed_job_that_nobody_awaits_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run(_act: Act) -> Any:
        act.submit(-1, 1)
        await act.submit(1, 3)

    in_workflow(run)
    assert caplog.records == []


def test_a_cancelled_gather_that_nobody_awaits_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run(act: Act) -> Any:
        asyncio.gather(act(1, 3), act(2, 4)).cancel()
        asyncio.gather(act(3, 5), act(4, 6))  # the end of the run cancels it
        await act(5, 1)

    in_workflow(run)
    assert caplog.records == []


def test_a_failed_gather_that_nobody_awaits_is_logged_as_by_asyncio(
    caplog: pytest.LogCaptureFixture, unretrieved: list[str]
) -> None:
    async def run(act: Act) -> Any:
        asyncio.gather(act(-1, 1))
        await act(5, 2)

    in_workflow(run)
    assert ["was never retrieved" in record.getMessage() for record in caplog.records] == [True]
    unretrieved.clear()


# ---- the log ----


def test_the_log_is_silent_in_replays(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mainspring.workflow")

    def double(number: int) -> int:
        return number * 2

    async def run() -> None:
        workflow.log.info("begun")
        await workflow.step(double, 1)
        workflow.log.info("one step")
        await workflow.step(double, 2)
        workflow.log.info("two steps")
        await act.submit(1, 1)

    worker = FakeWorker(code_of(run), FakeNode())
    worker.decide()
    worker.end_steps()
    worker.restart()
    worker.decide()  # resumes the decision
    worker.end_steps()
    assert [record.getMessage() for record in caplog.records] == ["begun", "one step", "two steps"]
    assert caplog.records[0].run == 1  # type: ignore[attr-defined] # of the run
