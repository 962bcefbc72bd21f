"""Runs that continue as new, in a worker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mainspring import App, WorkflowUsageError, workflow
from mainspring.workflow_code.channels import Channel
from mainspring.workflow_code.instance import Instance
from mainspring.workflows import history as h
from mainspring.workflows.model import Limits

from .fake_node import FakeNode, FakeWorker, code_of

app = App()
added: Channel[Any] = Channel("added")
other: Channel[int] = Channel("other", int)


@app.task
def act(number: int) -> int:
    return number


def start(call: Any, *args: Any) -> FakeWorker:
    return FakeWorker(code_of(call), FakeNode(json.dumps(args).encode()), {"act": lambda number: number})


def continued(worker: FakeWorker) -> Any:
    event = worker.until_closed()
    assert isinstance(event, h.WorkflowExecutionContinuedAsNew), event
    return json.loads(event.input)


async def loop(number: int, step: int = 1) -> int:
    await act.submit(number)
    if number < 3:
        raise workflow.continue_as_new(number + step, step=step)
    return number


def test_the_arguments_of_the_next_run_are_encoded_as_for_a_start() -> None:
    worker = start(loop, 0, 2)
    assert continued(worker) == {"number": 2, "step": 2}
    closed = worker.node.closed
    assert isinstance(start(loop, *json.loads(b"[2, 2]")).until_closed(), h.WorkflowExecutionContinuedAsNew)
    assert closed.version == "1"


async def in_a_nested_call() -> None:
    async def deeper() -> None:
        try:
            await act.submit(1)
            raise workflow.continue_as_new()  # noqa: TRY301
        except Exception as error:
            raise AssertionError("swallowed") from error

    await asyncio.gather(deeper(), act.submit(2), return_exceptions=True)


async def in_a_task_group() -> None:
    async def one() -> None:
        async with asyncio.TaskGroup() as inner:
            inner.create_task(two())

    async def two() -> None:
        raise workflow.continue_as_new()

    async with asyncio.TaskGroup() as group:
        group.create_task(one())
        await workflow.sleep(60)


async def in_an_awaited_task() -> None:
    async def one() -> None:
        raise workflow.continue_as_new()

    await asyncio.wait_for(asyncio.create_task(one()), 60)


@pytest.mark.parametrize("call", [in_a_nested_call, in_a_task_group, in_an_awaited_task])
def test_it_leaves_the_workflow_from_any_depth(call: Any) -> None:
    worker = start(call)
    event = worker.until_closed()
    assert isinstance(event, h.WorkflowExecutionContinuedAsNew)
    assert event.input == b""


def test_a_group_with_another_error_fails_the_run() -> None:
    async def run() -> None:
        async def go_on() -> None:
            raise workflow.continue_as_new()

        async def fail() -> None:
            raise KeyError("no")

        async with asyncio.TaskGroup() as group:
            group.create_task(go_on())
            group.create_task(fail())

    assert isinstance(start(run).until_closed(), h.WorkflowExecutionFailed)


def test_signals_that_the_code_has_not_received_are_listed_in_their_order() -> None:
    async def run() -> None:
        await other.receive()
        await added.receive()
        raise workflow.continue_as_new()

    worker = start(run)
    worker.decide()
    for number in range(3):
        worker.node.signal("added", number)
        worker.node.signal("unknown", number)
    worker.node.signal("other", 9)
    turn = worker.decide_only()
    names = {event.id: (event.name, event.input) for event in worker.node.events if hasattr(event, "name")}
    assert [names[one] for one in turn.decisions[-1].unread] == [  # type: ignore[union-attr]
        ("unknown", b"0"),
        ("added", b"1"),
        ("unknown", b"1"),
        ("added", b"2"),
        ("unknown", b"2"),
    ]


def test_unseen_events_do_not_refuse_it() -> None:
    worker = start(loop, 0)
    worker.decide()
    worker.do_activity("1")
    turn = worker.decide_only()
    worker.node.signal("added", 1)
    worker.node.request_cancel()
    worker.finish_turn(turn)
    assert isinstance(worker.node.closed, h.WorkflowExecutionContinuedAsNew)


def test_arguments_that_do_not_fit_park_the_run() -> None:
    async def run(number: int) -> None:
        raise workflow.continue_as_new(number, 2)

    turn = start(run, 1).decide()
    assert turn.parked is not None
    assert "too many positional arguments" in turn.parked.message


def test_a_replay_compares_it() -> None:
    worker = start(loop, 0)
    continued(worker)

    def replay(call: Any) -> Any:
        return Instance(code_of(call), 1).deliver(worker.node.events, worker.node.now_us).parked

    assert replay(loop) is None

    async def changed(number: int) -> None:
        await act.submit(number)
        raise workflow.continue_as_new(number + 7)

    parked = replay(changed)
    assert (parked.recorded[parked.at], parked.code[parked.at]) == (
        'continue as new {"number":1,"step":1}',
        "continue as new [7]",
    )

    async def ends(number: int) -> None:
        await act.submit(number)

    parked = replay(ends)
    assert parked.code[parked.at] == "return"


def test_the_next_run_may_have_another_version() -> None:
    def run_of(version: str) -> Any:
        async def run() -> None:
            raise workflow.continue_as_new().options(version=version)

        return run

    worker = start(run_of("2"))
    event = worker.until_closed()
    assert (type(event), event.version) == (h.WorkflowExecutionContinuedAsNew, "2")

    def parked(version: str) -> Any:
        return Instance(code_of(run_of(version)), 1).deliver(worker.node.events, worker.node.now_us).parked

    assert parked("2") is None
    assert parked("3").kind == "mismatch"


def test_it_works_in_workflows_alone() -> None:
    with pytest.raises(WorkflowUsageError, match=r"workflow\.continue_as_new works only inside of a workflow"):
        workflow.continue_as_new(1)


# ---- should_continue ----


async def until_it_should(number: int, size: int = 0) -> None:
    while not workflow.should_continue():
        await asyncio.gather(act.submit(number), workflow.step(len, "x" * size), act.submit(number))
        number += 1
    raise workflow.continue_as_new(number)


def replays(worker: FakeWorker) -> None:
    """Replay each prefix of a history."""
    for end in worker.node.commits:
        events = worker.node.events[:end]
        turn = Instance(worker.code, 1).deliver(events, events[-1].at_us)
        assert turn.parked is None, (end, turn.parked)


@pytest.mark.parametrize("limits", [*(Limits(warn_bytes=2_000 + 100 * n) for n in range(8)), Limits(warn_events=40)])
def test_replays_repeat_whether_a_run_should_continue(limits: Limits) -> None:
    """Events come in while the worker decides: they are in the history before the decision that was not given them."""
    node = FakeNode(b"[0, 9]", limits=limits)
    worker = FakeWorker(code_of(until_it_should), node, {"act": lambda number: number})
    turn = worker.decide_only()
    for _ in range(100):
        node.signal("added", "x" * 200)
        worker.finish_turn(turn)
        if node.closed is not None:
            break
        if worker.running:
            worker.end_steps()
        if node.activities:
            worker.do_activity(next(iter(node.activities)))
        turn = worker.decide_only()
    assert isinstance(node.closed, h.WorkflowExecutionContinuedAsNew)
    replays(worker)


def test_a_run_should_continue_from_its_limits_on() -> None:
    async def run() -> list[bool]:
        found = []
        for _ in range(4):
            found.append(workflow.should_continue())
            await added.receive()
        return found

    def answers(limits: Limits, value: str) -> Any:
        worker = FakeWorker(code_of(run), FakeNode(limits=limits))
        worker.decide()
        for _ in range(4):
            worker.node.signal("added", value)
            worker.decide()
        return json.loads(worker.node.closed.result)

    assert answers(Limits(), "") == [False] * 4
    assert answers(Limits(warn_events=10), "") == [False, False, True, True]
    assert answers(Limits(warn_bytes=3_000), "x" * 1_000) == [False, False, False, True]


def test_the_limits_of_the_start_count() -> None:
    """A node with other settings replays the run."""
    assert FakeNode().events[0].warn_events == 0
    event = FakeNode(limits=Limits(warn_events=7, warn_bytes=9)).events[0]
    assert (event.warn_events, event.warn_bytes) == (7, 9)
