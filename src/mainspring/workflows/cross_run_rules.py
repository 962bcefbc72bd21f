"""The errands that events of a run cause; `cross_run` has the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.workflows.cross_run import (
    CHILD_POLICY_APPLIED,
    ApplyPolicy,
    CancelOther,
    Close,
    EndChild,
    SignalOther,
    StartChild,
)
from mainspring.workflows.history import (
    ChildPolicy,
    RequestCancelExternalWorkflowExecutionInitiated,
    SignalExternalWorkflowExecutionInitiated,
    StartChildWorkflowExecutionInitiated,
    WorkflowExecutionContinuedAsNew,
    WorkflowExecutionTerminated,
    WorkflowExecutionTimedOut,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.workflows.draft import Draft
    from mainspring.workflows.history import EventBase
    from mainspring.workflows.model import OpenChild

_POLICY_APPLIES: Final = (WorkflowExecutionTerminated, WorkflowExecutionTimedOut)


def after_initiated(draft: Draft, event: EventBase) -> None:
    """Add the errand of an initiated child, signal or cancel request."""
    state = draft.state
    source = (state.run, state.namespace, state.workflow_id)
    match event:
        case StartChildWorkflowExecutionInitiated():
            draft.errands.append(StartChild(*source, event))
        case SignalExternalWorkflowExecutionInitiated():
            draft.errands.append(SignalOther(*source, event))
        case RequestCancelExternalWorkflowExecutionInitiated():
            draft.errands.append(CancelOther(*source, event))
        case _:
            raise TypeError(f"{type(event).__name__} initiates nothing")


def after_close(draft: Draft, close: EventBase, children: Iterable[OpenChild], override: ChildPolicy | None) -> None:
    """Add the errands of a run's close. ``children`` were open; ``override`` replaces their policies."""
    state = draft.state
    source = (state.run, state.namespace, state.workflow_id)
    if isinstance(close, _POLICY_APPLIES):
        for child in children:
            # In SWF the policy is one of the parent's own attributes; natively each child has its own.
            own = state.child_policy if state.full else child.policy
            policy = own if override is None else override
            if policy is not ChildPolicy.ABANDON:
                draft.errands.append(ApplyPolicy(*source, child.run, child.initiated, policy))
    if not state.parent_run or isinstance(close, WorkflowExecutionContinuedAsNew):
        return
    if isinstance(close, WorkflowExecutionTerminated) and close.cause == CHILD_POLICY_APPLIED:
        return  # the parent is closed
    assert isinstance(close, Close)
    ended = EndChild(*source, state.parent_run, state.parent_initiated, state.type, state.version, close)
    draft.errands.append(ended)
