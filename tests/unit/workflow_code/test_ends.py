"""Ends of workflow code: what parks a run, what an error records, and what a chain takes along."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from mainspring import App, JobFailed, workflow
from mainspring.errors import MapFailed, PayloadError
from mainspring.jobs.model import text_of
from mainspring.worker.workflows.replay_checks import replay
from mainspring.workflow_code.model import PARK_ON
from mainspring.workflows import history as h

from .fake_node import FakeNode, FakeWorker, code_of

app = App()
letters = app.signal("letters", str)
trace: list[Any] = []


@app.task
def act(number: int) -> int:
    return number


@pytest.fixture(autouse=True)
def _empty_trace() -> None:
    trace.clear()


def start(call: Any, park_on: Any = PARK_ON, payload: bytes = b"") -> FakeWorker:
    worker = FakeWorker(code_of(call, park_on), FakeNode(payload))
    worker.decide()
    return worker


def compare(worker: FakeWorker) -> Any:
    """Return the difference between the run's history and its code."""
    return replay(worker.code, worker.node.events).difference


# ---- defects ----


async def fails_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(workflow.sleep(1000))
        group.create_task(_undefined())


async def fails_in_two_groups() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(fails_in_a_group())


async def _undefined() -> None:
    await act.submit(1)
    undefined_name  # type: ignore[name-defined] # noqa: B018, F821


async def fails_beside_another() -> None:
    try:
        await fails_in_a_group()
    except* NameError as errors:
        raise ExceptionGroup("two", [ValueError("a wrong value"), *errors.exceptions]) from None


@pytest.mark.parametrize("code", [fails_in_a_group, fails_in_two_groups, fails_beside_another])
@pytest.mark.parametrize("in_saga", [False, True])
def test_a_defect_inside_of_a_group_parks_the_run(code: Any, in_saga: bool) -> None:
    async def run() -> None:
        if not in_saga:
            await code()
        async with workflow.Saga() as saga:
            saga.undo(act, 10)
            await code()

    worker = start(run)
    worker.node.end_activity("1", result=1)
    turn = worker.decide()
    assert turn.parked is not None
    assert "NameError" in turn.parked.message
    assert "in _undefined" in turn.parked.message
    assert turn.decisions == ()  # nothing is undone


def test_a_group_without_a_defect_fails_the_run() -> None:
    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    async def fails() -> None:
        raise ValueError("a wrong value")

    worker = start(run)
    assert isinstance(worker.node.closed, h.WorkflowExecutionFailed)
    assert compare(worker) is None


CALLS: dict[str, Any] = {
    "submit": lambda: act.submit(object()),  # type: ignore[arg-type]
    "step": lambda: act.step(float("nan")),  # type: ignore[arg-type]
    "continue_as_new": lambda: workflow.continue_as_new(object()),
    "external": lambda: workflow.external("report").signal(letters, object()),  # type: ignore[misc]
    "side effect": lambda: workflow.side_effect(object),
    "progress": lambda: workflow.progress(-1, 5),
    "patched": lambda: workflow.patched(""),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_refused_parks_the_run(name: str) -> None:
    async def run(given: Any = None) -> None:
        CALLS[name]()

    turn = start(run).turns[0]
    assert turn.parked is not None, turn
    assert turn.parked.kind == "defect"


async def takes_a_number(number: int) -> int:
    return number


async def reads_a_result() -> int:
    return await act.submit(1)


async def reads_a_signal() -> int:
    return int(await app.signal("numbers", int).receive())


@pytest.mark.parametrize("code", [takes_a_number, reads_a_result, reads_a_signal])
def test_a_received_value_that_does_not_fit_fails_the_run(code: Any) -> None:
    """It may come from a client, and would park run after run."""
    worker = start(code, payload=b'["text"]' if code is takes_a_number else b"")
    if code is reads_a_result:
        worker.node.end_activity("1", result="text")
    elif code is reads_a_signal:
        worker.node.signal("numbers", "text")
    if worker.node.closed is None:
        worker.decide()
    assert isinstance(worker.node.closed, h.WorkflowExecutionFailed)
    assert worker.node.closed.reason == PayloadError.__name__


# ---- side effects that fail ----


class OwnError(Exception):
    """An error of the code."""


class OddError(Exception):
    """An error that cannot be built from its arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("odd")
        self.sum = first + second


class LoudError(Exception):
    """An error that changes its argument."""

    def __init__(self, text: str) -> None:
        super().__init__(text + "!")


class MuteError(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def _raise(error: Exception) -> None:
    raise error


FAILURES: dict[str, tuple[Any, type[Exception], str]] = {
    "builtin": (lambda: _raise(FileNotFoundError("limits.json")), FileNotFoundError, "limits.json"),
    "of the system": (lambda: open("/nowhere/limits.json"), FileNotFoundError, "No such file or directory: '/nowhere"),  # noqa: PTH123, SIM115
    "own": (lambda: _raise(OwnError("own", 1)), OwnError, "('own', 1)"),
    "key": (lambda: os.environ["NOWHERE"], KeyError, "'NOWHERE'"),
    "not to be built again": (lambda: _raise(OddError(1, 2)), JobFailed, "odd"),
    "not the same if built again": (lambda: _raise(LoudError("loud")), JobFailed, "loud!"),
    "without a text": (lambda: _raise(MuteError()), MuteError, "cannot be shown"),
    "not JSON": (object, PayloadError, "object"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_side_effect_is_recorded_and_raised_again(name: str) -> None:
    function, kind, words = FAILURES[name]

    async def run() -> str:
        try:
            workflow.side_effect(function)
        except Exception as error:  # noqa: BLE001
            trace.append((type(error), text_of(error)))
        return await letters.receive()

    worker = start(run)
    worker.restart()
    worker.node.signal("letters", "a")
    turn = worker.decide()
    assert turn.parked is None, turn.parked
    assert isinstance(worker.node.closed, h.WorkflowExecutionCompleted)
    first, second = trace
    assert first == second
    assert first[0] is kind
    assert words in first[1]
    (marker,) = (event for event in worker.node.events if isinstance(event, h.MarkerRecorded))
    assert marker.failed
    assert {"type", "message"} <= json.loads(marker.details).keys()


def test_another_failure_of_a_side_effect_is_a_difference() -> None:
    names = iter(["first", "first", "second"])

    async def run() -> None:
        with_error = next(names)
        try:
            workflow.side_effect({"first": _first, "second": _second}[with_error])
        except OwnError:
            await workflow.sleep(10)

    worker = start(run)
    assert compare(worker) is None
    assert compare(worker).kind == "mismatch"


def _first() -> None:
    raise OwnError("first")


def _second() -> None:
    raise OwnError("second")


# ---- continue as new ----


async def _handle(_letter: str) -> None:
    await act.submit(1)


async def _keep(letter: str) -> None:
    trace.append(letter)


async def _start_another(_letter: str) -> None:
    await act.options(cancel="abandon").submit(1)


def _beside(ends: Any, collect: Any, *, in_group: bool) -> Any:
    """Return a workflow that runs ``ends`` beside ``collect``: both in a group, or the latter as a task that it leaves."""

    async def run() -> None:
        if in_group:
            async with asyncio.TaskGroup() as group:
                group.create_task(ends())
                group.create_task(collect())
        task = asyncio.create_task(collect())
        await ends()
        assert not task.done()

    return run


@pytest.mark.parametrize("in_group", [False, True])
@pytest.mark.parametrize("first", ["timer", "signal"])
@pytest.mark.parametrize(("deals", "goes_along"), [(_handle, True), (_keep, False), (_start_another, False)])
def test_a_signal_with_which_a_task_has_only_begun_goes_to_the_next_run(
    in_group: bool, first: str, deals: Any, goes_along: bool
) -> None:
    async def collect() -> None:
        async for letter in letters:
            await deals(letter)

    async def ends() -> None:
        await workflow.sleep(10)
        raise workflow.continue_as_new()

    worker = start(_beside(ends, collect, in_group=in_group))
    if first == "timer":
        worker.node.fire()
    worker.node.signal("letters", "a")
    if first == "signal":
        worker.node.fire()
    worker.decide()
    assert isinstance(worker.node.closed, h.WorkflowExecutionContinuedAsNew)
    assert len(worker.node.unread) == goes_along
    assert compare(worker) is None


@pytest.mark.parametrize("in_group", [False, True])
def test_a_task_gets_no_signal_after_the_code_has_raised(in_group: bool) -> None:
    """The arguments of the next run are built then."""

    async def collect() -> None:
        async for letter in letters:
            trace.append(letter)  # noqa: PERF401 - one after the other

    async def ends() -> None:
        await app.signal("stop", None).receive()
        raise workflow.continue_as_new()

    worker = start(_beside(ends, collect, in_group=in_group))
    worker.node.signal("stop")
    worker.node.signal("letters", "a")
    worker.node.signal("letters", "b")
    worker.decide()
    assert isinstance(worker.node.closed, h.WorkflowExecutionContinuedAsNew)
    assert trace == []
    assert len(worker.node.unread) == 2
    assert compare(worker) is None


def test_a_run_that_goes_on_after_all_gives_the_signal_to_the_task() -> None:
    async def ends() -> None:
        await app.signal("stop", None).receive()
        raise workflow.continue_as_new()

    async def collect() -> None:
        trace.append(await letters.receive())
        await act.submit(1)

    async def run() -> None:
        ending = asyncio.create_task(ends())
        collecting = asyncio.create_task(collect())
        await asyncio.wait([ending])
        trace.append(type(ending.exception()).__name__)
        await collecting

    worker = start(run)
    worker.node.signal("stop")
    worker.node.signal("letters", "a")
    worker.decide()
    assert trace == ["ContinueAsNew", "a"]
    worker.node.end_activity("1")
    worker.decide()
    assert isinstance(worker.node.closed, h.WorkflowExecutionCompleted)
    assert compare(worker) is None


@pytest.mark.parametrize("return_exceptions", [False, True])
def test_map_lets_continue_as_new_pass(return_exceptions: bool) -> None:
    async def one(number: int) -> int:
        await act.submit(number)
        if number == 1:
            raise workflow.continue_as_new()
        return await act.submit(number)

    async def run() -> None:
        await workflow.map(one, range(4), limit=3, return_exceptions=return_exceptions)

    worker = start(run)
    worker.node.end_activity("2")
    worker.decide()
    assert isinstance(worker.node.closed, h.WorkflowExecutionContinuedAsNew)
    assert compare(worker) is None


def test_map_still_collects_errors() -> None:
    async def one(number: int) -> int:
        raise ValueError(number)

    async def run() -> None:
        try:
            await workflow.map(one, range(3))
        except MapFailed as failed:
            trace.append(len(failed.exceptions))

    assert start(run).node.closed is not None
    assert trace == [3]


def test_a_result_of_a_wrong_type_fails_a_run_and_completes_one_of_earlier_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> int:
        await act.submit(1)
        return "1"  # type: ignore[return-value]

    with monkeypatch.context() as patched:
        patched.setattr("mainspring.workflow_code.instance.SEMANTICS", 1)
        earlier = start(run)
        earlier.node.end_activity("1", result=1)
        earlier.decide()
    assert isinstance(earlier.node.closed, h.WorkflowExecutionCompleted)
    assert compare(earlier) is None
    worker = start(run)
    worker.node.end_activity("1", result=1)
    worker.decide()
    assert isinstance(worker.node.closed, h.WorkflowExecutionFailed)
    assert worker.node.closed.reason == "PayloadError"
    assert compare(worker) is None


def spoil() -> None:
    json.loads("{")


async def spoils_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_spoiling())


async def _spoiling() -> None:
    spoil()


async def calls_wrongly() -> None:
    await act.submit(1, 2)  # type: ignore[call-arg]


async def waits_wrongly() -> None:
    await asyncio.wait_for(_spoiling(), 10)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (spoils_in_a_group, 'json.loads("{")'),
        (waits_wrongly, 'json.loads("{")'),
        (calls_wrongly, "await act.submit(1, 2)"),
    ],
)
def test_a_parked_run_names_the_line_of_its_users(code: Any, line: str) -> None:
    """The innards of json, asyncio and inspect are deeper in the traceback."""
    parked = FakeWorker(code_of(code, (Exception,)), FakeNode(b"")).decide().parked
    assert parked is not None
    found = re.search(r" at (.*):(\d+) in (\w+); correct the code", parked.message)
    assert found is not None
    assert found[1] == __file__
    assert line in Path(__file__).read_text().splitlines()[int(found[2]) - 1]
