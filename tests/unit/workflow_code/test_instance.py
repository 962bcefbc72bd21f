"""One run in a worker, against a fake node."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, workflow
from mainspring.workflow_code.channels import Channel
from mainspring.workflows import history as h
from mainspring.workflows import requests as d
from mainspring.workflows.model import About, decode_about

from .fake_node import FakeNode, FakeWorker, code_of

if TYPE_CHECKING:
    from collections.abc import Callable

app = App()
approved: Channel[dict[str, str]] = Channel("approved", dict)


@app.task
async def charge(order: int, cents: int) -> str:
    return f"{order}:{cents}"


@app.task
def label(item: str) -> str:
    return item.upper()


@app.task
def price(order: int) -> int:
    return order * 10


TASKS: dict[str, Callable[..., Any]] = {"charge": lambda order, cents: f"{order}:{cents}", "label": str.upper}


def start(call: Any, *args: Any) -> FakeWorker:
    return FakeWorker(code_of(call), FakeNode(json.dumps(args).encode()), TASKS)


def value(closed: Any) -> Any:
    assert isinstance(closed, h.WorkflowExecutionCompleted), closed
    return json.loads(closed.result) if closed.result else None


async def order(number: int, items: list[str]) -> dict[str, Any]:
    cents = await price.step(number)
    payment = await charge.submit(number, cents)
    if cents > 100:
        await approved.receive(timeout=timedelta(days=3))
    labels = await asyncio.gather(*(label.submit(item) for item in items))
    await workflow.sleep(timedelta(days=3))
    return {"payment": payment, "labels": labels, "at": workflow.now().isoformat()}


def test_a_workflow_of_steps_activities_and_timers_runs_to_its_end() -> None:
    worker = start(order, 7, ["cat", "owl"])
    result = value(worker.until_closed())
    assert result["payment"] == "7:70"
    assert result["labels"] == ["CAT", "OWL"]
    assert worker.executed == [("price", (7,))]


def test_a_run_that_is_lost_after_each_turn_makes_the_same_history() -> None:
    whole = start(order, 7, ["cat", "owl"])
    whole.until_closed()
    for end in whole.node.commits[:-1]:
        replay = FakeWorker(code_of(order), FakeNode(), TASKS)
        turn = replay.instance.deliver(whole.node.events[:end], whole.node.events[end - 1].at_us)
        assert turn.parked is None, (end, turn.parked)


def double(number: int) -> int:
    return number * 2


async def parallel_steps() -> list[int]:
    return list(await asyncio.gather(workflow.step(double, 1), workflow.step(double, 2), workflow.step(double, 3)))


def test_steps_are_resolved_in_the_order_of_their_results() -> None:
    order: list[int] = []

    async def run() -> list[int]:
        async def one(number: int) -> int:
            result: int = await workflow.step(double, number)
            order.append(number)
            return result

        return list(await asyncio.gather(one(1), one(2), one(3)))

    worker = start(run)
    worker.decide()
    worker.end_steps(3, 1)
    worker.end_steps(2)
    assert order == [3, 1, 2]
    assert value(worker.node.closed) == [2, 4, 6]
    order.clear()
    FakeWorker(code_of(run), worker.node).decide_only()
    assert order == [3, 1, 2]


def test_a_step_starts_after_all_before_it_is_recorded() -> None:
    async def run() -> None:
        await workflow.step(double, 1)
        await workflow.step(double, 2)

    worker = start(run)
    first = worker.decide()
    assert [(call.number, call.at_once) for call in first.start] == [(1, True)]  # nothing is to be recorded
    second = worker.end_steps(1)
    assert [one.number for one in second.steps] == [1]
    assert [(call.number, call.at_once) for call in second.start] == [(2, False)]


def test_steps_recorded_together_start_without_a_record() -> None:
    async def run() -> None:
        await workflow.step(double, 1, record="together")
        await workflow.step(double, 2, record="together")
        await workflow.step(double, 3)
        await workflow.step(double, 4, record="together")

    worker = start(run)
    assert [call.at_once for call in worker.decide().start] == [True]
    assert [call.at_once for call in worker.end_steps().start] == [True]
    assert [call.at_once for call in worker.end_steps().start] == [False]  # it waits for the results of 1 and 2
    assert [call.at_once for call in worker.end_steps().start] == [False]  # it waits for the result of 3


async def waiting() -> None:
    await asyncio.gather(approved.receive(), price.step(1), workflow.wait_until(lambda: False), workflow.sleep(5))


def test_a_timer_records_the_wait_that_it_ends() -> None:
    async def all_waits() -> None:
        async def limited() -> None:
            async with asyncio.timeout(8):
                await asyncio.Event().wait()

        await asyncio.gather(
            approved.receive(timeout=3),
            workflow.wait_until(lambda: False, timeout=4),
            asyncio.wait_for(charge.submit(1, 2), 5),
            asyncio.wait_for(approved.receive(), 6),
            workflow.sleep(7),
            limited(),
            return_exceptions=True,
        )

    worker = start(all_waits)
    worker.decide()
    timers = [event for event in worker.node.events if isinstance(event, h.TimerStarted)]
    assert {(timer.start_to_fire, timer.control) for timer in timers} == {
        (3, "signal approved"),
        (4, "a condition"),
        (5, "charge #1"),
        (6, "a timeout"),
        (7, ""),
        (8, "a timeout"),
    }


def test_a_timeout_that_is_over_at_once_gives_its_words_to_no_other_timer() -> None:
    async def run() -> None:
        for wait in (approved.receive(timeout=0), workflow.wait_until(lambda: False, timeout=0)):
            with contextlib.suppress(TimeoutError):
                await wait
        await asyncio.wait_for(label.submit("a"), None)
        await workflow.sleep(7)

    worker = start(run)
    worker.until_closed()
    assert [event.control for event in worker.node.events if isinstance(event, h.TimerStarted)] == [""]


def test_a_turn_reports_the_things_that_the_code_waits_for() -> None:
    worker = start(waiting)
    worker.decide_only()
    assert decode_about(worker.instance.about()) == About(("approved",), steps=("price",), conditions=1)


async def sleeping() -> None:
    await workflow.sleep(5)


def test_a_report_of_nothing_but_timers_is_empty() -> None:
    worker = start(sleeping)
    worker.decide_only()
    assert worker.instance.about() == b""


def test_a_lost_decision_is_resumed_with_its_time_before_newer_events() -> None:
    seen: list[Any] = []

    async def run() -> None:
        seen.append(workflow.now())
        await workflow.step(double, 1)
        seen.append((workflow.now(), approved.pending()))
        await workflow.step(double, 2)
        seen.append((workflow.now(), approved.pending()))
        await workflow.wait_until(approved.pending)
        seen.append((workflow.now(), approved.pending()))

    worker = start(run)
    worker.decide()
    worker.end_steps(1)
    first = list(seen)
    worker.restart()
    worker.node.now_us += 60_000_000
    worker.node.signal("approved", {})
    seen.clear()
    turn = worker.decide()
    assert seen == first
    assert seen[1][1] == 0
    assert [call.number for call in turn.start] == [2]
    turn = worker.end_steps(2)
    assert seen[2] == seen[1]
    assert turn.steps
    assert not turn.finished
    worker.decide()
    assert seen[3][1] == 1
    assert seen[3][0] > seen[2][0]
    replayed = list(seen)
    seen.clear()
    FakeWorker(code_of(run), worker.node).decide_only()
    assert seen == replayed


def test_cancelling_a_run_cancels_its_activity() -> None:
    async def run() -> None:
        await charge.submit(1, 2)

    worker = start(run)
    worker.decide()
    worker.node.request_cancel("no money")
    turn = worker.decide()
    assert [type(one) for one in turn.decisions] == [d.RequestCancelActivityTask, d.CancelWorkflowExecution]


def test_a_refused_close_is_issued_again() -> None:
    async def run() -> str:
        return await charge.submit(1, 2)

    worker = start(run)
    worker.decide()
    worker.node.end_activity("1", result="1:2")
    turn = worker.instance.deliver(worker.node.events[worker.instance.position :], worker.node.now_us)
    assert turn.finished
    worker.node.signal("approved", {})
    worker.finish_turn(turn)
    assert worker.node.closed is None
    repeated = worker.decide()
    assert repeated.decisions == turn.decisions
    assert value(worker.node.closed) == "1:2"
    assert FakeWorker(code_of(run), worker.node).decide_only().parked is None


def test_another_command_than_the_recorded_one_parks_the_run() -> None:
    async def run() -> None:
        await label.submit("a")
        await charge.submit(1, 2)

    async def changed() -> None:
        await label.submit("a")
        await charge.submit(1, 3)

    worker = start(run)
    worker.decide()
    worker.node.end_activity("1", result="A")
    worker.decide()
    parked = FakeWorker(code_of(changed), worker.node).decide_only().parked
    assert parked is not None
    assert parked.kind == "mismatch"
    assert parked.recorded == ('activity #1 label ["a"]', "activity #2 charge [1,2]")
    assert parked.code == ('activity #1 label ["a"]', "activity #2 charge [1,3]")
    assert parked.at == 1


def test_each_event_is_given_once_and_none_is_left_out() -> None:
    worker = start(order, 1, [])
    with pytest.raises(ValueError, match="event 1 is missing"):
        worker.instance.deliver(worker.node.events[1:], worker.node.now_us)
    worker.decide()
    position = worker.instance.position
    turn = worker.instance.deliver(worker.node.events, worker.node.now_us)
    assert turn.parked is None
    assert worker.instance.position >= position


def test_a_defect_parks_the_run_and_another_error_fails_it() -> None:
    async def defect() -> None:
        raise KeyError("x") if workflow.info().run == 2 else AssertionError("no")

    async def failing() -> None:
        raise ValueError("bad number")

    parked = start(defect).decide().parked
    assert parked is not None
    assert parked.kind == "defect"
    assert "AssertionError: no" in parked.message
    worker = start(failing)
    worker.decide()
    assert isinstance(worker.node.closed, h.WorkflowExecutionFailed)
    assert worker.node.closed.reason == "ValueError"


def test_a_defect_is_shown_at_the_line_of_the_workflow() -> None:
    async def run() -> None:
        label.submit("x").result()

    parked = start(run).decide().parked
    assert parked is not None
    assert "WorkflowUsageError" in parked.message
    assert f" at {__file__}:{run.__code__.co_firstlineno + 1} in run;" in parked.message


def test_an_eviction_runs_cleanup_and_drops_its_commands() -> None:
    log: list[str] = []

    async def run() -> None:
        try:
            await charge.submit(1, 2)
        finally:
            log.append("cleanup")
            await label.submit("a")

    worker = start(run)
    worker.decide()
    before = list(worker.node.events)
    worker.instance.evict()
    assert log == ["cleanup"]
    assert worker.node.events == before


def test_a_side_effect_is_executed_once() -> None:
    calls: list[int] = []

    def count() -> int:
        calls.append(1)
        return len(calls)

    async def run() -> int:
        number: int = workflow.side_effect(count)
        await label.submit("a")
        return number

    worker = start(run)
    worker.decide()
    worker.restart()
    worker.node.end_activity("1", result="A")
    worker.decide()
    assert value(worker.node.closed) == 1
    assert calls == [1]
