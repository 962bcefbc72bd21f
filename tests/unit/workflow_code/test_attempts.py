"""Runs that have failed and are begun again, in a worker."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from mainspring import App, Retry, UsageError, workflow
from mainspring.jobs.model import JobFailure
from mainspring.workflow_code.instance import Instance
from mainspring.workflows import history as h

from .fake_node import FakeNode, FakeWorker, code_of

app = App()


@app.task
def act(number: int) -> int:
    return number


async def fails(number: int) -> None:
    await act.submit(number)
    raise OSError("no space left\non the device")


def start(call: Any, retry: Retry | None, payload: bytes = b"[7]", **attributes: Any) -> FakeWorker:
    node = FakeNode(payload)
    node.events[0] = msgspec.structs.replace(node.events[0], **attributes)
    return FakeWorker(replace(code_of(call), retry=retry), node, {"act": lambda number: number})


POLICY = Retry(max_attempts=3, initial=10, factor=3, jitter=0)


@pytest.mark.parametrize(("attempt", "delay"), [(1, 10), (2, 30)])
def test_a_run_that_fails_is_begun_again_with_the_same_arguments(attempt: int, delay: float) -> None:
    event = start(fails, POLICY, attempt=attempt).until_closed()
    assert isinstance(event, h.WorkflowExecutionContinuedAsNew)
    assert (event.attempt, event.delay, event.input) == (attempt + 1, delay, b"[7]")
    found = msgspec.json.decode(event.failure, type=JobFailure)
    assert (found.type, found.message) == ("OSError", "no space left\non the device")
    assert found.traceback is not None
    assert "in fails" in found.traceback


@pytest.mark.parametrize(
    "retry", [None, replace(POLICY, max_attempts=2), replace(POLICY, on=(KeyError,)), replace(POLICY, never=(OSError,))]
)
def test_a_run_that_fails_for_the_last_time_is_failed(retry: Retry | None) -> None:
    assert isinstance(start(fails, retry, attempt=2).until_closed(), h.WorkflowExecutionFailed)


def test_the_delay_is_within_the_jitter() -> None:
    delays = set()
    for seed in range(20):
        event = start(fails, replace(POLICY, jitter=0.5), seed=seed).until_closed()
        delays.add(event.delay)
        assert 5 <= event.delay <= 15
    assert len(delays) == 20


def test_a_defect_parks_the_run() -> None:
    async def run(number: int) -> None:
        raise TypeError(number)

    turn = start(run, POLICY).decide()
    assert turn.parked is not None
    assert turn.parked.kind == "defect"


def test_a_run_that_was_asked_to_cancel_itself_is_not_begun_again() -> None:
    async def run(number: int) -> None:
        try:
            await workflow.sleep(60)
        except asyncio.CancelledError:
            raise OSError(number) from None

    worker = start(run, POLICY)
    worker.decide()
    worker.node.request_cancel()
    worker.decide()
    assert isinstance(worker.node.closed, h.WorkflowExecutionFailed)


def test_the_code_knows_its_attempt() -> None:
    async def run(number: int) -> int:
        return workflow.info().attempt

    assert start(run, POLICY, attempt=2).until_closed().result == b"2"


def test_a_replay_with_another_policy_is_no_mismatch() -> None:
    async def other(number: int) -> None:
        await act.submit(number)
        raise KeyError(number)

    def parked(worker: FakeWorker, call: Any, retry: Retry | None) -> Any:
        code = replace(code_of(call), retry=retry)
        return Instance(code, 1).deliver(worker.node.events, worker.node.now_us).parked

    for recorded in (None, POLICY):
        worker = start(fails, recorded)
        worker.until_closed()
        assert parked(worker, fails, None) is None
        assert parked(worker, fails, POLICY) is None
        for retry in (None, POLICY):
            found = parked(worker, other, retry)
            assert found.recorded[found.at].startswith("fail with OSError")
            assert found.code[found.at].startswith("fail with KeyError")


def test_the_policy_is_an_option_of_workflows_and_versions() -> None:
    app = App()

    @app.workflow(retry=POLICY)
    async def order(number: int) -> None: ...

    @order.version("2")
    async def order_2(number: int) -> None: ...

    @order.version("3", retry=Retry(max_attempts=1))
    async def order_3(number: int) -> None: ...

    assert [one.function.code.retry for one in (order, order_2, order_3)] == [POLICY, POLICY, Retry(max_attempts=1)]
    with pytest.raises(UsageError, match="retry"):
        app.workflow(retry=3)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="retry"):
        order.version("4", retry="5")  # type: ignore[arg-type]
