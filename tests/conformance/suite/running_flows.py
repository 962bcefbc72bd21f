"""Decisions, activities and ends of runs: part of the contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.jobs import store as job_ops
from mainspring.jobs.model import Options, Priority, Retry, State, encode_options, failure
from mainspring.jobs.rules import Event
from mainspring.workflows import store as ops
from mainspring.workflows.history import ActivityTaskFailed, MarkerRecorded
from mainspring.workflows.model import Key, Parked, Status
from mainspring.workflows.requests import (
    CancelWorkflowExecution,
    Decided,
    FailWorkflowExecution,
    RequestCancelActivityTask,
    Signal,
)
from tests.conformance.suite.driver import released
from tests.conformance.suite.flows import SECOND, kinds

if TYPE_CHECKING:
    from tests.conformance.suite.flows import Flows

SIGNALED = ["WorkflowExecutionSignaled"]
DECIDED = ["DecisionTaskStarted", "DecisionTaskCompleted"]


class RunningFlows:
    """Tests of decisions, activities and ends."""

    def test_a_run_from_its_start_to_its_end(self, flows: Flows) -> None:
        run = flows.start()
        assert flows.kinds(run) == ["WorkflowExecutionStarted", "DecisionTaskScheduled"]
        activity = flows.held_activity(run)
        assert flows.fuse(run, activity, flows.timer(5)).verdict == "recorded"
        assert flows.tasks() == []
        flows.now_us += 5 * SECOND
        assert flows.alarms().due == [(run, flows.now_us)]
        flows.ring(run)
        flows.store.reopen()
        flows.store.recover()
        decided = flows.decide(run, flows.task(run), flows.close(b"result"))
        assert (decided.verdict, decided.status) == ("recorded", Status.COMPLETED)
        root = flows.root(run)
        assert (root.state, root.result, root.ended_us) == (State.SUCCEEDED, b"result", flows.now_us)
        assert flows.kinds(run)[-4:] == ["DecisionTaskScheduled", *DECIDED, "WorkflowExecutionCompleted"]

    def test_a_decision_and_its_answer(self, flows: Flows) -> None:
        run = flows.start()
        decided = flows.decide(run, flows.task(run), flows.activity(), flows.timer(60), about=b"\x91\x91\xa1a")
        assert (decided.verdict, decided.status, decided.refused_close) == ("recorded", Status.OPEN, False)
        assert kinds(decided.events) == [*DECIDED, "ActivityTaskScheduled", "TimerStarted"]
        row = flows.row(run)
        assert (row.events, row.decision, row.about) == (6, 0, b"\x91\x91\xa1a")
        assert row.due_us == flows.now_us + 60 * SECOND
        assert flows.tasks() == []

    def test_a_decision_replaces_the_report_of_the_one_before(self, flows: Flows) -> None:
        run = flows.start()
        flows.decide(run, flows.task(run), flows.timer(60), about=b"\x91\x91\xa1a")
        flows.signal(Signal(Key(run=run), "s", b""))
        flows.decide(run, flows.task(run))
        assert flows.row(run).about == b""

    def test_an_activity_is_a_job_with_its_options(self, flows: Flows) -> None:
        run = flows.start()
        options = Options(retry=Retry(max_attempts=7), timeout=5.0)
        activity = flows.activity(input=b"in", options=encode_options(options), task_priority=2, key=b"k")
        flows.running(run, activity)
        (job,) = flows.store.list(function=b"charge")
        wanted = msgspec.structs.replace(options, run=flows.of(run), ref=5, forget=True)
        assert (job.options, job.priority, job.input_size, job.key) == (wanted, Priority.LOW, 2, b"k")

    def test_the_end_of_an_activity_asks_for_a_decision(self, flows: Flows) -> None:
        run = flows.start()
        job = flows.held_activity(run)
        flows.store.settle(flows.settled(job, b"paid"))
        assert flows.kinds(run)[5:] == ["ActivityTaskStarted", "ActivityTaskCompleted", "DecisionTaskScheduled"]
        assert flows.store.find(job.id) is None
        assert flows.task(run).id == flows.row(run).decision

    def test_a_failed_activity_keeps_its_error(self, flows: Flows) -> None:
        run = flows.start()
        error = failure("WorkFailed", "no")
        flows.store.settle(flows.settled(flows.held_activity(run), event=Event.FAIL, error=error))
        failed = flows.history(run)[6]
        assert isinstance(failed, ActivityTaskFailed)
        assert (failed.reason, failed.details) == ("WorkFailed", error)

    def test_an_activity_that_is_retried_is_no_event(self, flows: Flows) -> None:
        run = flows.start()
        job = flows.held_activity(run)
        flows.store.settle(flows.settled(job, event=Event.RETRY, error=failure("WorkFailed", "no")))
        assert len(flows.history(run)) == 5
        assert flows.store.state(job.id) is State.SCHEDULED

    def test_completions_of_a_fan_out_are_one_decision(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, *(flows.activity() for _ in range(5)))
        jobs = flows.store.claim(b"charge")
        flows.group(*(job_ops.Settle([flows.settled(job)]) for job in jobs))
        assert flows.kinds(run).count("DecisionTaskScheduled") == 2
        flows.task(run)

    def test_a_fused_decision_has_no_job(self, flows: Flows) -> None:
        run = flows.start()
        activity = flows.held_activity(run)
        decided = flows.fuse(run, activity, flows.activity(b"ship"))
        added = ["ActivityTaskStarted", "ActivityTaskCompleted", "DecisionTaskScheduled", *DECIDED]
        assert kinds(decided.events) == [*added, "ActivityTaskScheduled"]
        assert [job.function for job in flows.store.list(state=State.PENDING)] == [b"ship"]

    def test_a_fused_decision_after_newer_events_is_stale_and_the_settlement_stands(self, flows: Flows) -> None:
        run = flows.start()
        activity = flows.held_activity(run)
        seen = flows.row(run).events
        flows.signal(Signal(Key(job=run), "approved", b""))
        decided = flows.fuse(run, activity, flows.close(), seen=seen)
        assert (decided.verdict, decided.events) == ("stale", ())
        assert flows.status(run) is Status.OPEN
        assert "ActivityTaskCompleted" in flows.kinds(run)
        flows.task(run)

    def test_a_fused_decision_in_one_group_with_a_signal(self, flows: Flows) -> None:
        run = flows.start()
        activity = flows.held_activity(run)
        completion = flows.completing(run, None, flows.close(), settled=[activity.id])
        signals = ops.SignalRuns([Signal(Key(job=run), "approved", b"")], flows.now_us)
        decide = ops.Decide([completion], flows.now_us)
        _, (signaled,), (decided,) = flows.group(job_ops.Settle([flows.settled(activity)]), signals, decide)
        assert (signaled.verdict, decided.verdict) == ("recorded", "stale")
        flows.task(run)

    def test_a_completion_without_the_task_is_stale(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        flows.store.settle(released(task))
        completion = flows.completing(run, task, flows.close())
        stale, (decided,) = flows.group(job_ops.Settle([flows.settled(task)]), ops.Decide([completion], flows.now_us))
        assert (stale, decided.verdict, decided.events) == ({task.id}, "stale", ())
        (more,) = flows.group(ops.Decide([completion._replace(more=True, decisions=())], flows.now_us))
        assert [one.verdict for one in more] == ["stale"]
        assert flows.task(run).id == task.id
        assert flows.group(ops.Decide([flows.completing(run, None)._replace(run=7)], flows.now_us)) == [
            [Decided("stale", "the run is closed, or there is none")]
        ]

    def test_a_completion_with_the_task_of_another_run_is_stale(self, flows: Flows) -> None:
        first, second = flows.start(), flows.start()
        task = flows.task(second)
        assert flows.decide(first, task, flows.close()).verdict == "stale"
        assert flows.decide(first, flows.task(second), flows.timer(1), more=True).verdict == "stale"

    def test_a_step_of_a_decision_that_its_group_gives_back_is_stale(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        completion = flows.completing(run, task, flows.timer(1), more=True)
        _, (decided,) = flows.group(job_ops.Settle([released(task)]), ops.Decide([completion], flows.now_us))
        assert decided.verdict == "stale"
        assert flows.decide(run, flows.task(run), flows.timer(1), more=True).verdict == "recorded"

    def test_a_task_is_completed_once(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        completion = flows.completing(run, task, flows.timer(1))
        settle, decide = job_ops.Settle([flows.settled(task)]), ops.Decide([completion, completion], flows.now_us)
        _, decided = flows.group(settle, decide)
        assert [one.verdict for one in decided] == ["recorded", "stale"]

    def test_a_malformed_list_is_refused_whole(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        decided = flows.decide(run, task, flows.close(), flows.timer(1))
        assert decided.verdict == "refused"
        assert "last" in decided.why
        assert len(flows.history(run)) == 2
        assert flows.task(run).id != task.id

    def test_unseen_events_refuse_a_close(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        seen = flows.row(run).events
        flows.signal(Signal(Key(job=run), "approved", b""))
        decided = flows.decide(run, task, flows.timer(60), flows.close(), seen=seen)
        assert (decided.verdict, decided.refused_close, decided.status) == ("recorded", True, Status.OPEN)
        assert kinds(decided.events) == [
            *SIGNALED,
            *DECIDED,
            "TimerStarted",
            "CompleteWorkflowExecutionFailed",
            "DecisionTaskScheduled",
        ]
        assert flows.decide(run, flows.task(run), flows.close()).status is Status.COMPLETED

    def test_a_run_fails_or_is_cancelled_by_its_code(self, flows: Flows) -> None:
        error = failure("WorkFailed", "no")
        run = flows.start()
        flows.running(run, FailWorkflowExecution(1, "ValueError", error))
        root = flows.root(run)
        assert (flows.status(run), root.state, root.error) == (Status.FAILED, State.FAILED, error)
        run = flows.start()
        flows.running(run, CancelWorkflowExecution(1, error))
        root = flows.root(run)
        assert (flows.status(run), root.state, root.error) == (Status.CANCELED, State.CANCELLED, error)

    def test_steps_are_recorded_under_the_task(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        decided = flows.decide(run, task, steps=[flows.step(1)], more=True)
        assert (decided.verdict, kinds(decided.events)) == ("recorded", ["DecisionTaskStarted", "MarkerRecorded"])
        assert flows.row(run).decision == task.id
        repeated = flows.decide(run, task, steps=[flows.step(1), flows.step(2, batch=2)], more=True, seen=2)
        assert kinds(repeated.events) == ["DecisionTaskStarted", "MarkerRecorded", "MarkerRecorded"]
        assert flows.store.state(task.id) is State.LEASED
        flows.store.reopen()
        flows.store.recover()
        other = flows.decide(run, flows.task(run), steps=[flows.step(1, digest=8)], more=True, seen=2)
        assert other.verdict == "stale"
        markers = [event for event in flows.history(run) if isinstance(event, MarkerRecorded)]
        assert [(marker.number, marker.batch) for marker in markers] == [(1, 1), (2, 2)]

    def test_commands_while_steps_run_get_another_task(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        flows.store.lifecycle.leases = True
        decided = flows.decide(run, task, flows.timer(60), more=True)
        assert kinds(decided.events) == [*DECIDED, "TimerStarted", "DecisionTaskScheduled"]
        decision = flows.row(run).decision
        assert decision != task.id
        assert flows.store.find(task.id) is None
        assert flows.store.lifecycle.deleted == [task.id]
        job = flows.store.present(decision)
        assert (job.state, job.term) == (State.LEASED, flows.store.term)
        flows.decide(run, job, flows.close())

    def test_an_unstarted_activity_is_cancelled_at_once(self, flows: Flows) -> None:
        run = flows.start()
        activity = flows.activity()
        flows.running(run, activity)
        flows.signal(Signal(Key(job=run), "stop", b""))
        decided = flows.decide(run, flows.task(run), RequestCancelActivityTask(9, activity.activity_id))
        assert kinds(decided.events)[-3:] == [
            "ActivityTaskCancelRequested",
            "ActivityTaskCanceled",
            "DecisionTaskScheduled",
        ]
        assert flows.store.list(function=b"charge") == []

    def test_the_worker_of_a_started_activity_is_asked_to_stop(self, flows: Flows) -> None:
        run = flows.start()
        activity = flows.activity()
        flows.running(run, activity)
        (job,) = flows.store.claim(b"charge")
        flows.signal(Signal(Key(job=run), "stop", b""))
        flows.decide(run, flows.task(run), RequestCancelActivityTask(9, activity.activity_id))
        assert flows.kinds(run)[-1] == "ActivityTaskCancelRequested"
        assert flows.store.lifecycle.stopped == [job.id]
        flows.store.settle(flows.settled(job, event=Event.LOSE))
        assert flows.kinds(run)[-3:] == ["ActivityTaskStarted", "ActivityTaskCanceled", "DecisionTaskScheduled"]

    def test_an_activity_that_is_to_stop_is_not_executed_again_after_the_end_of_its_node(self, flows: Flows) -> None:
        run = flows.start()
        activity = flows.activity()
        flows.running(run, activity)
        (job,) = flows.store.claim(b"charge")
        flows.signal(Signal(Key(job=run), "stop", b""))
        flows.decide(run, flows.task(run), RequestCancelActivityTask(9, activity.activity_id))
        flows.store.reopen()
        assert flows.kinds(run)[-1] == "ActivityTaskCancelRequested"
        flows.store.recover()
        assert flows.kinds(run)[-3:] == ["ActivityTaskStarted", "ActivityTaskCanceled", "DecisionTaskScheduled"]
        assert flows.store.claim(b"charge") == []
        assert flows.store.find(job.id) is None

    def test_a_close_deletes_the_jobs_of_the_run(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.activity(), flows.activity(b"ship"), flows.timer(60))
        (held,) = flows.store.claim(b"charge")
        flows.signal(Signal(Key(job=run), "end", b""))
        flows.running(run, flows.close())
        assert [job.id for job in flows.store.list()] == [run]
        assert held.id in flows.store.lifecycle.deleted
        assert flows.store.settle(flows.settled(held)) == {held.id}
        assert flows.alarms(2**62).due == []

    def test_a_close_keeps_the_jobs_of_abandoned_activities(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.activity(abandoned=True), flows.activity(b"ship", abandoned=True))
        (held,) = flows.store.claim(b"charge")
        flows.signal(Signal(Key(job=run), "end", b""))
        flows.running(run, flows.close())
        events = len(flows.history(run))
        assert flows.store.settle(flows.settled(held)) == set()
        assert flows.store.find(held.id) is None
        flows.store.reopen()
        flows.store.recover()
        (waiting,) = flows.store.claim(b"ship")
        assert flows.store.settle(flows.settled(waiting, event=Event.FAIL)) == set()
        assert [job.id for job in flows.store.list()] == [run]
        assert len(flows.history(run)) == events

    def test_a_task_that_ends_otherwise_is_replaced(self, flows: Flows) -> None:
        run = flows.start()
        first = flows.row(run).decision
        assert flows.store.cancel(first).before == State.PENDING
        second = flows.task(run)
        assert second.id not in {first, 0}
        assert len(flows.history(run)) == 2
        flows.store.settle(flows.settled(second, event=Event.FAIL))
        assert flows.task(run).id != second.id

    def test_a_run_is_begun_signalled_and_closed_in_one_group(self, flows: Flows) -> None:
        job = flows.new(unique=b"u")
        signal = ops.SignalRuns([Signal(Key(workflow_id="u"), "go", b"")], flows.now_us)
        end = ops.TerminateRun(Key(job=job.id), "enough", flows.now_us)
        _, (signaled,), terminated = flows.group(flows.starting(job), signal, end)
        assert (signaled.verdict, signaled.event) == ("recorded", 3)
        assert (terminated.verdict, terminated.status) == ("recorded", Status.TERMINATED)
        assert flows.store.state(job.id) is State.FAILED
        assert flows.tasks() == []

    def test_many_runs_in_one_group(self, flows: Flows) -> None:
        jobs = [flows.new() for _ in range(300)]
        flows.group(ops.BeginRuns([ops.Start(job) for job in jobs], flows.now_us))
        tasks = flows.tasks()
        runs = [task.options.run[0] for task in tasks if task.options is not None and task.options.run is not None]
        assert runs == [job.id for job in jobs]
        done = [flows.completing(run, task, flows.close(), seen=2) for run, task in zip(runs, tasks, strict=True)]
        settle = job_ops.Settle([flows.settled(task) for task in tasks])
        stale, decided = flows.group(settle, ops.Decide(done, flows.now_us))
        assert stale == set()
        assert {(one.verdict, one.status) for one in decided} == {("recorded", Status.COMPLETED)}

    def test_a_parked_run_has_no_task_and_takes_events(self, flows: Flows) -> None:
        run = flows.start()
        decided = flows.park(run, Parked("defect", "ValueError: no"))
        assert decided.verdict == "parked"
        row = flows.row(run)
        assert (row.parked, row.parked_us, row.builds) == (Parked("defect", "ValueError: no"), flows.now_us, ("b1",))
        flows.signal(Signal(Key(job=run), "approved", b""))
        assert flows.tasks() == []
        assert flows.list(parked=True) == [run]
        assert flows.store.read(ops.CountParked()) == {("default", "order", "1"): 1}
        assert flows.store.read(ops.FindVersions()) == ops.Versions(flows.define(), {("default", "order", "1"): 1})
        assert flows.unpark(key=Key(job=run)) == 1
        assert flows.row(run).builds == ()
        assert flows.unpark(key=Key(job=run)) == 0
        flows.running(run, flows.close())

    def test_five_losses_park_a_run_and_it_is_tried_later(self, flows: Flows) -> None:
        run = flows.start()
        for _ in range(5):
            task = flows.task(run)
            flows.store.settle(flows.settled(task, event=Event.FAIL, error=failure("WorkerLost", "gone")))
        row = flows.row(run)
        assert row.parked is not None
        assert (row.parked.kind, row.decision) == ("losses", 0)
        assert flows.unpark(definition=("default", "order", "1"), build="b1") == 0
        assert row.builds == ()
        flows.now_us = row.due_us
        assert flows.alarms().due == [(run, flows.now_us)]
        flows.ring(run)
        flows.running(run, flows.close())

    def test_lost_attempts_of_a_task_count_as_losses(self, flows: Flows) -> None:
        run = flows.start()
        for _ in range(5):
            task = flows.task(run)
            flows.store.settle(flows.settled(task, event=Event.LOSE))
        assert flows.list(parked=True) == [run]
        assert flows.store.find(task.id) is None
        assert flows.unpark() == 1
