"""Requests of clients to runs of workflows: part of the contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State
from mainspring.workflows import store as ops
from mainspring.workflows.model import Key, Status
from mainspring.workflows.requests import Reached, Signal
from tests.conformance.suite.flows import SECOND

if TYPE_CHECKING:
    from tests.conformance.suite.flows import Flows


class RequestingFlows:
    """Tests of signals, cancel requests and terminations."""

    def test_signals_are_recorded_in_order_and_ask_for_one_decision(self, flows: Flows) -> None:
        run = flows.start(unique=b"u")
        flows.running(run)
        keys = (Key(job=run), Key(run=run), Key(workflow_id="u"))
        reached = flows.signal(*(Signal(key, f"s{number}", b"%d" % number) for number, key in enumerate(keys)))
        assert [one.event for one in reached] == [5, 7, 8]
        assert {one[:3] for one in reached} == {("recorded", run, run)}
        assert flows.kinds(run).count("DecisionTaskScheduled") == 2
        signals = [event for event in flows.history(run) if type(event).__name__ == "WorkflowExecutionSignaled"]
        assert [event.input for event in signals] == [b"0", b"1", b"2"]  # type: ignore[attr-defined]

    def test_a_repeated_request_counts_once(self, flows: Flows) -> None:
        run = flows.start()
        signal = Signal(Key(job=run), "a", b"", request=77)
        assert [one.verdict for one in flows.signal(signal, signal)] == ["recorded", "repeated"]
        flows.store.reopen()
        flows.store.recover()
        assert flows.signal(signal)[0].verdict == "repeated"
        assert flows.cancel(Key(job=run), request=78).verdict == "recorded"
        assert flows.cancel(Key(job=run), request=78).verdict == "repeated"

    def test_unknown_and_closed_runs(self, flows: Flows) -> None:
        run = flows.start(unique=b"u")
        flows.running(run, flows.close())
        for key in (Key(job=run), Key(run=run), Key(workflow_id="u")):
            closed = Reached("closed", run, run, 0, Status.COMPLETED)
            assert flows.signal(Signal(key, "a", b"")) == [closed]
            assert flows.cancel(key) == flows.terminate(key) == closed
        for key in (Key(job=7), Key(run=7), Key(workflow_id="v")):
            assert flows.signal(Signal(key, "a", b"")) == [Reached("unknown")]
            assert flows.cancel(key) == flows.terminate(key) == Reached("unknown")
            assert flows.show(key) is None

    def test_a_request_that_a_run_has_taken_before_its_end_is_repeated(self, flows: Flows) -> None:
        run = flows.start()
        assert flows.signal(Signal(Key(job=run), "a", b"", 5))[0].verdict == "recorded"
        assert flows.cancel(Key(job=run), request=6).verdict == "recorded"
        flows.running(run, flows.close())
        for _ in range(2):
            repeated = Reached("repeated", run, run, 0, Status.COMPLETED)
            assert flows.signal(Signal(Key(job=run), "a", b"", 5)) == [repeated]
            assert flows.cancel(Key(job=run), request=6) == repeated
            assert flows.signal(Signal(Key(job=run), "a", b"", 8))[0].verdict == "closed"
            flows.store.reopen()

    def test_a_signal_begins_a_job_that_waits(self, flows: Flows) -> None:
        delayed = flows.new(payload=b"in", state=State.SCHEDULED, due_us=flows.now_us + SECOND, unique=b"u")
        pending = flows.new(payload=b"in")
        flows.store.submit(delayed, pending)
        signals = [Signal(Key(workflow_id="u"), "a", b""), Signal(Key(job=pending.id), "a", b"")]
        reached = flows.signal(*signals)
        assert [one[:4] for one in reached] == [("recorded", job.id, job.id, 3) for job in (delayed, pending)]
        assert flows.history(delayed.id)[0].input == b"in"  # type: ignore[attr-defined]
        assert flows.begin_waiting() == 0
        assert set(flows.store.lifecycle.begun_roots) == {delayed.id, pending.id}

    def test_a_job_that_waits_is_cancelled_without_a_run(self, flows: Flows) -> None:
        cancelled = flows.new(unique=b"u", payload=b"in")
        terminated = flows.new(state=State.SCHEDULED, due_us=flows.now_us + SECOND)
        flows.store.submit(cancelled, terminated)
        assert flows.cancel(Key(workflow_id="u"), "no more") == Reached("recorded", 0, cancelled.id, 0, Status.CANCELED)
        assert flows.terminate(Key(job=terminated.id)).verdict == "recorded"
        assert flows.list() == []
        for job in (cancelled, terminated):
            ended = flows.store.present(job.id)
            assert (ended.state, ended.term) == (State.CANCELLED, 0)
        assert b"no more" in flows.store.present(cancelled.id).error
        assert set(flows.store.lifecycle.ended_roots) == {cancelled.id, terminated.id}
        assert flows.store.redrive(cancelled.id).redriven
        assert flows.begin_waiting() == 1
        assert flows.history(cancelled.id)[0].input == b"in"  # type: ignore[attr-defined]

    def test_a_cancel_request_is_an_event(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run)
        reached = flows.cancel(Key(job=run), "no more")
        assert (reached.verdict, reached.event, reached.status) == ("recorded", 5, Status.OPEN)
        assert flows.kinds(run)[4:] == ["WorkflowExecutionCancelRequested", "DecisionTaskScheduled"]

    def test_a_terminated_run_ends_at_once(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.activity(), flows.timer(60))
        flows.store.claim(b"charge")
        reached = flows.terminate(Key(job=run), "enough")
        assert (reached.verdict, reached.status) == ("recorded", Status.TERMINATED)
        root = flows.root(run)
        assert root.state == State.FAILED
        assert b"WorkflowTerminated" in root.error
        assert b"enough" in root.error

    def test_requests_to_a_full_history(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run)
        room = 24_000 - flows.row(run).events - 1
        signals = [Signal(Key(job=run), "a", b"") for _ in range(room)]
        reached = flows.signal(*signals, Signal(Key(job=run), "a", b""))
        assert [one.verdict for one in reached[-2:]] == ["recorded", "full"]
        assert flows.signal(Signal(Key(job=run), "b", b""))[0].verdict == "full"
        assert flows.cancel(Key(job=run)).verdict == "recorded"
        flows.running(run, flows.close())
        assert flows.status(run) is Status.COMPLETED

    def test_a_signal_and_the_close_of_the_run_in_one_group(self, flows: Flows) -> None:
        run = flows.start()
        signal = ops.SignalRuns([Signal(Key(job=run), "a", b"")], flows.now_us)
        end = ops.TerminateRun(Key(job=run), "enough", flows.now_us)
        terminated, (signaled,) = flows.group(end, signal)
        assert (terminated.verdict, signaled.verdict) == ("recorded", "closed")
        assert signaled.status is Status.TERMINATED
