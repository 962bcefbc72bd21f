"""Calls that are refused inside of workflows, or outside of them, with their remedies."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring import App, workflow
from mainspring.errors import JobFailed, MainspringError, PayloadError, UsageError, WorkflowUsageError
from mainspring.workflow_code.channels import Channel
from mainspring.workflow_code.instance import Instance
from mainspring.workflows import history as h
from mainspring.workflows.model import Limits

from .fake_node import FakeNode, FakeWorker, code_of

if TYPE_CHECKING:
    from collections.abc import Callable

app = App()
approved: Channel[dict[str, str]] = Channel("approved", dict)


@app.task
def label(item: str) -> str:
    return item


@app.task(unique="x")
def once(item: str) -> str:
    return item


@app.task
async def charge(number: int) -> int:
    return number


@app.workflow
async def other(number: int) -> int:
    return number


LARGE = "x" * 2000


def _renamed(name: str) -> Callable[[], int]:
    def effect() -> int:
        return 1

    effect.__qualname__ = name
    return effect


INSIDE: dict[str, tuple[Callable[[], Any], type[MainspringError], str]] = {
    "unique": (lambda: label.options(unique="a").submit("a"), WorkflowUsageError, "workflow id"),
    "unique of a task": (lambda: once.submit("a"), WorkflowUsageError, "workflow id"),
    "delay": (lambda: label.options(delay=3).submit("a"), WorkflowUsageError, "workflow.sleep("),
    "expires": (lambda: label.options(expires=0).submit("a"), WorkflowUsageError, "expires is 0"),
    "call": (lambda: label("a"), WorkflowUsageError, "label.step("),
    "delayed child": (lambda: other.options(delay=3).submit(1), WorkflowUsageError, "workflow.sleep("),
    "large child": (
        lambda: other.submit(LARGE),  # type: ignore[arg-type]
        PayloadError,
        "the input of other #1",
    ),
    "large input": (
        lambda: label.submit(LARGE),
        PayloadError,
        "label #1 has 2,004 bytes, and the store takes at most 1,000",
    ),
    "large input of a step": (lambda: label.step(LARGE), PayloadError, "step label #1 has 2,004 bytes"),
    "large side effect": (lambda: workflow.side_effect(lambda: LARGE), PayloadError, "side effect #1"),
    "wrong arguments": (lambda: label.submit(1, 2), TypeError, "argument"),  # type: ignore[arg-type, call-arg, dict-item]
    "long timer": (
        lambda: asyncio.get_running_loop().call_later(400 * 86_400, print),
        WorkflowUsageError,
        "longer than a run may last",
    ),
    "server": (lambda: app.job("H:node:1").result(), WorkflowUsageError, "workflow.step("),
    "many at once": (lambda: label.submit_many(["a"]), WorkflowUsageError, "f.submit("),
    "record": (lambda: workflow.step(len, "a", record="never"), MainspringError, "'each' or 'together'"),  # type: ignore[call-overload]
    "step of a submission": (lambda: workflow.step(app.function("x"), "a"), WorkflowUsageError, "submit"),  # type: ignore[call-overload]
    "signal to a run": (
        lambda: workflow.external("x").signal("name-\udc80"),
        UsageError,
        "a signal's name cannot be encoded",
    ),
    "signal of no text": (lambda: workflow.external("x").signal(5), UsageError, "a signal must be one of"),  # type: ignore[call-overload]
    "long signal": (
        lambda: workflow.external("x").signal("n" * 1025),
        UsageError,
        "a signal's name has 1,025 characters",
    ),
    "run of a huge number": (lambda: workflow.external("H:n:1@" + 30 * "9"), UsageError, "has more than 18 digits"),
    "long handle": (lambda: workflow.external("H:" + 2000 * "9"), UsageError, "the key of a run has 2,002 characters"),
    "run of no text": (lambda: workflow.external("x-\udc80"), UsageError, "the key of a run cannot be encoded"),
    "long reason": (lambda: workflow.external("x").cancel("r" * 1025), UsageError, "a reason has 1,025 characters"),
    "name of a step": (lambda: workflow.step(len, "a", name="n-\udc80"), UsageError, "a step's name cannot be encoded"),
    "long name of a step": (lambda: workflow.step(len, "a", name="n" * 1025), UsageError, "a step's name has 1,025"),
    "name of a side effect": (
        lambda: workflow.side_effect(_renamed("f-\udc80")),
        UsageError,
        "of a side effect cannot be",
    ),
    "long version": (
        lambda: workflow.continue_as_new().options(version="v" * 1025),
        UsageError,
        "version has 1,025 characters",
    ),
    "child with a NUL": (lambda: other.options(id="a\0b").submit(1), UsageError, "has a NUL"),
    "thread": (lambda: asyncio.get_running_loop().run_in_executor(None, print), WorkflowUsageError, "workflow.step("),
    "eager": (lambda: asyncio.get_running_loop().set_task_factory(None), WorkflowUsageError, "set_task_factory"),
}


def close_of(call: Callable[..., Any], limits: Limits) -> Any:
    worker = FakeWorker(code_of(call), FakeNode())
    worker.instance = Instance(worker.code, 1, limits=limits)
    worker.decide()
    return worker


@pytest.mark.parametrize("name", INSIDE)
def test_a_call_is_refused_inside_of_a_workflow(name: str) -> None:
    act, kind, words = INSIDE[name]
    found: list[Exception] = []

    async def run() -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001
            found.append(error)

    turns = close_of(run, Limits(largest=1000)).turns
    issued = [type(one).__name__ for one in turns[0].decisions]
    recorded = (
        ["RecordMarker"] if name == "large side effect" else []
    )  # the function has run: each replay repeats its failure
    assert issued == [*recorded, "CompleteWorkflowExecution"]
    assert isinstance(found[0], kind)
    assert words in str(found[0])


OUTSIDE: dict[str, Callable[[], object]] = {
    "step": lambda: label.step("a"),
    "workflow.step": lambda: workflow.step(len, "a"),
    "now": workflow.now,
    "rng": workflow.rng,
    "uuid": workflow.uuid,
    "info": workflow.info,
    "side_effect": lambda: workflow.side_effect(dict),
    "sleep": lambda: asyncio.run(workflow.sleep(1)),
    "wait_until": lambda: asyncio.run(workflow.wait_until(bool)),
    "receive": lambda: asyncio.run(approved.receive()),
    "pending": approved.pending,
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_call_is_refused_outside_of_workflows(name: str) -> None:
    with pytest.raises(WorkflowUsageError, match="only inside of a workflow"):
        OUTSIDE[name]()


def test_a_coroutine_task_that_is_called_is_an_activity_and_runs_plainly_outside() -> None:
    async def run() -> int:
        return await charge(3)

    worker = FakeWorker(code_of(run), FakeNode(), {"charge": lambda number: number + 1})
    assert worker.until_closed().result == b"4"
    assert asyncio.run(charge(3)) == 3


def test_a_side_effect_runs_tasks_plainly() -> None:
    async def run() -> str:
        return workflow.side_effect(lambda: label("a"))

    worker = FakeWorker(code_of(run), FakeNode())
    assert worker.until_closed().result == b'"a"'


def test_open_children_are_limited() -> None:
    errors = []

    async def run() -> None:
        other.submit(1)
        other.submit(2)
        try:
            other.submit(3)
        except WorkflowUsageError as error:
            errors.append(str(error))

    close_of(run, Limits(open_children=2))
    assert errors[0].startswith("other: the run has 2 open children, and no more are allowed")


def test_open_activities_and_timers_are_limited() -> None:
    errors = []

    async def run() -> None:
        jobs = [label.submit("a") for _ in range(3)]
        timers = [asyncio.get_running_loop().call_later(9, print) for _ in range(3)]
        for act in (lambda: label.submit("b"), lambda: asyncio.get_running_loop().call_later(9, print)):
            try:
                act()
            except WorkflowUsageError as error:
                errors.append(str(error))
        timers[0].cancel()
        asyncio.get_running_loop().call_later(9, print)
        await jobs[0]

    close_of(run, Limits(open_activities=3, open_timers=3))
    assert [("3 open activities" in one, "3 open timers" in one) for one in errors] == [(True, False), (False, True)]


def test_a_large_result_of_a_step_fails_the_step() -> None:
    async def run() -> str:
        try:
            await workflow.step(lambda: LARGE, name="large")
        except JobFailed as error:
            return error.type_name
        return ""

    worker = close_of(run, Limits(largest=1000))
    worker.end_steps()
    assert worker.node.closed.result == b'"PayloadError"'


def test_a_large_result_fails_the_run() -> None:
    async def run() -> str:
        return LARGE

    closed = close_of(run, Limits(largest=1000)).node.closed
    assert isinstance(closed, h.WorkflowExecutionFailed)
    assert closed.reason == "PayloadError"
    assert "2,002 bytes" in json.loads(closed.details)["message"]


def test_wrong_arguments_fail_the_run() -> None:
    async def run(number: int) -> int:
        return number

    worker = FakeWorker(code_of(run), FakeNode(b'["x"]'))
    worker.decide()
    assert worker.node.closed.reason == "PayloadError"


# ---- channels and conditions ----


def test_a_channel_queues_in_the_order_of_arrival_and_before_the_run_has_begun() -> None:
    async def run() -> Any:
        before = approved.pending()
        values = [await approved.receive() for _ in range(2)]
        async for value in approved:
            values.append(value)
            if len(values) == 3:
                break
        try:
            await approved.receive(timeout=timedelta(seconds=5))
        except TimeoutError:
            return before, values

    worker = FakeWorker(code_of(run), FakeNode())
    for number in (1, 2, 3):
        worker.node.signal("approved", {"n": str(number)})
    assert json.loads(worker.until_closed().result) == [3, [{"n": "1"}, {"n": "2"}, {"n": "3"}]]


def test_a_signal_of_a_wrong_type_raises_where_it_is_received() -> None:
    async def run() -> Any:
        try:
            await approved.receive()
        except PayloadError:
            return await approved.receive()

    worker = FakeWorker(code_of(run), FakeNode())
    worker.node.signal("approved", "text")
    worker.node.signal("approved", {"by": "eva"})
    assert json.loads(worker.until_closed().result) == {"by": "eva"}


def test_conditions_are_checked_in_order_after_each_activation() -> None:
    order: list[str] = []

    async def waits(name: str, number: int) -> None:
        await workflow.wait_until(lambda: approved.pending() >= number)
        order.append(name)
        if name == "a":
            await approved.receive()

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(waits("a", 2))
            group.create_task(waits("b", 2))
            group.create_task(waits("c", 1))

    worker = FakeWorker(code_of(run), FakeNode())
    worker.decide()
    worker.node.signal("approved", {})
    worker.decide()
    assert order == ["c"]
    worker.node.signal("approved", {})
    worker.decide()
    assert order == ["c", "a"]  # its continuation takes the signal, so that b waits on
    worker.node.signal("approved", {})
    worker.decide()
    assert order == ["c", "a", "b"]


def test_a_condition_times_out_and_raises_its_own_error() -> None:
    async def run() -> Any:
        try:
            await workflow.wait_until(lambda: False, timeout=3)
        except TimeoutError:
            pass
        numbers: dict[str, int] = {}
        task = asyncio.create_task(workflow.wait_until(lambda: approved.pending() and numbers["x"]))
        try:
            await task
        except KeyError:
            return "key"

    worker = FakeWorker(code_of(run), FakeNode())
    worker.decide()
    worker.node.fire()
    worker.decide()
    worker.node.signal("approved", {})
    worker.decide()
    assert worker.node.closed.result == b'"key"'


# ---- ends ----


def test_a_cancel_request_lets_the_code_clean_up() -> None:
    async def run() -> str:
        try:
            await workflow.sleep(100)
        except asyncio.CancelledError:
            await label.submit("undo")
            return "undone"
        return "slept"

    worker = FakeWorker(code_of(run), FakeNode(), {"label": str.upper})
    worker.decide()
    worker.node.request_cancel("no money")
    assert worker.until_closed().result == b'"undone"'


def test_unfinished_tasks_are_cancelled_when_the_workflow_returns() -> None:
    log: list[str] = []

    async def background() -> None:
        try:
            await label.submit("a")
        finally:
            log.append("cancelled")

    async def run() -> str:
        asyncio.create_task(background())  # noqa: RUF006 - that is the case
        await asyncio.sleep(0)
        return "done"

    worker = FakeWorker(code_of(run), FakeNode())
    turn = worker.decide()
    assert [type(one).__name__ for one in turn.decisions] == [
        "ScheduleActivityTask",
        "RequestCancelActivityTask",
        "CompleteWorkflowExecution",
    ]
    assert log == ["cancelled"]


def test_an_eviction_gives_up_after_a_hundred_rounds(caplog: pytest.LogCaptureFixture) -> None:
    caught: list[str] = []

    async def run() -> None:
        while True:
            try:
                await workflow.sleep(1)
            except BaseException as error:
                caught.append(type(error).__name__)
                if isinstance(error, GeneratorExit):
                    raise

    worker = FakeWorker(code_of(run), FakeNode())
    worker.decide()
    worker.instance.evict()
    assert caught.count("Evicted") == 100
    assert "caught Evicted a hundred times" in caplog.text


def test_the_digest_of_another_version_matches_and_another_result_does_not() -> None:
    def double(number: int) -> int:
        return number * 2

    async def run() -> None:
        await workflow.step(double, 1)
        await label.submit("a")

    worker = FakeWorker(code_of(run), FakeNode())
    worker.decide()
    worker.end_steps()
    place = next(place for place, one in enumerate(worker.node.events) if isinstance(one, h.MarkerRecorded))
    marker = worker.node.events[place]
    for change, parked in ((16, True), (1, False)):  # the lowest bits are the version
        worker.node.events[place] = msgspec.structs.replace(marker, digest=marker.digest + change)
        turn = FakeWorker(worker.code, worker.node).decide_only()
        assert (turn.parked is not None) is parked
