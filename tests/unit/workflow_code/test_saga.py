"""Sagas: compensations in the code of a workflow."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, CompensationFailed, JobFailed, PayloadError, Retry, UsageError, workflow
from mainspring.jobs.model import decode_options
from mainspring.workflows import history as h

from .fake_node import FakeNode, FakeWorker, code_of

if TYPE_CHECKING:
    from collections.abc import Callable

app = App()
trace: list[Any] = []


@app.task
def charge(number: int) -> str:
    return f"payment {number}"


@app.task(retry=Retry(max_attempts=9))
def refund(payment: str) -> None: ...


@app.task
def release(number: int) -> None: ...


@pytest.fixture(autouse=True)
def _empty_trace() -> None:
    trace.clear()


def start(call: Callable[[], Any]) -> FakeWorker:
    worker = FakeWorker(code_of(call), FakeNode())
    worker.hold = True
    worker.decide()
    return worker


def calls(worker: FakeWorker) -> list[str]:
    """Return the open activities."""
    return [
        f"{event.function.decode()}{event.input.decode()}"
        for key, event in worker.node.activities.items()
        if not worker.node.cancelling(key)
    ]


def end(worker: FakeWorker, result: Any = None, error: str = "") -> list[str]:
    """End the first open activity that is not being cancelled; decide. Return the open activities."""
    key = next(key for key in worker.node.activities if not worker.node.cancelling(key))
    worker.node.end_activity(key, result=result, error=error)
    turn = worker.decide()
    assert turn.parked is None, turn.parked
    return calls(worker)


def ended(worker: FakeWorker) -> str:
    """Return how the run has closed, after each prefix of its history was replayed."""
    node = worker.node
    for last in node.commits[:-1]:
        replay = FakeWorker(worker.code, FakeNode())
        turn = replay.instance.deliver(node.events[:last], node.events[last - 1].at_us)
        assert turn.parked is None, (last, turn.parked)
        replay.instance.evict()
    closed = node.closed
    if isinstance(closed, h.WorkflowExecutionFailed):
        return f"{closed.reason}: {json.loads(closed.details)['message']}"
    return type(closed).__name__


async def order() -> None:
    async with workflow.Saga() as saga:
        payment = await charge.submit(1)
        saga.undo(refund, payment)
        await charge.submit(2)
        saga.undo(release, 2)
        await charge.submit(3)


def test_nothing_is_undone_without_an_error() -> None:
    worker = start(order)
    for _ in range(3):
        end(worker, "p")
    assert ended(worker) == "WorkflowExecutionCompleted"


def test_an_error_undoes_backwards_one_after_the_other() -> None:
    worker = start(order)
    end(worker, "p1")
    end(worker, "p2")
    assert end(worker, error="ValueError") == ["release[2]"]
    assert end(worker) == ['refund["p1"]']
    end(worker)
    assert ended(worker).startswith("JobFailed: job charge #3 failed at attempt 1: ValueError")


def test_only_compensations_of_what_was_done_run() -> None:
    worker = start(order)
    end(worker, "p1")
    assert end(worker, error="ValueError") == ['refund["p1"]']
    end(worker)
    assert ended(worker).startswith("JobFailed")


def test_a_compensation_has_the_retries_of_its_task_or_of_the_call() -> None:
    async def run() -> None:
        async with workflow.Saga() as saga:
            saga.undo(refund, "a")
            saga.undo(refund.options(retry=Retry(max_attempts=3)), "b")
            await charge.submit(1)

    worker = start(run)
    end(worker, error="ValueError")
    (event,) = worker.node.activities.values()
    assert decode_options(event.options).retry.max_attempts == 3  # type: ignore[union-attr]
    assert end(worker) == ['refund["a"]']


def test_a_cancelled_run_undoes_and_ends_as_cancelled() -> None:
    worker = start(order)
    end(worker, "p1")
    worker.node.request_cancel("enough")
    worker.decide()
    assert calls(worker) == ['refund["p1"]']
    end(worker)
    assert ended(worker) == "WorkflowExecutionCanceled"


def test_further_cancels_do_not_reach_compensations() -> None:
    worker = start(order)
    end(worker, "p1")
    end(worker, "p2")
    for number in range(3):
        worker.node.request_cancel(f"request {number}")
        worker.decide()
        assert calls(worker) == ["release[2]"]
    assert end(worker) == ['refund["p1"]']
    worker.node.request_cancel("again")
    worker.decide()
    assert calls(worker) == ['refund["p1"]']
    end(worker)
    assert ended(worker) == "WorkflowExecutionCanceled"


def test_a_cancel_that_came_while_the_saga_undid_is_raised_at_the_next_wait() -> None:
    async def run() -> None:
        try:
            await order()
        except JobFailed:
            trace.append("failed")
        try:
            await charge.submit(4)
        except asyncio.CancelledError as error:
            trace.append(error.args)
            raise

    worker = start(run)
    end(worker, "p1")
    end(worker, error="ValueError")
    worker.node.request_cancel("enough")
    worker.decide()
    assert trace == []
    end(worker)
    assert trace == ["failed", ("enough",)]
    assert ended(worker) == "WorkflowExecutionCanceled"


def test_all_are_tried_and_the_failures_are_raised_together() -> None:
    async def run() -> None:
        async with workflow.Saga() as saga:
            for number in range(3):
                saga.undo(release, number)
            await charge.submit(1)

    worker = start(run)
    assert end(worker, error="ValueError") == ["release[2]"]
    assert end(worker, error="KeyError") == ["release[1]"]
    assert end(worker) == ["release[0]"]
    end(worker, error="OSError")
    assert ended(worker).startswith(
        "CompensationFailed: 2 of 3 compensations failed after JobFailed: job charge #1 failed at attempt 1: ValueError: "
        "it failed: "
        "release: job release #2 failed at attempt 1: KeyError: it failed; "
        "release: job release #4 failed at attempt 1: OSError: it failed"
    )


def test_a_failed_compensation_has_the_cause_and_a_note() -> None:
    async def run() -> None:
        try:
            async with workflow.Saga() as saga:
                saga.undo(release, 1)
                await charge.submit(1)
        except CompensationFailed as error:
            (failure,) = error.exceptions
            trace.extend([type(error.__cause__), str(error.__cause__), str(failure), failure.__notes__])
            trace.append([name for name, one in error.failures if one is failure])

    worker = start(run)
    end(worker, error="ValueError")
    end(worker, error="OSError")
    assert trace == [
        JobFailed,
        "job charge #1 failed at attempt 1: ValueError: it failed",
        "job release #2 failed at attempt 1: OSError: it failed",
        ["in the compensation release"],
        ["release"],
    ]
    assert ended(worker) == "WorkflowExecutionCompleted"


def test_failures_can_be_split_by_their_types() -> None:
    errors = [("a", ValueError(1)), ("b", OSError("x" * 300)), ("c", KeyError()), ("d", OSError(4))]
    group = CompensationFailed.of(errors, 5, "LookupError")
    shown = f"a: ValueError: 1; b: OSError: {'x' * 191}…; c: KeyError; 1 more"
    assert group.message == f"4 of 5 compensations failed after LookupError: {shown}"
    matched, rest = group.split((ValueError, KeyError))
    assert isinstance(matched, CompensationFailed)
    assert isinstance(rest, CompensationFailed)
    assert [name for name, _ in rest.failures] == ["b", "d"]
    assert [one for _, one in rest.failures] == [*rest.exceptions]


def test_an_inner_saga_undoes_before_the_outer_one() -> None:
    async def run() -> None:
        async with workflow.Saga() as outer:
            outer.undo(release, 1)
            async with workflow.Saga() as inner:
                inner.undo(release, 2)
                await charge.submit(1)

    worker = start(run)
    assert end(worker, error="ValueError") == ["release[2]"]
    assert end(worker) == ["release[1]"]
    end(worker)
    assert ended(worker).startswith("JobFailed")


def test_the_sagas_of_a_group_undo_in_their_tasks() -> None:
    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for number in (1, 2):
                group.create_task(one(number))

    async def one(number: int) -> None:
        async with workflow.Saga() as saga:
            saga.undo(release, number)
            await charge.submit(number)

    worker = start(run)
    assert end(worker, error="ValueError") == ["charge[2]", "release[1]"]
    worker.node.end_activity(next(key for key, one in worker.node.activities.items() if one.function == b"release"))
    worker.decide()
    assert calls(worker) == ["release[2]"]  # the group has cancelled the other task
    end(worker)
    assert ended(worker).startswith("ExceptionGroup")
    worker = start(run)
    worker.node.request_cancel()
    worker.decide()
    assert calls(worker) == ["release[1]", "release[2]"]
    end(worker)
    end(worker)
    assert ended(worker) == "WorkflowExecutionCanceled"


def test_functions_and_steps_undo_too() -> None:
    async def clean(number: int, *, deep: bool) -> None:
        trace.append(("clean", number, deep))
        await asyncio.gather(release.submit(number), release.submit(number + 1))

    def note(text: str) -> None:
        trace.append(text)

    async def run() -> None:
        async with workflow.Saga() as saga:
            saga.undo(clean, 5, deep=True)
            saga.undo(refund.step, "p1")
            saga.undo(note, "noted")
            saga.undo(app.function("resize"), b"raw")
            await charge.submit(1)

    worker = start(run)
    assert end(worker, error="ValueError") == ["resizeraw"]
    assert end(worker) == []
    assert [call.name for call in worker.running.values()] == ["refund"]
    assert trace == ["noted"]
    worker.end_steps()
    assert trace == ["noted", ("clean", 5, True)]
    assert calls(worker) == ["release[5]", "release[6]"]
    end(worker)
    end(worker)
    assert ended(worker).startswith("JobFailed")


def test_a_timeout_around_a_saga_is_raised_after_its_compensations() -> None:
    async def run() -> None:
        try:
            async with asyncio.timeout(5):
                await order()
        except TimeoutError:
            trace.append("late")

    worker = start(run)
    end(worker, "p1")
    worker.node.fire()
    worker.decide()
    assert calls(worker) == ['refund["p1"]']
    assert trace == []
    end(worker)
    assert trace == ["late"]
    assert ended(worker) == "WorkflowExecutionCompleted"


def test_the_run_closes_when_the_sagas_of_its_tasks_have_undone() -> None:
    async def run() -> str:
        tasks.append(asyncio.create_task(order()))
        await release.submit(9)
        return "done"

    tasks: list[Any] = []
    worker = start(run)
    worker.node.end_activity(next(key for key, one in worker.node.activities.items() if one.function == b"charge"))
    worker.decide()
    worker.node.end_activity(next(key for key, one in worker.node.activities.items() if one.function == b"release"))
    worker.decide()
    assert calls(worker) == ["refund[null]"]
    assert worker.node.closed is None
    end(worker)
    assert ended(worker) == "WorkflowExecutionCompleted"


def test_the_end_of_the_run_does_not_reach_compensations() -> None:
    async def run() -> str:
        tasks.append(asyncio.create_task(part()))
        await release.submit(9)
        return "done"

    async def part() -> None:
        async with workflow.Saga() as saga:
            saga.undo(release.options(cancel="wait"), 1)
            saga.undo(clean)
            await charge.submit(1)

    async def clean() -> None:
        await asyncio.gather(asyncio.create_task(traced(refund.submit("a"))), refund.options(cancel="wait").submit("b"))

    async def traced(awaited: Any) -> None:
        trace.append(await awaited)

    tasks: list[Any] = []
    worker = start(run)
    worker.node.end_activity(
        next(key for key, one in worker.node.activities.items() if one.function == b"charge"), error="ValueError"
    )
    worker.decide()
    assert end(worker) == ['refund["a"]', 'refund["b"]']  # the function has returned
    end(worker, result=7)
    assert end(worker) == ["release[1]"]
    end(worker)
    assert trace == [7]
    assert ended(worker) == "WorkflowExecutionCompleted"


def test_a_compensation_that_is_cancelled_has_failed() -> None:
    async def broken() -> None:
        raise asyncio.CancelledError

    async def run() -> None:
        async with workflow.Saga() as saga:
            saga.undo(release, 1)
            saga.undo(broken)
            await charge.submit(1)

    worker = start(run)
    assert end(worker, error="ValueError") == ["release[1]"]
    end(worker)
    assert ended(worker).startswith("CompensationFailed: 1 of 2 compensations failed after JobFailed")


def test_a_run_fails_by_a_compensation_for_which_no_task_waits() -> None:
    async def run() -> str:
        tasks.append(asyncio.create_task(lost()))
        await charge.submit(1)
        return "done"

    async def lost() -> None:
        async with workflow.Saga() as saga:
            saga.undo(release, 1)
            await workflow.sleep(100)

    tasks: list[Any] = []
    worker = start(run)
    assert end(worker) == ["release[1]"]
    end(worker, error="OSError")
    assert ended(worker).startswith(
        "CompensationFailed: 1 of 1 compensations failed after CancelledError: release: job release #"
    )


def test_a_defect_parks_the_run_and_undoes_nothing() -> None:
    defects = [TypeError("mistake")]

    async def run() -> None:
        async with workflow.Saga() as saga:
            saga.undo(release, 1)
            await charge.submit(1)
            if defects:
                raise defects[0]
            await charge.submit(2)

    worker = start(run)
    worker.node.end_activity("1")
    turn = worker.decide()
    assert turn.parked is not None
    assert turn.parked.kind == "defect"
    assert "TypeError: mistake" in turn.parked.message
    assert turn.decisions == ()
    defects.clear()  # another build
    worker.restart()
    worker.decide()
    assert calls(worker) == ["charge[2]"]


def test_a_defect_in_a_compensation_parks_the_run() -> None:
    async def broken() -> None:
        raise AttributeError("mistake")

    async def run() -> None:
        async with workflow.Saga() as saga:
            saga.undo(broken)
            await charge.submit(1)

    worker = start(run)
    worker.node.end_activity("1", error="ValueError")
    turn = worker.decide()
    assert turn.parked is not None
    assert "AttributeError: mistake" in turn.parked.message


@pytest.mark.parametrize(
    ("add", "words"),
    [
        (lambda saga: saga.undo(refund.submit("p")), r"undo\(refund, payment\)"),
        (lambda saga: saga.undo(order()), r"undo\(refund, payment\)"),
        (lambda saga: saga.undo("refund", "p"), "takes a task or a function"),
        (lambda _: workflow.Saga().undo(refund, "p"), "works only in the Saga's block"),
    ],
)
def test_a_wrong_compensation_is_refused_at_once(add: Any, words: str) -> None:
    async def run() -> None:
        async with workflow.Saga() as saga:
            with pytest.raises(UsageError, match=words):
                add(saga)
            trace.append("refused")

    start(run)
    assert trace == ["refused"]


@pytest.mark.parametrize(("arguments", "error"), [((), TypeError), ((object(),), PayloadError)])
def test_wrong_arguments_are_refused_at_once(arguments: Any, error: Any) -> None:
    async def run() -> None:
        async with workflow.Saga() as saga:
            with pytest.raises(error):
                saga.undo(refund, *arguments)
            trace.append("refused")

    start(run)
    assert trace == ["refused"]


def test_a_saga_is_for_one_block_of_a_workflow() -> None:
    async def run() -> None:
        saga = workflow.Saga()
        async with saga:
            pass
        with pytest.raises(UsageError, match="one block"):
            await saga.__aenter__()
        with pytest.raises(UsageError, match="works only in the Saga's block"):
            saga.undo(refund, "p")
        trace.append("refused")

    start(run)
    assert trace == ["refused"]
    with pytest.raises(UsageError, match="only inside of a workflow"):
        asyncio.run(workflow.Saga().__aenter__())


def test_a_run_that_continues_as_new_undoes_nothing() -> None:
    async def run() -> None:
        async with workflow.Saga() as saga:
            saga.undo(release, 1)
            await charge.submit(1)
            raise workflow.continue_as_new()

    worker = start(run)
    end(worker)
    assert ended(worker) == "WorkflowExecutionContinuedAsNew"


def test_an_evicted_run_undoes_nothing() -> None:
    worker = start(order)
    end(worker, "p1")
    worker.restart()
    assert end(worker, error="ValueError") == ['refund["p1"]']
    worker.restart()
    end(worker)
    assert ended(worker).startswith("JobFailed")
