"""Lambda functions: part of SWF's model, and always refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.workflows.history import ScheduleLambdaFunctionFailed

if TYPE_CHECKING:
    from mainspring.workflows.decisions.model import ScheduleLambdaFunction
    from mainspring.workflows.draft import Draft


def schedule_lambda(draft: Draft, decision: ScheduleLambdaFunction, completed: int) -> None:
    """Refuse a lambda function."""
    draft.record(
        ScheduleLambdaFunctionFailed,
        decision_completed=completed,
        lambda_id=decision.lambda_id,
        name=decision.name,
        cause="LAMBDA_SERVICE_NOT_AVAILABLE_IN_REGION",
    )
