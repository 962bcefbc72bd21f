"""Children of runs, and requests of runs to others: part of the contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.jobs import store as job_ops
from mainspring.jobs.model import State
from mainspring.workflows import store as ops
from mainspring.workflows.history import (
    ChildPolicy,
    ChildWorkflowExecutionCanceled,
    ChildWorkflowExecutionCompleted,
    ChildWorkflowExecutionFailed,
    ChildWorkflowExecutionTerminated,
    ChildWorkflowExecutionTimedOut,
    StartChildWorkflowExecutionFailed,
    StartChildWorkflowExecutionInitiated,
    WorkflowExecutionCancelRequested,
    WorkflowExecutionSignaled,
    WorkflowExecutionStarted,
    WorkflowExecutionTerminated,
)
from mainspring.workflows.model import Key, Status
from mainspring.workflows.outbox import MOST
from mainspring.workflows.requests import (
    CancelWorkflowExecution,
    ContinueAsNewWorkflowExecution,
    FailWorkflowExecution,
    RequestCancelExternalWorkflowExecution,
    Signal,
    SignalExternalWorkflowExecution,
)
from tests.conformance.suite.flows import SECOND

if TYPE_CHECKING:
    from tests.conformance.suite.flows import Flows

BEGUN = ["StartChildWorkflowExecutionInitiated", "ChildWorkflowExecutionStarted"]
ASKED = ["DecisionTaskScheduled"]


def parent_of(flows: Flows, **values: Any) -> tuple[int, int]:
    """Start a run with a child; return both."""
    parent = flows.start()
    flows.running(parent, flows.child(**values))
    (child,) = flows.children(parent)
    return parent, child


class ChildFlows:
    """Tests of children."""

    # ---- starts and ends ----

    def test_a_child_from_its_start_to_its_end(self, flows: Flows) -> None:
        parent, child = parent_of(flows, input=b"[3]", task_priority=2)
        assert flows.kinds(parent)[-2:] == BEGUN
        assert flows.row(parent).decision == 0, "the begin of a child causes no decision"
        initiated = flows.last_event(parent, StartChildWorkflowExecutionInitiated)
        begun = flows.last_event(child, WorkflowExecutionStarted)
        assert (begun.parent_run, begun.parent_initiated, begun.input) == (parent, initiated.id, b"[3]")
        assert begun.execution_timeout == 86_400.0, "that of the definition"
        root = flows.root(child)
        assert (root.state, root.term, root.priority, root.input_size) == (State.RUNNING, -1, 2, 3)
        flows.store.reopen()
        flows.store.recover()
        flows.running(child, flows.close(b"seven"))
        assert flows.root(child).result == b"seven"
        ended = flows.last_event(parent, ChildWorkflowExecutionCompleted)
        assert (ended.result, ended.run, ended.initiated) == (b"seven", child, initiated.id)
        flows.running(parent, flows.close())
        assert flows.status(parent) is Status.COMPLETED

    def test_a_child_has_its_handle_or_unique_as_workflow_id(self, flows: Flows) -> None:
        parent = flows.start()
        flows.running(parent, flows.child(), flows.child(workflow_id="part-1"))
        first, second = flows.children(parent)
        assert (flows.row(first).workflow_id, flows.row(second).workflow_id) == (f"H:n1:{first}", "part-1")
        assert (flows.root(first).unique, flows.root(second).unique) == (b"", b"part-1")
        flows.running(first, flows.close())
        flows.running(second, flows.close())

    def test_each_end_of_a_child_is_recorded_in_its_parent(self, flows: Flows) -> None:
        parent = flows.start()
        flows.running(parent, *(flows.child(execution_timeout=60.0) for _ in range(4)))
        failed, canceled, terminated, timed_out = flows.children(parent)
        flows.running(failed, FailWorkflowExecution(1, "Late", b"details"))
        flows.running(canceled, CancelWorkflowExecution(1))
        flows.terminate(Key(run=terminated), "no more")
        flows.wait(60 * SECOND)
        flows.ring(timed_out)
        failure = flows.last_event(parent, ChildWorkflowExecutionFailed)
        assert (failure.run, failure.reason, failure.details) == (failed, "Late", b"details")
        assert flows.last_event(parent, ChildWorkflowExecutionCanceled).run == canceled
        end = flows.last_event(parent, ChildWorkflowExecutionTerminated)
        assert (end.run, end.reason) == (terminated, "no more")
        assert flows.last_event(parent, ChildWorkflowExecutionTimedOut).run == timed_out
        assert flows.children(parent) == []
        assert flows.kinds(parent).count("DecisionTaskScheduled") == 2, "one decision sees all four"
        flows.running(parent, flows.close())

    def test_a_child_and_its_end_in_one_group_with_its_parents_decision(self, flows: Flows) -> None:
        """A child ends while its parent's decision is made."""
        parent, child = parent_of(flows)
        flows.running(child, flows.timer(60))
        flows.cancel(Key(run=parent))
        task = flows.task(parent)
        seen = flows.row(parent).events
        flows.terminate(Key(run=child))
        decided = flows.decide(parent, task, flows.close(), seen=seen)
        assert (decided.verdict, decided.refused_close) == ("recorded", True)
        flows.running(parent, flows.close())

    @pytest.mark.parametrize("how", ["open run", "waiting job"])
    def test_a_workflow_id_in_use_refuses_a_child(self, flows: Flows, how: str) -> None:
        if how == "open run":
            flows.start(unique=b"part-1")
        else:
            (_,) = flows.group(
                job_ops.Submit([flows.new(unique=b"part-1", due_us=flows.now_us + SECOND, state=State.SCHEDULED)])
            )
        parent = flows.start()
        flows.running(parent, flows.child(workflow_id="part-1"))
        refused = flows.last_event(parent, StartChildWorkflowExecutionFailed)
        assert (refused.cause, refused.workflow_id) == ("WORKFLOW_ALREADY_RUNNING", "part-1")
        assert flows.history(parent)[refused.initiated - 1].id == refused.initiated
        assert flows.kinds(parent)[-2:] == ["StartChildWorkflowExecutionFailed", *ASKED]
        flows.running(parent, flows.close())

    def test_an_unregistered_workflow_refuses_a_child_at_once(self, flows: Flows) -> None:
        parent = flows.start()
        flows.running(parent, flows.child("unheard"))
        refused = flows.last_event(parent, StartChildWorkflowExecutionFailed)
        assert (refused.cause, refused.initiated) == ("WORKFLOW_TYPE_DOES_NOT_EXIST", 0)
        flows.running(parent, flows.close())

    def test_a_child_outlives_a_parent_that_ends_by_itself(self, flows: Flows) -> None:
        parent = flows.start()
        flows.running(parent, flows.child(), flows.close())
        initiated = flows.last_event(parent, StartChildWorkflowExecutionInitiated)
        assert flows.status(initiated.run) is Status.OPEN
        flows.running(initiated.run, flows.close())

    def test_a_child_that_continues_as_new_stays_the_same_child(self, flows: Flows) -> None:
        parent, child = parent_of(flows)
        flows.running(child, ContinueAsNewWorkflowExecution(1, b"[2]"))
        link = flows.last(child)
        assert link != child
        assert flows.children(parent) == [child], "the parent gets no notice of the link"
        begun = flows.last_event(link, WorkflowExecutionStarted)
        assert begun.parent_run == parent
        flows.running(link, flows.close(b"at last"))
        ended = flows.last_event(parent, ChildWorkflowExecutionCompleted)
        assert (ended.run, ended.result) == (child, b"at last")
        assert flows.kinds(parent).count("ChildWorkflowExecutionCompleted") == 1
        flows.running(parent, flows.close())

    def test_a_policy_and_a_cancel_reach_the_last_run_of_a_childs_chain(self, flows: Flows) -> None:
        parent = flows.start()
        child = flows.child()
        flows.running(parent, child)
        (first,) = flows.children(parent)
        flows.running(first, ContinueAsNewWorkflowExecution(1, b"[2]"))
        last = flows.last(first)
        flows.signal(Signal(Key(job=parent), "go", b""))
        flows.running(parent, RequestCancelExternalWorkflowExecution(9, "", child=child.number))
        assert flows.last_event(last, WorkflowExecutionCancelRequested).external_run == parent
        flows.terminate(Key(run=parent))
        assert flows.last_event(last, WorkflowExecutionTerminated).cause == "CHILD_POLICY_APPLIED"

    # ---- child policies ----

    @pytest.mark.parametrize("how", ["terminated", "timed out"])
    def test_a_policy_ends_children(self, flows: Flows, how: str) -> None:
        parent = flows.start()
        policies = [ChildPolicy.TERMINATE, ChildPolicy.REQUEST_CANCEL, ChildPolicy.ABANDON]
        flows.running(parent, *(flows.child(child_policy=policy) for policy in policies))
        terminated, asked, abandoned = flows.children(parent)
        if how == "terminated":
            flows.terminate(Key(run=parent))
        else:
            flows.wait(86_400 * SECOND)
            flows.ring(parent)
        end = flows.last_event(terminated, WorkflowExecutionTerminated)
        assert end.cause == "CHILD_POLICY_APPLIED"
        assert flows.root(terminated).state == State.FAILED
        request = flows.last_event(asked, WorkflowExecutionCancelRequested)
        assert (request.cause, request.external_run) == ("CHILD_POLICY_APPLIED", parent)
        assert flows.kinds(abandoned) == ["WorkflowExecutionStarted", *ASKED]

    def test_a_termination_may_replace_the_policies(self, flows: Flows) -> None:
        parent = flows.start()
        flows.running(parent, flows.child(child_policy=ChildPolicy.TERMINATE), flows.child())
        first, second = flows.children(parent)
        flows.terminate(Key(run=parent), children=ChildPolicy.ABANDON)
        assert (flows.status(first), flows.status(second)) == (Status.OPEN, Status.OPEN)

    def test_grandchildren_follow_the_policies_of_their_own_parents(self, flows: Flows) -> None:
        parent, child = parent_of(flows)
        flows.running(child, flows.child(child_policy=ChildPolicy.ABANDON), flows.child())
        abandoned, terminated = flows.children(child)
        flows.terminate(Key(run=parent))
        assert flows.status(child) is Status.TERMINATED
        assert (flows.status(abandoned), flows.status(terminated)) == (Status.OPEN, Status.TERMINATED)

    # ---- requests to other runs ----

    def test_a_signal_to_another_run(self, flows: Flows) -> None:
        source, target = flows.start(), flows.start(unique=b"other")
        flows.running(source, SignalExternalWorkflowExecution(1, "other", "go", 0, b"now"))
        signaled = flows.last_event(target, WorkflowExecutionSignaled)
        assert (signaled.name, signaled.input) == ("go", b"now")
        assert (signaled.external_run, signaled.external_workflow_id) == (source, flows.row(source).workflow_id)
        assert flows.kinds(source)[-3:] == [
            "SignalExternalWorkflowExecutionInitiated",
            "ExternalWorkflowExecutionSignaled",
            *ASKED,
        ]

    def test_signals_to_another_run_come_in_order(self, flows: Flows) -> None:
        source, target = flows.start(), flows.start(unique=b"other")
        names = [str(number) for number in range(3 * MOST)]
        flows.running(source, *(SignalExternalWorkflowExecution(1, "other", name) for name in names))
        while flows.run_errands():
            pass
        signals = [event.name for event in flows.history(target) if isinstance(event, WorkflowExecutionSignaled)]
        assert signals == names

    def test_a_cancel_request_to_another_run_and_to_a_child(self, flows: Flows) -> None:
        source, target = flows.start(), flows.start()
        child = flows.child()
        flows.running(
            source,
            child,
            RequestCancelExternalWorkflowExecution(2, "", target, reason="enough"),
            RequestCancelExternalWorkflowExecution(3, "", child=child.number),
        )
        request = flows.last_event(target, WorkflowExecutionCancelRequested)
        assert (request.reason, request.external_run) == ("enough", source)
        (run,) = flows.children(source)
        assert flows.last_event(run, WorkflowExecutionCancelRequested).external_run == source
        assert flows.kinds(source).count("ExternalWorkflowExecutionCancelRequested") == 2

    def test_a_request_to_an_unknown_or_closed_run_fails(self, flows: Flows) -> None:
        source, closed = flows.start(), flows.start(unique=b"closed")
        flows.running(closed, flows.close())
        flows.running(
            source,
            SignalExternalWorkflowExecution(1, "nobody", "go"),
            RequestCancelExternalWorkflowExecution(2, "closed"),
        )
        assert flows.kinds(source)[-4:] == [
            "RequestCancelExternalWorkflowExecutionInitiated",
            "SignalExternalWorkflowExecutionFailed",
            *ASKED,
            "RequestCancelExternalWorkflowExecutionFailed",
        ]

    def test_a_signal_begins_a_delayed_run(self, flows: Flows) -> None:
        delayed = flows.new(unique=b"later", due_us=flows.now_us + SECOND, state=State.SCHEDULED)
        flows.group(job_ops.Submit([delayed]))
        source = flows.start()
        flows.running(source, SignalExternalWorkflowExecution(1, "later", "go"))
        assert flows.kinds(delayed.id)[-1:] == ["WorkflowExecutionSignaled"]
        assert flows.kinds(source)[-2:] == ["ExternalWorkflowExecutionSignaled", *ASKED]

    # ---- many errands ----

    def test_many_errands_are_done_by_several_groups(self, flows: Flows) -> None:
        parent = flows.start()
        number = 3 * MOST + 7
        task = flows.task(parent)
        completion = flows.completing(parent, task, *(flows.child() for _ in range(number)))
        flows.store.group(job_ops.Settle([flows.settled(task)]), ops.Decide([completion], flows.now_us))
        children = flows.children(parent)
        at_once = 0 if flows.store.engine.shared else MOST
        assert flows.kinds(parent).count("ChildWorkflowExecutionStarted") == at_once
        flows.store.reopen()
        flows.store.recover()
        flows.terminate(Key(run=parent))  # its own errands follow behind those that are stored
        while flows.run_errands():
            pass
        assert [flows.status(child) for child in children] == [Status.TERMINATED] * number
        assert [flows.kinds(child).count("WorkflowExecutionStarted") for child in children] == [1] * number
