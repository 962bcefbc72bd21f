"""The answers of a server as values without behaviour, and the errors that they stand for."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from mainspring.errors import (
    ConflictError,
    ConnectionLostError,
    ForbiddenError,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobLost,
    JobTimedOut,
    NoAnswerError,
    NotFoundError,
    RefusedError,
    ServerError,
    UsageError,
)
from mainspring.quantities import format_duration


class Submitted(NamedTuple):
    """The answer to a submit: the job is on disk. ``joined``: a job with that unique was already live."""

    handle: str
    joined: bool


class Reason(msgspec.Struct, frozen=True):
    """The last error of a job, in its worker's words."""

    type: str = ""
    message: str = ""
    traceback: str | None = None


class Outcome(NamedTuple):
    """The end of a job: ``state`` is succeeded, failed, cancelled, expired or unknown; ``data`` is its result."""

    handle: str
    state: str
    attempt: int
    error: Reason | None
    data: bytes


class Notice(NamedTuple):
    """A message to waiting clients while a job runs: ``progress`` with two numbers and a text, other kinds with data."""

    kind: Literal["progress", "data", "warning"]
    numerator: int
    denominator: int
    data: bytes
    """The text of progress, too."""


Answer: TypeAlias = Submitted | ServerError
"""The answer to one of many submits."""


def failure(outcome: Outcome) -> JobError | None:
    """Return the error that an outcome raises in a waiting caller; None for a success."""
    handle = outcome.handle
    reason = outcome.error or Reason()
    match outcome.state:
        case "succeeded":
            return None
        case "failed":
            kind = JobTimedOut if reason.type == "Timeout" else JobFailed
            return kind(handle, reason.type, reason.message, reason.traceback, outcome.attempt)
        case "cancelled":
            return JobCancelled(
                handle, f"job {handle} was cancelled" + (f": {reason.message}" if reason.message else "")
            )
        case "expired":
            return JobExpired(handle, f"job {handle} was not started in time")
        case "unknown":
            return JobLost(handle, f"the server does not have job {handle}, or no longer keeps its result")
        case other:
            return JobError(handle, f"job {handle} ended in a state that this client does not support: {other}")


def not_ended_error(handle: str, timeout: float | None) -> TimeoutError:
    """Return the error for a wait that reached its time-out, in seconds, before the job's end."""
    return TimeoutError(f"job {handle} has not ended within {format_duration(timeout or 0.0)}")


def no_answer_error(limit: float, *, sent: bool) -> ConnectionLostError:
    """Return the error for a request without an answer after its limit, in seconds; ``sent``: the server may have received it."""
    within = f"within {format_duration(limit)}"
    if not sent:
        return ConnectionLostError(f"no server has accepted the connection {within}; the request was not sent")
    return NoAnswerError(
        f"the server has not answered {within}, so the outcome is unknown: the request may be done, or be done later, for "
        "example when the server's store can be reached again. To repeat a submit without a second job, give it a request "
        "key or a unique",
        limit,
    )


def call_error(code: str, message: str) -> UsageError | ServerError:
    """Return the error that a FAULT packet stands for."""
    match code:
        case "usage":
            return UsageError(message)
        case "not_found":
            return NotFoundError(message)
        case "forbidden":
            return ForbiddenError(message)
        case "conflict":
            return ConflictError(message)
        case "unavailable":
            return ConnectionLostError(message)
        case _:
            return RefusedError(code, message)
