"""Runs that continue as new, in a worker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mainspring import App, WorkflowUsageError, workflow
from mainspring.deciding.channels import Channel
from mainspring.deciding.instance import Instance
from mainspring.workflows import history as h

from .fake_node import FakeNode, FakeWorker, code_of

app = App()
added: Channel[int] = Channel("added", int)
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


def test_it_works_in_workflows_alone() -> None:
    with pytest.raises(WorkflowUsageError, match=r"workflow\.continue_as_new works only inside of a workflow"):
        workflow.continue_as_new(1)
