"""Chains of runs inside one transaction: the run after one that continues as new begins with its close."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.workflows.decisions import continuation
from mainspring.workflows.decisions.model import ContinueAsNewWorkflowExecution
from mainspring.workflows.history import WorkflowExecutionContinuedAsNew
from mainspring.workflows.store import RunRow

if TYPE_CHECKING:
    from collections.abc import Collection

    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.decisions.model import Decision
    from mainspring.workflows.run_draft import RunDraft


async def unknown_version(changes: RunChanges, found: RunDraft, decision: Decision) -> str:
    """Return why a decision cannot continue its run in another version; empty for other decisions, and if it can."""
    if not isinstance(decision, ContinueAsNewWorkflowExecution) or not decision.version:
        return ""
    state = found.run.state
    versions = [one.version for one in await changes.tables.definitions(state.namespace, state.type)]
    if decision.version in versions:
        return ""
    listed = ", ".join(sorted(versions))
    return (
        f"the run is to continue as version {decision.version} of {state.type}, which no worker has registered; registered: "
        f"{listed}: start a worker with it, and unpark the run"
    )


async def begin_next(changes: RunChanges, found: RunDraft, decision: Decision) -> None:
    """Begin the run after one that a decision has just continued as new."""
    now_us = found.draft.now_us  # the time of the closing event may lie ahead: see `Draft.record`
    closed, event = found.run.state, found.events[-1]
    assert isinstance(event, WorkflowExecutionContinuedAsNew)
    assert isinstance(decision, ContinueAsNewWorkflowExecution)
    unread: Collection[int] = frozenset(decision.unread)
    first = max(1, min((closed.seen + 1, *unread)))
    if decision.attempt > 1:  # another attempt has all signals
        unread, first = range(closed.last), 1
    events = [*await changes.events_after(found, first - 1), *found.events]
    row = RunRow(
        event.new_run,
        closed.root,
        closed.namespace,
        closed.workflow_id,
        event.type,
        event.version,
        started_us=now_us,
        input_size=len(event.input),
        slot=found.run.row.slot,
    )
    following = changes.begin(row, now_us)
    continuation.begin_next(following.draft, closed, event, continuation.carried(events, unread, closed.seen))
