"""Markers: SWF's decision, and the results of local steps.

A step's result is recorded before its decision ends, so that it precedes DecisionTaskCompleted, whether it was recorded by itself
or together with the decision. Side effects and patches are decisions, and follow it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.workflows.history import MarkerName, MarkerRecorded

if TYPE_CHECKING:
    from mainspring.workflows.decisions.model import RecordMarker, StepResult
    from mainspring.workflows.draft import Draft
    from mainspring.workflows.requests import Completion


def record_marker(draft: Draft, decision: RecordMarker, completed: int) -> None:
    """Record a marker of a decision."""
    draft.record(
        MarkerRecorded,
        decision_completed=completed,
        name=decision.name,
        details=decision.details,
        native=decision.native,
        number=decision.number,
        digest=decision.digest,
        failed=decision.failed,
        function=decision.function,
    )


def record_step(draft: Draft, step: StepResult, seen: int, completion: Completion) -> None:
    """Record the result of a local step."""
    draft.record(
        MarkerRecorded,
        decision_completed=0,
        name=MarkerName.STEP,
        details=step.result,
        native=True,
        number=step.number,
        batch=step.batch,
        seen=seen,
        now_us=completion.now_us,
        digest=step.digest,
        attempt=step.attempt,
        failed=step.failed,
        function=step.function,
        semantics=completion.semantics,
    )
