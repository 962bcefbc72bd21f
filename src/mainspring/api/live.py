"""The live numbers of a namespace, as a stream."""

from __future__ import annotations

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.request import Request


class Numbers(msgspec.Struct):
    """A sample of a namespace, of the functions that the caller may see; docs/reference/http-api.md explains the keys."""

    at: str | None
    waiting: int
    running: int
    scheduled: int
    submitted: int
    """New jobs at this node since it started."""
    workers: int
    oldest_function: str | None
    """The function of the due job that has waited longest, and for how long."""
    oldest_seconds: float | None
    succeeded: int | None
    """Attempts in the last minutes; None where the store keeps no series."""
    not_succeeded: int | None
    succeeded_per_second: float | None


class FunctionNumbers(msgspec.Struct):
    """A sample of one function."""

    waiting: int
    running: int
    workers: int
    running_at_all_nodes: int


class AllFunctionNumbers(msgspec.Struct):
    """A sample of the functions with jobs or workers at this node, or with running jobs at others, the first ones by name."""

    functions: dict[str, FunctionNumbers]
    more: bool
    """Whether there are more functions. Without them, functions that are missing have no jobs and no workers."""


class Follow(Request[Numbers]):
    """A sample each second: `Numbers` as the event ``numbers``, and `AllFunctionNumbers` as ``functions``.

    Codes: none of its own.
    """

    permission = Permission.READ
    name_in_audit = "live.follow"
    functions: bool = False
    """Whether to send the numbers of functions, too."""
