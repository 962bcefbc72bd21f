"""Runs that continue as new: the close of a run, and the begin of the next one of its chain in the same transaction.

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
from mainspring.workflows.decision_tasks import close, schedule_decision
from mainspring.workflows.history import (
    WorkflowExecutionCanceled,
    WorkflowExecutionCancelRequested,
    WorkflowExecutionContinuedAsNew,
    WorkflowExecutionSignaled,
    WorkflowExecutionStarted,
)
from mainspring.workflows.limits import recorded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from mainspring.workflows.draft import Draft
    from mainspring.workflows.history import EventBase
    from mainspring.workflows.model import State
    from mainspring.workflows.requests import ContinueAsNewWorkflowExecution


def continue_as_new(draft: Draft, decision: ContinueAsNewWorkflowExecution, completed: int) -> None:
    """Close a run whose continuation begins in the same transaction; see `begin_next`."""
    state = draft.state
    timed_from_us = state.timed_from_us or state.started_us
    timeout = state.close_by_us and (state.close_by_us - timed_from_us) / 1_000_000
    stated = state.full
    close(
        draft,
        WorkflowExecutionContinuedAsNew,
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


def carried(events: Iterable[EventBase], unread: Collection[int], seen: int) -> Iterator[EventBase]:
    """Return those events of a closed run that go along: unread and unseen signals, then an unseen cancel request."""
    cancel: EventBase | None = None
    for event in events:
        if isinstance(event, WorkflowExecutionSignaled) and (event.id > seen or event.id in unread):
            yield event
        elif isinstance(event, WorkflowExecutionCancelRequested) and event.id > seen:
            cancel = cancel or event
    if cancel is not None:
        yield cancel


def begin_next(draft: Draft, closed: State, event: WorkflowExecutionContinuedAsNew, along: Iterable[EventBase]) -> None:
    """Begin the run that continues a closed one, with the events that go along, and ask for its first decision."""
    longest = draft.limits.timeout
    draft.record(
        WorkflowExecutionStarted,
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
    )
    for one in along:
        attributes = asdict(one)
        del attributes["id"], attributes["at_us"]
        draft.record(type(one), **attributes)
        if isinstance(one, WorkflowExecutionCancelRequested) and draft.state.begin_us > draft.now_us:
            cancel_waiting(draft, one.reason)
    schedule_decision(draft)


def cancel_waiting(draft: Draft, reason: str) -> None:
    """Close a run as cancelled that waits for its begin: its code has nothing to clean up."""
    error = failure("Cancelled", reason or "cancelled before its next attempt")
    close(draft, WorkflowExecutionCanceled, decision_completed=0, details=error)
