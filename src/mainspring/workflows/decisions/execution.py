"""The execution: its begin, requests from outside, and its close.

| request | refused if | answer |
|---|---|---|
| signal | the run is closed | ``closed`` |
| signal | one with its request key was recorded before: late but harmless, the first one counts | ``repeated`` |
| signal | the history is in its last 1,000 events | ``full`` |
| cancel request | as a signal; in the last 1,000 events only if there was one before | |
| terminate | the run is closed: late but harmless | ``closed`` |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs.failures import failure
from mainspring.workflows.closing import close
from mainspring.workflows.decisions.continuation import cancel_waiting
from mainspring.workflows.decisions.decision_task import schedule_decision
from mainspring.workflows.decisions.model import (
    CancelWorkflowExecution,
    CompleteWorkflowExecution,
    ContinueAsNewWorkflowExecution,
    FailWorkflowExecution,
)
from mainspring.workflows.history import (
    CancelWorkflowExecutionFailed,
    ChildPolicy,
    CompleteWorkflowExecutionFailed,
    ContinueAsNewWorkflowExecutionFailed,
    FailWorkflowExecutionFailed,
    WorkflowExecutionCanceled,
    WorkflowExecutionCancelRequested,
    WorkflowExecutionCompleted,
    WorkflowExecutionFailed,
    WorkflowExecutionSignaled,
    WorkflowExecutionStarted,
    WorkflowExecutionTerminated,
    WorkflowExecutionTimedOut,
)
from mainspring.workflows.limits import ensure_room, recorded, takes_requests
from mainspring.workflows.model import Status
from mainspring.workflows.requests import Reached

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.workflows.decisions.model import Decision, DecisionBase
    from mainspring.workflows.draft import Draft
    from mainspring.workflows.history import EventBase
    from mainspring.workflows.requests import RequestVerdict, Signal

UNHANDLED_DECISION: Final = "UNHANDLED_DECISION"


def begin(
    draft: Draft,
    *,
    type: str,  # noqa: A002 - SWF's name
    version: str,
    input: bytes,  # noqa: A002 - SWF's name
    run: int,
    root: int,
    workflow_id: str,
    namespace: str = "default",
    timeout: float = 0,
    seed: int = 0,
    full: bool = False,
    task_list: str = "",
    task_priority: int = 1,
    task_timeout: float = 0,
    child_policy: ChildPolicy = ChildPolicy.TERMINATE,
    tags: tuple[str, ...] = (),
    parent_run: int = 0,
    parent_initiated: int = 0,
) -> None:
    """Begin a run and ask for its first decision. ``timeout`` is at most the limit of the node, which 0 stands for."""
    longest = draft.limits.timeout
    draft.record(
        WorkflowExecutionStarted,
        type=type,
        version=version,
        input=input,
        task_list=task_list,
        task_priority=task_priority,
        child_policy=child_policy,
        execution_timeout=min(timeout or longest, longest),
        task_timeout=task_timeout,
        tags=tags,
        parent_run=parent_run,
        parent_initiated=parent_initiated,
        run=run,
        root=root,
        namespace=namespace,
        workflow_id=workflow_id,
        seed=seed,
        full=full,
        **recorded(draft.limits),
    )
    schedule_decision(draft)


# ---- requests from outside ----


def signal(draft: Draft, request: Signal, **external: object) -> Reached:
    """Record a signal. ``external`` has the attributes of the run that has sent it."""
    state = draft.state
    if request.request and request.request in state.requests:
        return reached(draft, "repeated")
    if state.status:
        return reached(draft, "closed")
    if not takes_requests(draft) or not ensure_room(draft, 2):
        return reached(draft, "full")
    event = draft.record(
        WorkflowExecutionSignaled, name=request.name, input=request.input, request=request.request, **external
    )
    schedule_decision(draft)
    return reached(draft, "recorded", event.id)


def request_cancel(draft: Draft, *, reason: str = "", request: int = 0, cause: str = "", **external: object) -> Reached:
    """Ask a run to cancel itself.

    ``cause`` is ``CHILD_POLICY_APPLIED`` or empty; ``external`` has the attributes of the run that asks.
    """
    state = draft.state
    if request and request in state.requests:
        return reached(draft, "repeated")
    if state.status:
        return reached(draft, "closed")
    if (state.cancel_requested and not takes_requests(draft)) or not ensure_room(draft, 2):
        return reached(draft, "full")
    event = draft.record(WorkflowExecutionCancelRequested, cause=cause, reason=reason, request=request, **external)
    if state.begin_us > draft.now_us:
        cancel_waiting(draft, reason)
    schedule_decision(draft)
    return reached(draft, "recorded", event.id)


def terminate(
    draft: Draft,
    *,
    reason: str = "",
    details: bytes = b"",
    children: ChildPolicy | None = None,
    cause: str = "OPERATOR_INITIATED",
) -> Reached:
    """End a run at once. ``children`` replaces the run's own child policy."""
    state = draft.state
    if state.status:
        return reached(draft, "closed")
    policy = state.child_policy if children is None else children
    close(
        draft,
        WorkflowExecutionTerminated,
        children=children,
        cause=cause,
        reason=reason,
        details=details,
        child_policy=policy,
    )
    return reached(draft, "recorded", state.last)


def time_out(draft: Draft) -> None:
    """Close a run that has lasted longer than its execution timeout."""
    close(draft, WorkflowExecutionTimedOut, child_policy=draft.state.child_policy)


def reached(draft: Draft, verdict: RequestVerdict, event: int = 0) -> Reached:
    """Return the answer to a request."""
    state = draft.state
    return Reached(verdict, state.run, state.root, event, Status(state.status))


# ---- closes ----


def complete_run(draft: Draft, decision: CompleteWorkflowExecution, completed: int) -> None:
    """Close a run with a result."""
    close(draft, WorkflowExecutionCompleted, decision_completed=completed, result=decision.result)


def fail_run(draft: Draft, decision: FailWorkflowExecution, completed: int) -> None:
    """Close a run as failed."""
    close(
        draft,
        WorkflowExecutionFailed,
        decision_completed=completed,
        reason=decision.reason,
        details=decision.details,
    )


def cancel_run(draft: Draft, decision: CancelWorkflowExecution, completed: int) -> None:
    """Close a run as cancelled. Its clients get the reason of the request, unless the decision has other details."""
    reason = "" if draft.state.full else draft.state.cancel_reason
    details = decision.details or (failure("Cancelled", reason) if reason else b"")
    close(draft, WorkflowExecutionCanceled, decision_completed=completed, details=details)


def refuse_close(draft: Draft, decision: Decision, completed: int) -> None:
    """Record that the run goes on, because it has events that its decider has not been given."""
    draft.record(REFUSED[decision.__class__], decision_completed=completed, cause=UNHANDLED_DECISION)


REFUSED: Final[Mapping[type[DecisionBase], type[EventBase]]] = {
    CompleteWorkflowExecution: CompleteWorkflowExecutionFailed,
    FailWorkflowExecution: FailWorkflowExecutionFailed,
    CancelWorkflowExecution: CancelWorkflowExecutionFailed,
    ContinueAsNewWorkflowExecution: ContinueAsNewWorkflowExecutionFailed,
}
"""The decisions that close a run, with the events that are recorded in place of the close."""
