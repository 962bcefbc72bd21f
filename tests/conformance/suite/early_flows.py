"""Requests for runs that have not begun: part of the contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State
from mainspring.jobs.rules import Event
from mainspring.workflows import store as ops
from mainspring.workflows.history import WorkflowExecutionSignaled
from mainspring.workflows.model import Definition, Key, Limits, Status
from mainspring.workflows.requests import Reached, Signal
from tests.conformance.suite.flows import SECOND

if TYPE_CHECKING:
    from tests.conformance.suite.flows import Flows

LATER = b"later"
"""A function that becomes a workflow in the course of a test."""
HASH = 2**64 - 5


def received(flows: Flows, run: int) -> list[tuple[str, bytes]]:
    """Return the signals in a run's history."""
    events = flows.history(run)
    return [(event.name, event.input) for event in events if isinstance(event, WorkflowExecutionSignaled)]


class EarlyFlows:
    """Tests of requests that are earlier than the begin of their run."""

    def test_signals_before_any_worker_are_in_the_run_from_its_begin_on(self, flows: Flows) -> None:
        job = flows.new(LATER, unique=b"u")
        other = flows.new(LATER)
        flows.store.submit(job, other)
        stored = Reached("recorded", job.id, job.id, waiting=State.PENDING)
        assert flows.signal(Signal(Key(workflow_id="u"), "a", b"1"), Signal(Key(job=job.id), "b", b"2")) == [stored] * 2
        flows.store.reopen()
        flows.store.recover()
        assert flows.signal(Signal(Key(run=job.id), "a", b"3")) == [stored]
        flows.define(Definition("later"))
        assert flows.begin_waiting(function=LATER) == 2
        assert received(flows, job.id) == [("a", b"1"), ("b", b"2"), ("a", b"3")]
        assert received(flows, other.id) == []
        assert flows.kinds(job.id).count("DecisionTaskScheduled") == 1
        assert flows.begin_waiting(function=LATER) == 0

    def test_a_signal_that_begins_a_run_comes_after_the_stored_ones(self, flows: Flows) -> None:
        job = flows.new(LATER, state=State.SCHEDULED, due_us=flows.now_us + SECOND)
        flows.store.submit(job)
        flows.signal(Signal(Key(job=job.id), "a", b"1", HASH))
        repeated = Reached("repeated", job.id, job.id, waiting=State.SCHEDULED)
        assert flows.signal(Signal(Key(job=job.id), "a", b"x", HASH)) == [repeated]
        flows.define(Definition("later"))
        (reached,) = flows.signal(Signal(Key(job=job.id), "a", b"2"))
        assert (reached.verdict, reached.event) == ("recorded", 4)
        assert received(flows, job.id) == [("a", b"1"), ("a", b"2")]
        assert flows.signal(Signal(Key(job=job.id), "a", b"x", HASH))[0].verdict == "repeated"

    def test_a_signal_does_not_begin_a_run_of_a_paused_workflow(self, flows: Flows) -> None:
        job = flows.new(state=State.SCHEDULED, due_us=flows.now_us + SECOND)
        flows.store.submit(job)
        signal = Signal(Key(job=job.id), "a", b"1")
        (reached,) = flows.group(ops.SignalRuns([signal], flows.now_us, (), frozenset({b"order"})))
        assert reached == [Reached("recorded", job.id, job.id, waiting=State.SCHEDULED)]
        assert flows.store.state(job.id) is State.SCHEDULED
        flows.signal(signal._replace(input=b"2"))
        assert received(flows, job.id) == [("a", b"1"), ("a", b"2")]

    def test_jobs_without_a_workflow_are_cancelled(self, flows: Flows) -> None:
        cancelled, terminated = flows.new(LATER, unique=b"u"), flows.new(LATER)
        flows.store.submit(cancelled, terminated)
        flows.signal(Signal(Key(job=cancelled.id), "a", b"1"))
        ended = Reached("recorded", 0, cancelled.id, 0, Status.CANCELED)
        assert flows.cancel(Key(workflow_id="u"), "no more") == ended
        assert flows.terminate(Key(job=terminated.id)) == ended._replace(root=terminated.id)
        assert b"no more" in flows.store.present(cancelled.id).error
        assert {flows.store.state(job.id) for job in (cancelled, terminated)} == {State.CANCELLED}
        assert flows.signal(Signal(Key(job=cancelled.id), "a", b"2"))[0].verdict == "unknown"
        assert flows.store.redrive(cancelled.id).redriven
        flows.define(Definition("later"))
        assert flows.begin_waiting(function=LATER) == 1
        assert received(flows, cancelled.id) == [("a", b"1")], "signals stay as long as their job"

    def test_the_jobs_of_tasks_are_no_runs(self, flows: Flows) -> None:
        task = flows.store.submitted(function=b"task", unique=b"u")
        key = Key(job=task.id)
        unknown = Reached("unknown")
        tasks = frozenset({b"task", b"order"})
        signal = ops.SignalRuns([Signal(key, "a", b""), Signal(Key(workflow_id="u"), "a", b"")], flows.now_us, tasks)
        end = ops.TerminateRun(key, "", flows.now_us, tasks=tasks)
        cancel = ops.RequestCancelRun(key, "", flows.now_us, tasks=tasks)
        assert flows.group(signal, end, cancel) == [[unknown, unknown], unknown, unknown]
        assert flows.store.state(task.id) is State.PENDING
        job = flows.new(unique=b"u")
        flows.store.submit(job)
        signal = ops.SignalRuns([Signal(Key(workflow_id="u"), "a", b"")], flows.now_us, tasks)
        ((reached,),) = flows.group(signal)
        assert (reached.verdict, reached.run) == ("recorded", job.id), "a workflow may have workers, too"

    def test_a_held_job_is_no_run(self, flows: Flows) -> None:
        job = flows.store.leased(function=LATER, unique=b"u")
        for key in (Key(job=job.id), Key(workflow_id="u")):
            assert flows.signal(Signal(key, "a", b""))[0].verdict == "unknown"
            assert flows.cancel(key).verdict == "unknown"
            assert flows.unbegun(key) == []

    def test_a_unique_of_several_jobs_is_ambiguous(self, flows: Flows) -> None:
        jobs = [flows.new(function, unique=b"u") for function in (LATER, b"task")]
        flows.store.submit(*jobs)
        key = Key(workflow_id="u")
        assert flows.signal(Signal(key, "a", b"")) == [Reached("ambiguous")]
        assert flows.cancel(key) == flows.terminate(key) == Reached("ambiguous")
        assert sorted(flows.unbegun(key)) == [(job.id, False) for job in jobs]
        flows.define(Definition("later"))
        assert flows.unbegun(key) == [(jobs[0].id, True)]
        assert flows.signal(Signal(key, "a", b""))[0].run == jobs[0].id

    def test_a_waiting_job_of_a_task_does_not_hide_a_closed_run(self, flows: Flows) -> None:
        run = flows.start(unique=b"u")
        flows.running(run, flows.close())
        flows.store.submit(flows.new(LATER, unique=b"u"))
        key = Key(workflow_id="u")
        assert flows.signal(Signal(key, "a", b""))[0].verdict == "closed"
        assert flows.show(key) == flows.shown(run)
        following = flows.new(unique=b"u", state=State.SCHEDULED, due_us=flows.now_us + SECOND)
        flows.store.submit(following)
        assert flows.unbegun(key) == [(following.id, True)]
        assert flows.unbegun(Key(run=run)) == []
        assert flows.signal(Signal(key, "a", b""))[0].run == following.id

    def test_a_job_whose_run_has_not_begun_is_shown(self, flows: Flows) -> None:
        job = flows.new(state=State.SCHEDULED, due_us=flows.now_us + SECOND, unique=b"u")
        pending = flows.new(LATER)
        flows.store.submit(job, pending)
        for key in (Key(job=job.id), Key(run=job.id), Key(workflow_id="u")):
            assert flows.unbegun(key) == [(job.id, True)]
        assert flows.unbegun(Key(job=pending.id)) == [(pending.id, False)]
        assert flows.unbegun(Key(workflow_id="v")) == flows.unbegun(Key(job=7)) == []

    def test_early_signals_are_bounded(self, flows: Flows) -> None:
        flows.limit(Limits(events=1_100))
        many, large = flows.new(LATER), flows.new(LATER)
        flows.store.submit(many, large)
        signals = [Signal(Key(job=many.id), "a", b"") for _ in range(99)]
        *reached, last = flows.signal(*signals)
        assert {one.verdict for one in reached} == {"recorded"}
        assert last == Reached("full", 0, many.id)
        half = b"x" * (8 * 2**20 - 1)
        reached = flows.signal(*(Signal(Key(job=large.id), "a", half) for _ in range(3)))
        assert [one.verdict for one in reached] == ["recorded", "recorded", "full"]
        flows.define(Definition("later"))
        assert flows.begin_waiting(function=LATER) == 2
        assert (len(received(flows, many.id)), len(received(flows, large.id))) == (98, 2), "none is lost"

    def test_signals_to_deleted_jobs_are_swept(self, flows: Flows) -> None:
        jobs = [flows.new(LATER) for _ in range(5)]
        flows.store.submit(*jobs)
        flows.signal(*(Signal(Key(job=job.id), "a", b"") for job in jobs for _ in range(2)))
        for job in jobs[1:4]:
            flows.store.cancel(job.id, b"{}", flows.now_us)
        assert flows.group(ops.SweepEarlySignals(0, 2)) == [jobs[1].id]
        assert flows.store.sweep(2**62, 2**62) == 3
        assert flows.group(ops.SweepEarlySignals(0, 2)) == [jobs[1].id]
        assert flows.group(ops.SweepEarlySignals(jobs[1].id, 2)) == [jobs[3].id]
        assert flows.group(ops.SweepEarlySignals(jobs[3].id, 2)) == [0]
        assert flows.group(ops.SweepEarlySignals(0, 2)) == [jobs[4].id]
        flows.define(Definition("later"))
        assert flows.begin_waiting(function=LATER) == 2
        assert [len(received(flows, jobs[place].id)) for place in (0, 4)] == [2, 2]

    def test_signals_to_jobs_that_have_ended_as_those_of_tasks_are_swept(self, flows: Flows) -> None:
        """As long as a job has not ended, its function may become a workflow."""
        jobs = [flows.new(LATER) for _ in range(4)]
        flows.store.submit(*jobs)
        flows.signal(*(Signal(Key(job=job.id), "a", b"") for job in jobs))
        succeeded, failed, given_back = flows.store.claim(LATER, limit=3)
        flows.store.end(succeeded)
        flows.store.end(failed, Event.FAIL)
        flows.store.end(given_back, Event.RETRY, due_us=flows.now_us)
        assert flows.group(ops.SweepEarlySignals(0, 10)) == [0]
        assert flows.store.redrive(failed.id).redriven
        flows.store.wake(flows.now_us)
        flows.define(Definition("later"))
        assert flows.begin_waiting(function=LATER) == 3
        assert [len(received(flows, job.id)) for job in jobs[1:]] == [0, 1, 1]
