"""The children and other runs of which a run requests something: SWF's decisions about them, and their answers.

| StartChildWorkflowExecutionFailed if | Initiated | cause |
|---|---|---|
| no worker has registered the workflow and version | no | ``WORKFLOW_TYPE_DOES_NOT_EXIST`` |
| 1,000 children are open | no | ``OPEN_CHILDREN_LIMIT_EXCEEDED`` |
| an open run has the workflow id | yes, before | ``WORKFLOW_ALREADY_RUNNING`` |

The child's run id is chosen at Initiated. The start itself, and the notice of the child's end, are errands.

A decision to signal or cancel another run is always initiated; the answer is a later event. Its causes of failure are
``UNKNOWN_EXTERNAL_WORKFLOW_EXECUTION`` and, for a run of a workflow that the token of the decider does not reach,
``OPERATION_NOT_PERMITTED``. Lambda functions are part of SWF's model, and always refused.

Runs that continue as new: the close of a run, and the begin of the next one of its chain in the same transaction.

The new run has the workflow id and the root job of the closed one. It keeps everything that the decision does not state: version,
parent, tags, priority, child policy and timeouts. The execution timeout runs anew.

A run that has failed is begun again in the same way, as another *attempt*, after a delay. Its first decision is due then; until
then it takes requests. A cancel request closes it at once. All attempts share one execution timeout.

| of the closed run | the new run |
|---|---|
| signals that its decider had not been given | has them, after its start, in their order |
| signals that its code had not received | has them, before the former |
| a cancel request that its decider had not been given | has it, after the signals |
| the other signals | has them, too, if it is another attempt |
| keys of requests | knows them: a repeated request counts once |
| other events that its decider had not been given | lacks them: they belong to activities and timers that the code has dropped |

So a native decision to continue is never refused for unseen events. SWF refuses it, and carries nothing along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import asdict

from mainspring.jobs.model import failure
from mainspring.workflows import history
from mainspring.workflows.draft import after_initiated, close, ensure_room, recorded, schedule_decision
from mainspring.workflows.model import CHILD_TAG, depth_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from mainspring.workflows.draft import Draft
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import State
    from mainspring.workflows.requests import (
        ContinueAsNewWorkflowExecution,
        RequestCancelExternalWorkflowExecution,
        ScheduleLambdaFunction,
        SignalExternalWorkflowExecution,
        StartChildWorkflowExecution,
    )


def start_child(draft: Draft, decision: StartChildWorkflowExecution, completed: int) -> None:
    """Initiate a child."""
    version, timeout, cause = decision.version, decision.execution_timeout, ""
    if draft.definitions is not None:
        definition = draft.definitions.get((decision.type, decision.version))
        if definition is None:
            cause = "WORKFLOW_TYPE_DOES_NOT_EXIST"
        else:
            version, timeout = definition.version, timeout or definition.timeout
    if not cause and len(draft.state.children) >= draft.limits.open_children:
        cause = "OPEN_CHILDREN_LIMIT_EXCEEDED"
    if cause:
        draft.record(
            history.StartChildWorkflowExecutionFailed,
            decision_completed=completed,
            initiated=0,
            workflow_id=decision.workflow_id,
            type=decision.type,
            version=decision.version,
            cause=cause,
            control=decision.control,
            number=decision.number,
        )
        return
    run = draft.next_id()
    event = draft.record(
        history.StartChildWorkflowExecutionInitiated,
        decision_completed=completed,
        workflow_id=decision.workflow_id or draft.handle_of(run),
        type=decision.type,
        version=version,
        input=decision.input,
        task_list=decision.task_list,
        task_priority=decision.task_priority,
        child_policy=decision.child_policy,
        execution_timeout=timeout,
        task_timeout=decision.task_timeout,
        tags=decision.tags or _tags(draft.state, decision.type, version),
        control=decision.control,
        run=run,
        number=decision.number,
        start_within=decision.start_within,
        deadline=decision.deadline,
        digest=decision.digest,
        key=decision.key,
    )
    after_initiated(draft, event)


def _tags(state: State, name: str, version: str) -> tuple[str, ...]:
    """Return the tags of a child whose decider gives it none.

    Workers of an earlier version give none, and know the parts of their maps by the input. A part is a run of the same workflow
    and version. So no other child is taken for a part, no matter where its input comes from.
    """
    return () if state.full or (name, version) == (state.type, state.version) else (CHILD_TAG,)


def child_started(draft: Draft, initiated: int, *, type: str, version: str) -> bool:  # noqa: A002 - SWF's name
    """Record that a child has begun; return False if it is late but harmless: the parent is closed."""
    child = draft.state.children.get(initiated)
    if child is None or child.started or not ensure_room(draft, 2):
        return False
    draft.record(
        history.ChildWorkflowExecutionStarted,
        initiated=initiated,
        run=child.run,
        workflow_id=child.workflow_id,
        type=type,
        version=version,
    )
    if draft.state.full:  # native code waits for the end alone
        schedule_decision(draft)
    return True


def child_refused(
    draft: Draft,
    initiated: int,
    *,
    type: str,  # noqa: A002 - SWF's name
    version: str,
    decision_completed: int,
    cause: str,
) -> bool:
    """Record that an initiated child has not begun; return False if it is late but harmless, as above."""
    child = draft.state.children.get(initiated)
    if child is None or child.started or not ensure_room(draft, 2):
        return False
    draft.record(
        history.StartChildWorkflowExecutionFailed,
        decision_completed=decision_completed,
        initiated=initiated,
        workflow_id=child.workflow_id,
        type=type,
        version=version,
        cause=cause,
        number=child.number,
    )
    schedule_decision(draft)
    return True


def child_ended(
    draft: Draft,
    initiated: int,
    kind: type[Event],
    *,
    type: str,  # noqa: A002 - SWF's name
    version: str,
    **attributes: object,
) -> bool:
    """Record the end of a child; return False if it is late but harmless: the parent is closed, or the end is recorded."""
    child = draft.state.children.get(initiated)
    if child is None or not child.started or not ensure_room(draft, 2):
        return False
    draft.record(
        kind,
        initiated=initiated,
        started=child.started,
        run=child.run,
        workflow_id=child.workflow_id,
        type=type,
        version=version,
        **attributes,
    )
    schedule_decision(draft)
    return True


def signal_external(draft: Draft, decision: SignalExternalWorkflowExecution, completed: int) -> None:
    """Initiate a signal to another run."""
    workflow_id, run, reach = _address(draft, decision)
    event = draft.record(
        history.SignalExternalWorkflowExecutionInitiated,
        decision_completed=completed,
        workflow_id=workflow_id,
        run=run,
        name=decision.name,
        input=decision.input,
        control=decision.control,
        number=decision.number,
        reach=reach,
    )
    after_initiated(draft, event)


def cancel_external(draft: Draft, decision: RequestCancelExternalWorkflowExecution, completed: int) -> None:
    """Initiate a cancel request to another run, or to a child."""
    workflow_id, run, reach = _address(draft, decision)
    event = draft.record(
        history.RequestCancelExternalWorkflowExecutionInitiated,
        decision_completed=completed,
        workflow_id=workflow_id,
        run=run,
        control=decision.control,
        number=decision.number,
        reason=decision.reason,
        reach=reach,
    )
    after_initiated(draft, event)


def _address(
    draft: Draft, decision: SignalExternalWorkflowExecution | RequestCancelExternalWorkflowExecution
) -> tuple[str, int, tuple[str, ...]]:
    """Return the workflow id and the run that a decision names, and the workflows that it may reach.

    Its own open children are within reach. A child that has ended has no run here.
    """
    if decision.child:
        for child in draft.state.children.values():
            if child.number == decision.child:
                return child.workflow_id, child.run, ()
    return decision.workflow_id, decision.run, decision.reach


def external_answered(draft: Draft, initiated: int, kind: type[Event], **attributes: object) -> bool:
    """Record the answer of another run; return False if it is late but harmless: this run is closed, or it is recorded."""
    if initiated not in draft.state.externals or not ensure_room(draft, 2):
        return False
    draft.record(kind, initiated=initiated, **attributes)
    schedule_decision(draft)
    return True


def schedule_lambda(draft: Draft, decision: ScheduleLambdaFunction, completed: int) -> None:
    """Refuse a lambda function."""
    draft.record(
        history.ScheduleLambdaFunctionFailed,
        decision_completed=completed,
        lambda_id=decision.lambda_id,
        name=decision.name,
        cause="LAMBDA_SERVICE_NOT_AVAILABLE_IN_REGION",
    )


def continue_as_new(draft: Draft, decision: ContinueAsNewWorkflowExecution, completed: int) -> None:
    """Close a run whose continuation begins in the same transaction; see `begin_next`."""
    state = draft.state
    timed_from_us = state.timed_from_us or state.started_us
    timeout = state.close_by_us and (state.close_by_us - timed_from_us) / 1_000_000
    stated = state.full
    close(
        draft,
        history.WorkflowExecutionContinuedAsNew,
        decision_completed=completed,
        new_run=draft.new_run or draft.next_id(),
        type=state.type,
        version=decision.version or state.version,
        input=decision.input,
        task_list=decision.task_list or state.task_list,
        task_priority=decision.task_priority if stated else state.task_priority,
        child_policy=decision.child_policy if stated else state.child_policy,
        execution_timeout=decision.execution_timeout if stated else decision.execution_timeout or timeout,
        task_timeout=decision.task_timeout if stated else decision.task_timeout or state.task_timeout,
        tags=decision.tags if stated else decision.tags or state.tags,
        delay=decision.delay,
        attempt=decision.attempt,
        failure=decision.failure,
    )


def carried(events: Iterable[Event], unread: Collection[int], seen: int) -> Iterator[Event]:
    """Return those events of a closed run that go along: unread and unseen signals, then an unseen cancel request."""
    cancel: Event | None = None
    for event in events:
        if isinstance(event, history.WorkflowExecutionSignaled) and (event.id > seen or event.id in unread):
            if not history.is_hold_answer(event):  # the request has ended with the run
                yield event
        elif isinstance(event, history.WorkflowExecutionCancelRequested) and event.id > seen:
            cancel = cancel or event
    if cancel is not None:
        yield cancel


def begin_next(
    draft: Draft, closed: State, event: history.WorkflowExecutionContinuedAsNew, along: Iterable[Event]
) -> None:
    """Begin the run that continues a closed one, with the events that go along, and ask for its first decision."""
    longest = draft.limits.timeout
    draft.record(
        history.WorkflowExecutionStarted,
        type=event.type,
        version=event.version,
        input=event.input,
        task_list=event.task_list,
        task_priority=event.task_priority,
        child_policy=event.child_policy,
        execution_timeout=min(event.execution_timeout or longest, longest),
        task_timeout=event.task_timeout,
        tags=event.tags,
        continued_run=closed.run,
        parent_run=closed.parent_run,
        parent_initiated=closed.parent_initiated,
        run=event.new_run,
        root=closed.root,
        namespace=closed.namespace,
        workflow_id=closed.workflow_id,
        seed=event.new_run,
        full=closed.full,
        requests=tuple(closed.requests),
        **recorded(draft.limits),
        attempt=event.attempt,
        delay=event.delay,
        timed_from_us=min(closed.timed_from_us or closed.started_us, draft.now_us) if event.attempt > 1 else 0,
        failure=closed.failure if event.attempt > 1 else "",
        depth=depth_of(closed, draft.now_us),
        depth_us=closed.depth_us,
    )
    for one in along:
        attributes = asdict(one)
        del attributes["id"], attributes["at_us"]
        draft.record(type(one), **attributes)
        if isinstance(one, history.WorkflowExecutionCancelRequested) and draft.state.begin_us > draft.now_us:
            cancel_waiting(draft, one.reason)
    schedule_decision(draft)


def cancel_waiting(draft: Draft, reason: str) -> None:
    """Close a run as cancelled that waits for its begin: its code has nothing to clean up."""
    error = failure("Cancelled", reason or "cancelled before its next attempt")
    close(draft, history.WorkflowExecutionCanceled, decision_completed=0, details=error)
