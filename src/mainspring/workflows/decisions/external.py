"""Signals and cancel requests to other runs: SWF's decisions, and their answers.

The decision is always initiated; the answer is a later event. Its causes of failure are ``UNKNOWN_EXTERNAL_WORKFLOW_EXECUTION``
and, for a run of a workflow that the token of the decider does not reach, ``OPERATION_NOT_PERMITTED``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.workflows.decisions.decision_task import schedule_decision
from mainspring.workflows.errand_rules import after_initiated
from mainspring.workflows.history import (
    RequestCancelExternalWorkflowExecutionInitiated,
    SignalExternalWorkflowExecutionInitiated,
)
from mainspring.workflows.limits import ensure_room

if TYPE_CHECKING:
    from mainspring.workflows.decisions.model import (
        RequestCancelExternalWorkflowExecution,
        SignalExternalWorkflowExecution,
    )
    from mainspring.workflows.draft import Draft
    from mainspring.workflows.history import EventBase


def signal_external(draft: Draft, decision: SignalExternalWorkflowExecution, completed: int) -> None:
    """Initiate a signal to another run."""
    workflow_id, run, reach = _address(draft, decision)
    event = draft.record(
        SignalExternalWorkflowExecutionInitiated,
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
        RequestCancelExternalWorkflowExecutionInitiated,
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


def external_answered(draft: Draft, initiated: int, kind: type[EventBase], **attributes: object) -> bool:
    """Record the answer of another run; return False if it is late but harmless: this run is closed, or it is recorded."""
    if initiated not in draft.state.externals or not ensure_room(draft, 2):
        return False
    draft.record(kind, initiated=initiated, **attributes)
    schedule_decision(draft)
    return True
