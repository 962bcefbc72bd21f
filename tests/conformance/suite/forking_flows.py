"""Resets and reruns: part of the contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.jobs.model import State
from mainspring.resources.rules import UseSpec
from mainspring.workflows import store as ops
from mainspring.workflows.carrying import Choice
from mainspring.workflows.forking import Change, Point
from mainspring.workflows.history import (
    ActivityTaskScheduled,
    ChildWorkflowExecutionCompleted,
    DecisionTaskCompleted,
    ExternalWorkflowExecutionSignaled,
    MarkerRecorded,
    TimerFired,
    WorkflowExecutionContinuedAsNew,
    WorkflowExecutionSignaled,
    WorkflowExecutionStarted,
)
from mainspring.workflows.model import Definition, Key, Status
from mainspring.workflows.requests import (
    FailWorkflowExecution,
    Signal,
    SignalExternalWorkflowExecution,
)
from tests.conformance.suite.child_flows import parent_of
from tests.conformance.suite.flows import MINUTE, SECOND, kinds
from tests.conformance.suite.run_hold_flows import asking

if TYPE_CHECKING:
    from tests.conformance.suite.flows import Flows

RERUN = Change()
FIRST, LAST = Change(Point(end="first")), Change(Point(end="last"))


def fork(flows: Flows, key: Key | int, change: Change = RERUN, **values: Any) -> ops.Forked:
    key = Key(run=key) if isinstance(key, int) else key
    (forked,) = flows.group(ops.ForkRun(key, change, flows.now_us, **values))
    assert isinstance(forked, ops.Forked)
    return forked


def forked_run(flows: Flows, key: Key | int, change: Change = RERUN) -> int:
    found = fork(flows, key, change)
    assert found.verdict == "forked", found
    return found.run


def decisions(flows: Flows, run: int) -> list[int]:
    return [event.id for event in flows.history(run) if isinstance(event, DecisionTaskCompleted)]


def reopen(flows: Flows) -> None:
    flows.store.reopen()
    flows.store.recover()


def two_activities(flows: Flows, **values: Any) -> int:
    """Return a run whose first activity has ended and whose second one runs."""
    run = flows.start(**values)
    flows.fuse(run, flows.held_activity(run), flows.activity(b"ship"), result=b"paid")
    return run


class ForkingFlows:
    """Tests of forks."""

    # ---- reruns ----

    def test_a_rerun_of_an_open_run_goes_on_under_its_root_job(self, flows: Flows) -> None:
        first = two_activities(flows, unique=b"u", priority=2)
        forked = fork(flows, Key(workflow_id="u"))
        assert (forked.verdict, forked.source, forked.source_root, forked.root) == ("forked", first, first, first)
        second = forked.run
        assert (flows.status(first), flows.status(second)) == (Status.CONTINUED_AS_NEW, Status.OPEN)
        closed = flows.last_event(first, WorkflowExecutionContinuedAsNew)
        assert (closed.new_run, closed.reason) == (second, "rerun")
        assert flows.store.list(function=b"ship") == [], "the activities of the closed run are withdrawn"
        started, *carried = flows.history(second)[:2]
        assert isinstance(started, WorkflowExecutionStarted)
        assert (started.forked_run, started.continued_run, started.task_priority) == (first, first, 2)
        assert started.seed == flows.history(first)[0].seed  # type: ignore[attr-defined]
        (marker,) = carried
        assert isinstance(marker, MarkerRecorded)
        assert (marker.name, marker.function, marker.details) == ("carried-activity", "charge", b"paid")
        assert flows.shown(second).state.forked_run == first
        reopen(flows)
        flows.decide(second, flows.task(second), flows.close(b"total"))
        root = flows.root(first)
        assert (root.state, root.result) == (State.SUCCEEDED, b"total")

    def test_a_rerun_of_a_closed_run_has_a_root_job_of_its_own(self, flows: Flows) -> None:
        first = flows.start(unique=b"u")
        flows.running(first, FailWorkflowExecution(1, "Broken"))
        forked = fork(flows, first, Change(input=b"[18]"))
        second = forked.run
        assert (forked.verdict, forked.root) == ("forked", second)
        assert (flows.status(first), flows.row(second).workflow_id) == (Status.FAILED, "u")
        assert flows.root(second).unique == b"u"
        started = flows.last_event(second, WorkflowExecutionStarted)
        assert (started.input, started.forked_run, started.continued_run) == (b"[18]", first, 0)
        reopen(flows)
        flows.running(second, flows.close(b"total"))
        assert (flows.root(first).state, flows.root(second).result) == (State.FAILED, b"total")

    def test_a_rerun_of_a_closed_run_without_a_unique_keeps_the_workflow_id(self, flows: Flows) -> None:
        first = flows.start()
        flows.running(first, flows.close())
        second = forked_run(flows, first)
        assert flows.row(second).workflow_id == flows.row(first).workflow_id
        assert flows.root(second).unique == b""
        assert fork(flows, first).verdict == "open"
        flows.running(second, flows.close())

    def test_a_fork_of_a_closed_run_is_refused_while_its_id_is_open_or_waits(self, flows: Flows) -> None:
        first = flows.start(unique=b"u")
        flows.running(first, flows.close())
        second = flows.start(unique=b"u")
        refused = fork(flows, first)
        assert (refused.verdict, refused.rival) == ("open", second)
        flows.running(second, flows.close())
        waiting = flows.store.submit(flows.store.job(b"order", b"[1]", unique=b"u", created_us=flows.now_us))
        assert fork(flows, first).verdict == "open", waiting
        assert flows.begin_waiting() == 1
        flows.running(flows.list()[0], flows.close())

    def test_a_dry_run_changes_nothing(self, flows: Flows) -> None:
        run = two_activities(flows)
        before = flows.history(run)
        planned = fork(flows, run, dry_run=True)
        assert planned.verdict == "planned"
        assert planned.plan is not None
        assert (planned.plan.carried, planned.plan.repeated) == (("charge#1",), ("ship#1",))
        assert fork(flows, run, FIRST, dry_run=True).verdict == "planned"
        assert (flows.history(run), flows.list()) == (before, [run])

    def test_a_choice_that_the_run_does_not_have_is_refused(self, flows: Flows) -> None:
        run = two_activities(flows)
        refused = fork(flows, run, Change(choice=Choice(from_call="sail")))
        assert refused.verdict == "refused"
        assert "charge" in refused.fault
        assert fork(flows, run, Change(Point(event=1))).verdict == "refused"
        assert fork(flows, run, Change(version="7")).versions == ("1",)
        assert fork(flows, 999).verdict == "unknown"

    def test_a_rerun_takes_the_version_for_new_runs(self, flows: Flows) -> None:
        run = flows.start()
        flows.now_us += 1
        flows.define(Definition("order", "2"))
        second = forked_run(flows, run)
        assert flows.row(second).version == "2"
        third = forked_run(flows, second, Change(version="1"))
        assert flows.row(third).version == "1"
        flows.running(third, flows.close())

    def test_signals_are_repeated_unless_they_are_dropped(self, flows: Flows) -> None:
        run = flows.start()
        flows.signal(Signal(Key(job=run), "a", b"1", 77), Signal(Key(job=run), "b", b"2"))
        second = forked_run(flows, run)
        events = flows.history(second)
        assert [one.name for one in events if isinstance(one, WorkflowExecutionSignaled)] == ["a", "b"]
        (repeated,) = flows.signal(Signal(Key(job=run), "a", b"1", 77))
        assert repeated.verdict == "repeated"
        third = forked_run(flows, second, Change(drop_signals=True))
        assert "WorkflowExecutionSignaled" not in flows.kinds(third)
        (repeated,) = flows.signal(Signal(Key(job=run), "a", b"1", 77))
        assert repeated.verdict == "repeated"
        flows.running(third, flows.close())

    def test_a_parent_waits_for_the_fork_of_its_child(self, flows: Flows) -> None:
        parent, child = parent_of(flows)
        second = forked_run(flows, child)
        flows.running(second, flows.close(b"seven"))
        assert flows.last_event(parent, ChildWorkflowExecutionCompleted).result == b"seven"
        flows.running(parent, flows.close())

    def test_children_of_the_earlier_run_end_by_their_policies(self, flows: Flows) -> None:
        parent, child = parent_of(flows)
        second = forked_run(flows, parent)
        assert flows.status(child) is Status.TERMINATED
        flows.running(second, flows.close())

    def test_the_report_of_the_earlier_decider_is_stale(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        second = forked_run(flows, run)
        assert flows.decide(run, task, flows.close()).verdict == "stale"
        flows.running(second, flows.close())

    # ---- resets ----

    def test_a_reset_begins_with_the_events_up_to_a_decision(self, flows: Flows) -> None:
        run = two_activities(flows, unique=b"u")
        first, second = decisions(flows, run)
        new = forked_run(flows, run, Change(Point(event=second)))
        began = flows.history(new)
        assert kinds(began) == flows.kinds(run)[: len(began)]
        assert type(began[-1]).__name__ == "DecisionTaskScheduled"
        started = began[0]
        assert isinstance(started, WorkflowExecutionStarted)
        assert (started.run, started.forked_run, started.forked_at) == (new, run, second)
        reopen(flows)
        flows.running(new, flows.activity(b"ship"))
        (job,) = flows.store.claim(b"ship")
        flows.fuse(new, job, flows.close(b"total"))
        assert flows.root(new).result == b"total"
        assert first < second

    @pytest.mark.parametrize("change", [FIRST, LAST, Change(Point(before="charge")), Change(Point(before="ship#1"))])
    def test_a_decision_is_named_in_other_ways(self, flows: Flows, change: Change) -> None:
        run = two_activities(flows)
        first, second = decisions(flows, run)
        planned = fork(flows, run, change, dry_run=True)
        assert planned.plan is not None
        assert planned.plan.point == (first if change in (FIRST, Change(Point(before="charge"))) else second)

    def test_a_reset_of_a_closed_run(self, flows: Flows) -> None:
        run = flows.start(unique=b"u")
        flows.fuse(run, flows.held_activity(run), FailWorkflowExecution(9, "Broken"))
        new = forked_run(flows, run, LAST)
        assert flows.shown(new).state.forked_run == run
        flows.running(new, flows.close())
        assert flows.status(run) is Status.FAILED

    def test_activities_that_were_open_are_scheduled_anew(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.activity(b"charge"), flows.activity(b"ship", schedule_to_close=60.0))
        (charge,) = flows.store.claim(b"charge")
        flows.fuse(run, charge, flows.activity(b"pack"))
        flows.wait(2 * MINUTE)
        new = forked_run(flows, run, LAST)
        (job,) = flows.store.claim(b"ship")
        assert job.options is not None
        assert job.options.run == flows.of(new)
        assert flows.ring(new) == {new: flows.row(new).due_us}, "its timeout runs from now"
        assert flows.row(new).due_us == flows.now_us + MINUTE
        assert flows.store.claim(b"pack") == []
        flows.fuse(new, job, flows.close())
        events = [one for one in flows.history(new) if isinstance(one, ActivityTaskScheduled)]
        assert [one.function for one in events] == [b"charge", b"ship"]

    def test_timers_keep_their_times(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.timer(60))
        flows.signal(Signal(Key(job=run), "a", b""))
        flows.running(run)
        flows.wait(30 * SECOND)
        new = forked_run(flows, run, LAST)
        assert flows.row(new).due_us == flows.row(run).started_us + MINUTE
        flows.wait(MINUTE)
        flows.ring(new)
        assert flows.last_event(new, TimerFired).timer_id
        flows.running(new, flows.close())

    def test_children_that_were_open_begin_anew(self, flows: Flows) -> None:
        parent, child = parent_of(flows)
        flows.signal(Signal(Key(job=parent), "a", b""))
        flows.running(parent)
        new = forked_run(flows, parent, LAST)
        (renewed,) = flows.children(new)
        assert renewed != child
        assert (flows.status(child), flows.status(renewed)) == (Status.TERMINATED, Status.OPEN)
        assert flows.row(renewed).workflow_id == f"H:n1:{renewed}"
        flows.running(renewed, flows.close(b"seven"))
        assert flows.last_event(new, ChildWorkflowExecutionCompleted).result == b"seven"
        flows.running(new, flows.close())

    def test_a_child_with_a_name_begins_anew(self, flows: Flows) -> None:
        parent, child = parent_of(flows, workflow_id="part-1")
        flows.signal(Signal(Key(job=parent), "a", b""))
        flows.running(parent)
        new = forked_run(flows, parent, LAST)
        (renewed,) = flows.children(new)
        assert (flows.row(renewed).workflow_id, flows.status(renewed)) == ("part-1", Status.OPEN)
        flows.running(renewed, flows.close())
        flows.running(new, flows.close())
        assert flows.status(child) is Status.TERMINATED

    def test_later_signals_are_repeated_after_those_that_the_reset_has(self, flows: Flows) -> None:
        run = flows.start()
        flows.signal(Signal(Key(job=run), "a", b"1"))
        flows.running(run, flows.timer(600))
        flows.signal(Signal(Key(job=run), "b", b"2"))
        flows.running(run)
        flows.signal(Signal(Key(job=run), "c", b"3"))
        kept = forked_run(flows, run, LAST)
        assert [one.name for one in flows.history(kept) if isinstance(one, WorkflowExecutionSignaled)] == [
            "a",
            "b",
            "c",
        ]
        dropped = forked_run(flows, kept, FIRST._replace(drop_signals=True))
        assert [one.name for one in flows.history(dropped) if isinstance(one, WorkflowExecutionSignaled)] == ["a"]
        flows.running(dropped, flows.close())

    def test_a_request_without_an_answer_gets_the_one_that_came_later(self, flows: Flows) -> None:
        other, run = flows.start(), flows.start()
        handle = flows.row(other).workflow_id
        flows.running(run, flows.timer(600), SignalExternalWorkflowExecution(2, handle, "news", 0, b"1"))
        flows.running(run, flows.timer(900))
        new = forked_run(flows, run, LAST)
        assert len([one for one in flows.history(new) if isinstance(one, ExternalWorkflowExecutionSignaled)]) == 1
        assert not flows.shown(new).state.externals
        assert flows.kinds(other).count("WorkflowExecutionSignaled") == 1
        flows.running(new, flows.close())
        flows.running(other, flows.close())

    def test_a_reset_where_the_run_waited_for_slots_is_refused(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, asking(1, UseSpec("nowhere")), flows.timer(600))
        flows.signal(Signal(Key(job=run), "a", b""))
        flows.running(run)
        refused = fork(flows, run, LAST)
        assert refused.verdict == "refused"
        assert "slots" in refused.fault
        new = forked_run(flows, run, FIRST)
        flows.running(new, flows.close())

    def test_the_execution_timeout_of_a_reset_runs_from_now(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.timer(1))
        flows.wait(3600 * SECOND)
        new = forked_run(flows, run, LAST)
        assert flows.row(new).due_us == flows.now_us + 86_400 * SECOND
        flows.running(new, flows.close())

    def test_a_long_reset_is_stored_in_parts(self, flows: Flows) -> None:
        run = flows.start()
        for _ in range(40):
            flows.signal(*(Signal(Key(job=run), "a", b"x" * 1000) for _ in range(30)))
        flows.running(run, flows.timer(60))
        new = forked_run(flows, run, LAST)
        page = flows.store.read(ops.ReadHistory(run=new, limit=100))
        assert len(page.items) == 100
        assert len(flows.history(new)) == 1_202
        reopen(flows)
        flows.running(new, flows.close())
