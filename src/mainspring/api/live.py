"""The live numbers of a namespace, and the versions of lists and objects, as streams."""

from __future__ import annotations

from typing import Literal

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.request import Request
from mainspring.sizes import Text  # noqa: TC001 - msgspec reads the annotations


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
    dead_letters: int | None = None
    """As of `NamespaceStatus`."""


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
    troubled: bool = False
    """Whether to send those of the functions that ``namespaces.status`` has named as troubled in the last answers."""


Subject = Literal["schedules", "schedule", "workers", "worker", "nodes", "runs", "run", "troubles"]
"""``troubles`` stands for the first page, without its numbers."""


class Version(msgspec.Struct):
    """The version of a list or an object."""

    version: str
    """Another one after each change, and the same one for all who see the same; empty: the object is gone."""
    spread: float
    """Seconds in which clients should read it again, each at a random time of its own: the more there are, the longer."""


class FollowVersion(Request[Version]):
    """A `Version` at first, after each change, and every few seconds while it can be read, as the event ``version``.

    Codes: ``schedule_not_found``, ``worker_not_found``, ``run_not_found``, ``conflict``, ``unsupported``.
    """

    permission = Permission.READ
    name_in_audit = "live.follow"
    subject: Subject
    name: Text = ""
    """The name of the schedule, the id of the worker, or the key of the run."""
