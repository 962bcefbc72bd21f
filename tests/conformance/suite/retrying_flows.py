"""Runs that have failed and are begun again after a delay: part of the contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State, failure
from mainspring.workflows.history import WorkflowExecutionSignaled, WorkflowExecutionStarted
from mainspring.workflows.model import Definition, Key, Status
from mainspring.workflows.requests import Signal
from tests.conformance.suite.flows import SECOND

if TYPE_CHECKING:
    from mainspring.workflows.requests import ContinueAsNewWorkflowExecution
    from tests.conformance.suite.flows import Flows


class RetryingFlows:
    """Tests of further attempts."""

    def test_another_attempt_begins_at_its_time(self, flows: Flows) -> None:
        first = flows.start()
        flows.running(first, _failing(flows))
        second = flows.last(first)
        assert flows.kinds(second) == ["WorkflowExecutionStarted"]
        row, state = flows.shown(second)[:2]
        assert (row.due_us, state.begin_us) == (flows.now_us + 60 * SECOND, flows.now_us + 60 * SECOND)
        assert (row.status, row.decision, state.attempt, state.failure) == (Status.OPEN, 0, 2, "KeyError: no")
        assert flows.shown(first).state.failure == "KeyError: no"
        assert flows.root(first).state == State.RUNNING
        flows.wait(59 * SECOND)
        flows.ring(second)
        assert flows.kinds(second) == ["WorkflowExecutionStarted"]
        flows.store.reopen()
        flows.store.recover()
        flows.wait(SECOND)
        assert flows.alarms().due == [(second, flows.now_us)]
        flows.ring(second)
        assert flows.kinds(second) == ["WorkflowExecutionStarted", "DecisionTaskScheduled"]
        flows.running(second, flows.close(b"paid"))
        root = flows.root(first)
        assert (root.state, root.result) == (State.SUCCEEDED, b"paid")

    def test_another_attempt_has_all_signals(self, flows: Flows) -> None:
        first = flows.start()
        flows.signal(Signal(Key(job=first), "a", b"1", 7))
        flows.running(first, flows.timer(1))
        flows.signal(Signal(Key(job=first), "a", b"2"))
        flows.store.reopen()
        flows.store.recover()
        flows.running(first, _failing(flows))
        second = flows.last(first)
        assert flows.signal(Signal(Key(job=first), "a", b"3"), Signal(Key(job=first), "a", b"1", 7))[1].verdict == (
            "repeated"
        )
        assert flows.kinds(second) == ["WorkflowExecutionStarted", *["WorkflowExecutionSignaled"] * 3]
        flows.wait(60 * SECOND)
        flows.ring(second)
        signals = [event.input for event in flows.history(second) if isinstance(event, WorkflowExecutionSignaled)]
        assert signals == [b"1", b"2", b"3"]
        flows.running(second, flows.close())

    def test_a_signal_begins_an_attempt_that_is_due(self, flows: Flows) -> None:
        first = flows.start()
        flows.running(first, _failing(flows))
        flows.wait(60 * SECOND)
        flows.signal(Signal(Key(job=first), "a", b"1"))
        second = flows.last(first)
        assert flows.kinds(second)[-1] == "DecisionTaskScheduled"
        flows.ring(second)
        flows.running(second, flows.close())

    def test_a_cancel_request_ends_a_run_that_waits_for_its_attempt(self, flows: Flows) -> None:
        first = flows.start()
        flows.running(first, _failing(flows))
        reached = flows.cancel(Key(job=first), "enough")
        assert (reached.verdict, reached.status) == ("recorded", Status.CANCELED)
        second = flows.last(first)
        assert flows.kinds(second)[1:] == ["WorkflowExecutionCancelRequested", "WorkflowExecutionCanceled"]
        root = flows.root(first)
        assert root.state == State.CANCELLED
        assert b"enough" in root.error
        assert flows.alarms(flows.now_us + 86_400 * SECOND).due == []

    def test_an_unseen_cancel_request_ends_the_next_attempt(self, flows: Flows) -> None:
        first = flows.start()
        task, seen = flows.task(first), flows.row(first).events
        flows.cancel(Key(job=first))
        flows.decide(first, task, _failing(flows), seen=seen)
        assert flows.status(flows.last(first)) is Status.CANCELED
        root = flows.root(first)
        assert (root.state, b"cancelled before its next attempt" in root.error) == (State.CANCELLED, True)

    def test_a_run_that_waits_for_its_attempt_is_terminated(self, flows: Flows) -> None:
        first = flows.start()
        flows.running(first, _failing(flows))
        flows.terminate(Key(job=first), "enough")
        assert flows.status(flows.last(first)) is Status.TERMINATED
        assert flows.root(first).state == State.FAILED

    def test_all_attempts_share_one_timeout(self, flows: Flows) -> None:
        flows.define(Definition("order", "1", timeout=100.0))
        begun_us = flows.now_us
        first = flows.start()
        for attempt in (2, 3):
            flows.wait(20 * SECOND)
            run = flows.last(first)
            flows.ring(run)
            flows.running(run, _failing(flows, attempt, delay=10))
            flows.wait(10 * SECOND)
            flows.ring(flows.last(first))
        third = flows.last(first)
        started = flows.history(third)[0]
        assert isinstance(started, WorkflowExecutionStarted)
        assert (started.execution_timeout, started.timed_from_us) == (100, begun_us)
        assert flows.row(third).due_us == begun_us + 100 * SECOND
        fourth = flows.chained(third)
        assert flows.row(fourth).due_us == flows.now_us + 100 * SECOND, "a run that continues as new has its own"
        assert flows.shown(fourth).state.attempt == 1

    def test_a_run_times_out_while_it_waits_for_its_attempt(self, flows: Flows) -> None:
        flows.define(Definition("order", "1", timeout=30.0))
        first = flows.start()
        flows.running(first, _failing(flows))
        second = flows.last(first)
        flows.wait(30 * SECOND)
        flows.ring(second)
        assert flows.status(second) is Status.TIMED_OUT
        assert flows.root(first).state == State.FAILED


def _failing(flows: Flows, attempt: int = 2, *, delay: float = 60) -> ContinueAsNewWorkflowExecution:
    return flows.continuing(b"[17]", delay=delay, attempt=attempt, failure=failure("KeyError", "no"))
