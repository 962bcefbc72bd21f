"""Events of lambda functions: always refused, but part of SWF's model."""

from __future__ import annotations

from mainspring.workflows.events.model import EventBase, TimeoutType


class LambdaFunctionScheduled(EventBase, frozen=True, tag=48):
    """Never recorded here."""

    decision_completed: int
    lambda_id: str
    name: str
    input: bytes = b""
    start_to_close: float = 0
    control: str = ""


class LambdaFunctionStarted(EventBase, frozen=True, tag=49):
    """Never recorded here."""

    scheduled: int


class LambdaFunctionCompleted(EventBase, frozen=True, tag=50):
    """Never recorded here."""

    scheduled: int
    started: int
    result: bytes = b""


class LambdaFunctionFailed(EventBase, frozen=True, tag=51):
    """Never recorded here."""

    scheduled: int
    started: int
    reason: str = ""
    details: bytes = b""


class LambdaFunctionTimedOut(EventBase, frozen=True, tag=52):
    """Never recorded here."""

    scheduled: int
    started: int
    timeout: TimeoutType = TimeoutType.START_TO_CLOSE


class ScheduleLambdaFunctionFailed(EventBase, frozen=True, tag=53):
    """This service runs no lambda functions."""

    decision_completed: int
    lambda_id: str
    name: str
    cause: str


class StartLambdaFunctionFailed(EventBase, frozen=True, tag=54):
    """Never recorded here."""

    scheduled: int
    cause: str
    message: str = ""
