"""Problems of calls, as data: a code that stays the same, and a sentence for people.

docs/reference/errors.md has the table of the codes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from mainspring.errors import ConflictError, MainspringError, RefusedError, UsageError

if TYPE_CHECKING:
    from typing import Self


MOST = 1000
"""Jobs, functions, times or runs that one answer has at most."""


class Kind(StrEnum):
    """The classes of codes. A caller that knows no code can go by its class: the protocol's ``FAULT`` has it as its code."""

    USAGE = "usage"
    """The request cannot be right, or not at this node: the same one fails again."""
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    """The state of the job, schedule or node does not allow the request."""
    UNAVAILABLE = "unavailable"
    """The same request may succeed later."""


class Code(StrEnum):
    """Kinds of problems. Callers compare codes, so none is ever renamed."""

    UNKNOWN_CALL = "unknown_call", Kind.USAGE
    """There is no call of this name."""
    UNREADABLE = "unreadable", Kind.USAGE
    """The request is no JSON object with the keys and types of its call."""
    INVALID = "invalid", Kind.USAGE
    """A value cannot be right; the message names it."""
    UNSUPPORTED = "unsupported", Kind.USAGE
    """The store of this node does not keep what was asked for."""
    TOO_LARGE = "too_large", Kind.USAGE
    """A name, a unique or a payload has more bytes than can be kept; the message names the limit."""
    TOO_MANY_FUNCTIONS = "too_many_functions", Kind.USAGE
    """The request names a new function, and the node takes no more."""
    JOB_NOT_FOUND = "job_not_found", Kind.NOT_FOUND
    FUNCTION_NOT_FOUND = "function_not_found", Kind.NOT_FOUND
    SCHEDULE_NOT_FOUND = "schedule_not_found", Kind.NOT_FOUND
    NODE_NOT_FOUND = "node_not_found", Kind.NOT_FOUND
    CONFLICT = "conflict", Kind.CONFLICT
    """The state of a job or a schedule does not allow it; the message names the state."""
    AMBIGUOUS_NODE = "ambiguous_node", Kind.CONFLICT
    """Several nodes have this name."""
    NODE_LIVES = "node_lives", Kind.CONFLICT
    """Only a dead node is removed without force."""
    ONLY_NODE = "only_node", Kind.CONFLICT
    """Nobody shares the store of this node: it can be neither drained nor removed."""
    REFUSED = "refused", Kind.UNAVAILABLE
    """The node takes no more jobs now: the function's queue is full, or the memory for foreground jobs."""
    UNAVAILABLE = "unavailable", Kind.UNAVAILABLE
    """The store could not be asked, or has refused; the message is its reason."""

    kind: Kind

    def __new__(cls, text: str, kind: Kind) -> Self:  # noqa: D102 - as of all enumerations with attributes
        code = str.__new__(cls, text)
        code._value_ = text
        code.kind = kind
        return code


class Problem(msgspec.Struct, frozen=True):
    """Why a call has no answer."""

    code: Code
    message: str
    """A sentence: what was wrong with which input, and what to do."""


class ApiError(MainspringError):
    """A call has no answer; ``problem`` says why."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(code, message)


def problem_of(error: MainspringError) -> Problem:
    """Return an error of the services as the API tells it."""
    if isinstance(error, ApiError):
        return error.problem
    kinds = ((UsageError, Code.INVALID), (ConflictError, Code.CONFLICT), (RefusedError, Code.REFUSED))
    code = next((code for kind, code in kinds if isinstance(error, kind)), Code.UNAVAILABLE)
    return Problem(code, str(error))


def check_number(name: str, number: int) -> None:
    """Raise ApiError for a number that one answer cannot have."""
    if not 1 <= number <= MOST:
        raise ApiError(Code.INVALID, f"{name} is a number from 1 to {MOST}, not {number}")
