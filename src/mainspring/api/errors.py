"""Problems of calls, as data: a stable code, and a sentence for people.

docs/reference/errors.md has the table of the codes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from mainspring.errors import ConflictError, ForbiddenError, MainspringError, RefusedError, UsageError
from mainspring.hidden_secrets import hide_secrets

if TYPE_CHECKING:
    from typing import Self


PAGE_LIMIT = 1000
"""The largest number of jobs, functions, times or runs in one answer."""


class Kind(StrEnum):
    """The classes of codes. A caller without a rule for a code can use its class, which the protocol's ``FAULT`` contains."""

    USAGE = "usage"
    """The request is invalid, or not possible at this node: the same one fails again."""
    FORBIDDEN = "forbidden"
    """The caller lacks a permission."""
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    """The state of the job, schedule or node does not allow the request."""
    UNAVAILABLE = "unavailable"
    """The same request may succeed later."""


class Code(StrEnum):
    """Codes of problems. Callers compare codes, so none is ever renamed."""

    UNKNOWN_CALL = "unknown_call", Kind.USAGE
    """There is no call of this name."""
    UNREADABLE = "unreadable", Kind.USAGE
    """The request is no JSON object with the keys and types of its call."""
    INVALID = "invalid", Kind.USAGE
    """A value is invalid; the message names it."""
    UNSUPPORTED = "unsupported", Kind.USAGE
    """The store of this node does not support the request."""
    TOO_LARGE = "too_large", Kind.USAGE
    """A name, a unique or a payload is too long; the message gives the limit in bytes."""
    TOO_MANY_FUNCTIONS = "too_many_functions", Kind.USAGE
    """The request names a new function, and the node accepts no more functions."""
    FORBIDDEN = "forbidden", Kind.FORBIDDEN
    """The caller lacks a permission; the message names it."""
    JOB_NOT_FOUND = "job_not_found", Kind.NOT_FOUND
    NOT_KEPT = "not_kept", Kind.NOT_FOUND
    """The job exists, and its arguments or its result are no longer kept, or never were."""
    FUNCTION_NOT_FOUND = "function_not_found", Kind.NOT_FOUND
    SCHEDULE_NOT_FOUND = "schedule_not_found", Kind.NOT_FOUND
    NODE_NOT_FOUND = "node_not_found", Kind.NOT_FOUND
    RUN_NOT_FOUND = "run_not_found", Kind.NOT_FOUND
    OPERATION_NOT_FOUND = "operation_not_found", Kind.NOT_FOUND
    WORKER_NOT_FOUND = "worker_not_found", Kind.NOT_FOUND
    """No connected worker has this id."""
    WORKFLOW_NOT_FOUND = "workflow_not_found", Kind.NOT_FOUND
    """No worker has registered the workflow, or its version."""
    TOKEN_NOT_FOUND = "token_not_found", Kind.NOT_FOUND
    CONFLICT = "conflict", Kind.CONFLICT
    """The state of a job, a schedule or a run does not allow it; the message names the state."""
    CHANGED = "changed", Kind.CONFLICT
    """The object was changed since the revision that the request names: read it again."""
    AMBIGUOUS_NODE = "ambiguous_node", Kind.CONFLICT
    """Several nodes have this name."""
    NODE_LIVES = "node_lives", Kind.CONFLICT
    """The node is not dead, and only ``force`` removes such a node."""
    ONLY_NODE = "only_node", Kind.CONFLICT
    """No other node shares the store of this node, so it can be neither drained nor removed."""
    REFUSED = "refused", Kind.UNAVAILABLE
    """The node accepts no more jobs now: the function's queue is full, or the memory for foreground jobs."""
    TOO_MANY_WAITS = "too_many_waits", Kind.UNAVAILABLE
    """The node has no place for one more watch or wait of this caller, or of its namespace; the message has the numbers."""
    UNAVAILABLE = "unavailable", Kind.UNAVAILABLE
    """The store could not be reached, or has refused, or a call over Gearman met a defect; the message is the reason."""

    kind: Kind

    def __new__(cls, text: str, kind: Kind) -> Self:  # noqa: D102 - as of all enumerations with attributes
        code = str.__new__(cls, text)
        code._value_ = text
        code.kind = kind
        return code


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reason why a call failed."""

    code: Code
    message: str
    """A sentence: what was wrong with which input, and what to do."""
    live_handle: str | None = None
    """Of a conflict: the job that has the unique now."""


class ApiError(MainspringError):
    """A call failed; ``problem`` is the reason."""

    def __init__(self, code: Code, message: str, live_handle: str | None = None) -> None:
        message = hide_secrets(message)  # it may quote a token that stands in the wrong place, and clients log it
        super().__init__(message)
        self.problem = Problem(code, message, live_handle)


def problem_of(error: MainspringError) -> Problem:
    """Return the problem that stands for an error of the services."""
    if isinstance(error, ApiError):
        return error.problem
    kinds = (
        (UsageError, Code.INVALID),
        (ForbiddenError, Code.FORBIDDEN),
        (ConflictError, Code.CONFLICT),
        (RefusedError, Code.REFUSED),
    )
    code = next((code for kind, code in kinds if isinstance(error, kind)), Code.UNAVAILABLE)
    return Problem(code, hide_secrets(str(error)), error.live_handle if isinstance(error, ConflictError) else None)


def check_number(name: str, number: int) -> None:
    """Raise ApiError if a number is not from 1 to `PAGE_LIMIT`."""
    if not 1 <= number <= PAGE_LIMIT:
        raise ApiError(Code.INVALID, f"{name} is a number from 1 to {PAGE_LIMIT}, not {number}")
