"""Runs that continue as new: part of the contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs import store as job_ops
from mainspring.jobs.model import State, failure
from mainspring.workflows import store as ops
from mainspring.workflows.history import (
    ChildWorkflowExecutionCompleted,
    WorkflowExecutionCancelRequested,
    WorkflowExecutionContinuedAsNew,
    WorkflowExecutionSignaled,
    WorkflowExecutionStarted,
)
from mainspring.workflows.model import Definition, Key, Status
from mainspring.workflows.requests import Signal, SignalExternalWorkflowExecution
from tests.conformance.suite.child_flows import parent_of
from tests.conformance.suite.flows import SECOND, kinds

if TYPE_CHECKING:
    from tests.conformance.suite.flows import Flows

BEGUN = ["WorkflowExecutionStarted", "DecisionTaskScheduled"]


class ChainingFlows:
    """Tests of chains."""

    def test_a_run_continues_as_new_under_its_root_job(self, flows: Flows) -> None:
        first = flows.start(unique=b"u", priority=2)
        decided = flows.decide(first, flows.task(first), flows.activity(), flows.continuing(b"[18]"))
        assert (decided.verdict, decided.status) == ("recorded", Status.CONTINUED_AS_NEW)
        closed = flows.history(first)[-1]
        assert isinstance(closed, WorkflowExecutionContinuedAsNew)
        second = closed.new_run
        assert flows.list(workflow_id="u") == [second, first]
        assert flows.kinds(second) == BEGUN
        started, before = flows.history(second)[0], flows.history(first)[0]
        assert isinstance(started, WorkflowExecutionStarted)
        assert isinstance(before, WorkflowExecutionStarted)
        assert (started.input, started.continued_run, started.seed) == (b"[18]", first, second)
        for name in ("type", "version", "root", "workflow_id", "task_priority", "execution_timeout", "child_policy"):
            assert getattr(started, name) == getattr(before, name), name
        assert flows.root(second).id == first
        assert flows.root(second).state == State.RUNNING
        assert flows.store.list(function=b"charge") == [], "the activities of the closed run are withdrawn"
        assert flows.shown(first).state.new_run == second
        assert flows.shown(second).state.continued_run == first
        flows.store.reopen()
        flows.store.recover()
        flows.decide(second, flows.task(second), flows.close(b"total"))
        root = flows.root(first)
        assert (root.state, root.result) == (State.SUCCEEDED, b"total")

    def test_the_timeout_of_each_run_is_its_own(self, flows: Flows) -> None:
        first = flows.start()
        flows.wait(3600 * SECOND)
        second = flows.chained(first)
        assert flows.row(second).due_us == flows.now_us + 86_400 * SECOND

    def test_keys_name_the_last_run_of_a_chain(self, flows: Flows) -> None:
        first = flows.start(unique=b"u")
        second = flows.chained(first)
        third = flows.chained(second)
        for key in (Key(job=first), Key(workflow_id="u")):
            shown = flows.show(key)
            assert shown is not None
            assert shown.row.id == third
            (reached,) = flows.signal(Signal(key, "a", b""))
            assert (reached.verdict, reached.run, reached.root) == ("recorded", third, first)
        (reached,) = flows.signal(Signal(Key(run=second), "a", b""))
        assert (reached.verdict, reached.status) == ("closed", Status.CONTINUED_AS_NEW)
        assert flows.terminate(Key(job=first)).run == third
        last = flows.start(unique=b"u")
        shown = flows.show(Key(job=first))
        assert shown is not None
        assert shown.row.id == third, "another root job has the workflow id now"
        shown = flows.show(Key(workflow_id="u"))
        assert shown is not None
        assert shown.row.id == last

    def test_unseen_and_unread_signals_go_along_in_order(self, flows: Flows) -> None:
        run = flows.start()
        inputs = [b"%d" % number for number in range(6)]
        flows.signal(*(Signal(Key(job=run), "a", one, 100 + int(one)) for one in inputs[:4]))
        task = flows.task(run)
        seen = flows.row(run).events
        flows.signal(*(Signal(Key(job=run), "b", one, 100 + int(one)) for one in inputs[4:]))
        decided = flows.decide(run, task, flows.continuing(unread=(4, 6)), seen=seen)
        assert (decided.status, decided.refused_close) == (Status.CONTINUED_AS_NEW, False)
        following = flows.last(run)
        assert flows.kinds(following) == [BEGUN[0], *["WorkflowExecutionSignaled"] * 4, BEGUN[1]]
        assert _signals(flows, following) == [("a", b"1"), ("a", b"3"), ("b", b"4"), ("b", b"5")]
        answers = flows.signal(*(Signal(Key(job=run), "a", one, 100 + int(one)) for one in inputs))
        assert {one.verdict for one in answers} == {"repeated"}

    def test_unread_signals_are_read_from_the_store(self, flows: Flows) -> None:
        run = flows.start()
        flows.signal(Signal(Key(job=run), "a", b"old"))
        flows.running(run, flows.timer(1))
        flows.signal(Signal(Key(job=run), "a", b"new"))
        flows.store.reopen()
        flows.store.recover()
        task = flows.task(run)
        flows.decide(run, task, flows.continuing(unread=(3,)))
        assert _signals(flows, flows.last(run)) == [("a", b"old")]

    def test_numbers_that_are_no_signals_go_not_along(self, flows: Flows) -> None:
        run = flows.start()
        flows.signal(Signal(Key(job=run), "a", b"1"))
        flows.running(run, flows.continuing(unread=(-(2**63), 0, 1, 2**63)))
        assert flows.kinds(flows.last(run)) == BEGUN

    def test_a_repeated_signal_meets_the_next_run(self, flows: Flows) -> None:
        run = flows.start()
        signal = Signal(Key(job=run), "a", b"1", 77)
        flows.signal(signal)
        second = flows.chained(run)
        flows.store.reopen()
        flows.store.recover()
        (reached,) = flows.signal(signal)
        assert (reached.verdict, reached.run) == ("repeated", second)
        assert flows.kinds(second) == BEGUN

    def test_a_cancel_request_goes_along_unless_the_decider_had_it(self, flows: Flows) -> None:
        run = flows.start()
        task, seen = flows.task(run), flows.row(run).events
        flows.cancel(Key(job=run), "enough", 9)
        flows.signal(Signal(Key(job=run), "a", b"1"))
        flows.decide(run, task, flows.continuing(), seen=seen)
        second = flows.last(run)
        _, signal, cancel, _ = flows.history(second)
        assert isinstance(signal, WorkflowExecutionSignaled)
        assert isinstance(cancel, WorkflowExecutionCancelRequested)
        assert (cancel.reason, cancel.request) == ("enough", 9)
        assert flows.cancel(Key(job=run), "enough", 9).verdict == "repeated"
        third = flows.chained(second)
        assert flows.kinds(third) == BEGUN

    def test_a_signal_in_each_decision_until_the_close(self, flows: Flows) -> None:
        run = flows.start()
        for number in range(20):
            current = flows.last(run)
            task, seen = flows.task(current), flows.row(current).events
            flows.signal(Signal(Key(job=run), "a", b"%d" % number))
            assert flows.decide(current, task, flows.continuing(), seen=seen).status == Status.CONTINUED_AS_NEW
            assert _signals(flows, flows.last(run)) == [("a", b"%d" % number)]

    def test_signals_before_the_continuation_of_their_group(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        decide = ops.Decide([flows.completing(run, task, flows.continuing())], flows.now_us)
        signals = ops.SignalRuns([Signal(Key(job=run), "a", b"1")], flows.now_us)
        _, (reached,), (decided,) = flows.group(job_ops.Settle([flows.settled(task)]), signals, decide)
        assert (reached.run, decided.status) == (run, Status.CONTINUED_AS_NEW)
        assert _signals(flows, flows.last(run)) == [("a", b"1")]

    def test_requests_after_the_continuation_of_their_group(self, flows: Flows) -> None:
        run = flows.start(unique=b"u")
        task = flows.task(run)
        decide = ops.Decide([flows.completing(run, task, flows.continuing())], flows.now_us)
        keys = [Key(job=run), Key(workflow_id="u"), Key(run=run)]
        signals = ops.SignalRuns([Signal(key, "a", b"%d" % place) for place, key in enumerate(keys)], flows.now_us)
        terminate = ops.TerminateRun(Key(job=run), "enough", flows.now_us)
        outcomes = flows.group(job_ops.Settle([flows.settled(task)]), decide, signals, terminate)
        second = flows.last(run)
        assert [(one.verdict, one.run) for one in outcomes[2]] == [("recorded", second)] * 2 + [("closed", run)]
        assert outcomes[3].run == second
        assert _signals(flows, second) == [("a", b"0"), ("a", b"1")]
        assert flows.root(run).state == State.FAILED, "the run ends in the transaction in which it begins"

    def test_an_activity_that_ends_meanwhile_is_left_behind(self, flows: Flows) -> None:
        run = flows.start()
        activity = flows.held_activity(run)
        flows.signal(Signal(Key(job=run), "a", b"1"))
        task, seen = flows.task(run), flows.row(run).events
        flows.store.settle(flows.settled(activity, b"late"))
        assert flows.decide(run, task, flows.continuing(), seen=seen).status is Status.CONTINUED_AS_NEW
        assert flows.kinds(flows.last(run)) == BEGUN

    def test_a_fused_decision_continues(self, flows: Flows) -> None:
        run = flows.start()
        activity = flows.held_activity(run)
        decided = flows.fuse(run, activity, flows.continuing(b"[1]"))
        assert kinds(decided.events)[-1] == "WorkflowExecutionContinuedAsNew"
        flows.running(flows.last(run), flows.close())

    def test_a_completion_that_comes_twice_continues_once(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        completion = flows.completing(run, task, flows.continuing())
        settle = job_ops.Settle([flows.settled(task)])
        flows.group(settle, ops.Decide([completion], flows.now_us))
        second = flows.last(run)
        (decided,) = flows.group(ops.Decide([completion], flows.now_us))[0]
        assert decided.verdict == "stale"
        assert flows.last(run) == second
        assert flows.list() == [second, run]

    def test_the_caller_may_choose_the_next_run(self, flows: Flows) -> None:
        run, chosen = flows.start(), flows.new().id
        flows.decide(run, flows.task(run), flows.continuing(), new_run=chosen)
        assert flows.last(run) == chosen

    def test_runs_of_an_open_chain_are_forgotten(self, flows: Flows) -> None:
        first = flows.start(unique=b"u")
        second = flows.chained(first)
        third = flows.chained(second)
        assert flows.forget() == 2
        assert flows.list() == [third]
        assert flows.root(third).state == State.RUNNING
        shown = flows.show(Key(job=first))
        assert shown is not None
        assert shown.row.id == third, "the handle names the last run, although the first one is forgotten"
        assert flows.signal(Signal(Key(job=first), "a", b""))[0].run == third
        fourth = flows.chained(third)
        flows.running(fourth, flows.close())
        assert flows.forget() == 2
        assert flows.store.find(first) is None
        assert flows.show(Key(job=first)) is None

    # ---- versions ----

    def test_the_next_run_may_have_another_version(self, flows: Flows) -> None:
        first = flows.start()
        flows.define(Definition("order", "2"))
        second = flows.chained(first)
        assert flows.row(second).version == "1", "a chain keeps its version"
        flows.running(second, flows.continuing(version="2"))
        third = flows.last(first)
        assert flows.row(third).version == "2"
        fourth = flows.chained(third)
        assert flows.row(fourth).version == "2"
        assert [flows.row(run).type for run in flows.list()] == ["order"] * 4

    def test_an_unknown_version_parks_the_run(self, flows: Flows) -> None:
        run = flows.start()
        decided = flows.decide(run, flows.task(run), flows.continuing(version="7"), build="b1")
        assert decided.verdict == "parked"
        parked = flows.row(run).parked
        assert parked is not None
        assert parked.kind == "missing"
        assert "version 7 of order, which no worker has registered; registered: 1" in parked.message
        flows.define(Definition("order", "7"))
        flows.unpark(key=Key(run=run))
        flows.running(run, flows.continuing(version="7"))
        assert flows.row(flows.last(run)).version == "7"

    # ---- with other runs ----

    def test_a_child_that_continues_as_new_ends_once_for_its_parent(self, flows: Flows) -> None:
        parent, child = parent_of(flows)
        for _ in range(2):
            flows.chained(flows.last(child))
        failing = flows.continuing(delay=60, attempt=2, failure=failure("KeyError", "no"))
        flows.running(flows.last(child), failing)
        flows.run_errands()
        assert flows.children(parent) == [child]
        assert flows.row(parent).decision == 0, "nothing has ended for the parent"
        last = flows.last(child)
        flows.wait(60 * SECOND)
        flows.ring(last)
        started = flows.history(last)[0]
        assert isinstance(started, WorkflowExecutionStarted)
        assert started.parent_run == parent
        flows.running(last, flows.close(b"seven"))
        ended = flows.last_event(parent, ChildWorkflowExecutionCompleted)
        assert (ended.run, ended.result) == (child, b"seven")
        assert flows.kinds(parent).count("ChildWorkflowExecutionCompleted") == 1
        flows.running(parent, flows.close())

    def test_requests_of_other_runs_reach_the_last_run(self, flows: Flows) -> None:
        parent, child = parent_of(flows, workflow_id="part-1")
        last = flows.chained(child)
        flows.signal(Signal(Key(job=parent), "go", b""))
        to_run = SignalExternalWorkflowExecution(1, "", "a", run=child, input=b"1")
        to_id = SignalExternalWorkflowExecution(2, "part-1", "a", input=b"2")
        flows.running(parent, to_run, to_id)
        assert _signals(flows, last) == [("a", b"1"), ("a", b"2")]
        third = flows.chained(last)
        flows.terminate(Key(job=parent))
        assert flows.status(third) is Status.TERMINATED, "the child's policy"
        assert flows.root(child).state == State.FAILED

    def test_a_parent_that_continues_as_new_leaves_its_children(self, flows: Flows) -> None:
        parent, child = parent_of(flows)
        flows.signal(Signal(Key(job=parent), "go", b""))
        following = flows.chained(parent)
        flows.running(child, flows.close())
        assert flows.kinds(following) == BEGUN
        assert flows.root(child).state == State.SUCCEEDED

    def test_a_chain_that_is_terminated_ends_its_root_job(self, flows: Flows) -> None:
        first = flows.start()
        second = flows.chained(first)
        assert flows.terminate(Key(job=first), "enough").run == second
        assert flows.root(first).state == State.FAILED
        assert flows.status(first) is Status.CONTINUED_AS_NEW


def _signals(flows: Flows, run: int) -> list[tuple[str, bytes]]:
    found = (event for event in flows.history(run) if isinstance(event, WorkflowExecutionSignaled))
    return [(event.name, event.input) for event in found]
