"""Calls about functions: their work, limits and pauses, and the workers that have registered them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.roles import Permission
from mainspring.api.errors import PAGE_LIMIT
from mainspring.api.jobs import REASON_LIMIT
from mainspring.api.request import Request, Touches
from mainspring.api.status import Waiting  # noqa: TC001 - msgspec reads the annotation
from mainspring.resources.limit_specs import RateSpec  # noqa: TC001 - msgspec reads the annotation
from mainspring.sizes import Moment, Text, Whole  # noqa: TC001 - msgspec reads the annotations

Reason = Annotated[str, msgspec.Meta(max_length=REASON_LIMIT)]


NAME_LIMIT = 512


class FunctionInfo(msgspec.Struct):
    """A function; docs/reference/protocol.md explains the keys."""

    function: str
    paused: bool
    concurrency: int | None
    concurrency_per_key: int | None
    rate: RateSpec | None
    rate_per_key: RateSpec | None
    source: str | None
    waiting: int
    running: int
    workers: int
    registered: bool | None
    pause_reason: str | None = None
    paused_at: str | None = None
    paused_until: str | None = None
    revision: str | None = None
    """Of what commands have set: the limits and the pause. The changing requests take it."""
    dead_letters: int | None = None
    """Jobs whose attempts have all failed, in the whole store; None while the store cannot be read."""
    waiting_by_priority: Waiting | None = None
    running_at_all_nodes: int = 0
    """For other nodes, as of their last heartbeats; ``running`` is that of the node which answers."""
    paused_by: str | None = None
    """The caller who paused it last."""


class Listed(msgspec.Struct):
    """A page of functions, sorted by name. The pages follow the order in which the node has got the functions."""

    functions: list[FunctionInfo]
    next: str | None
    """The value of ``after`` for the next page; None on the last one."""


class Registration(msgspec.Struct):
    """The answer whether a function is registered."""

    registered: bool | None
    shared: bool
    functions: list[str]


class List(Request[Listed]):
    """The node's functions, one page at a time.

    With a ``name``, an answer may have fewer functions than ``limit`` although more follow: it has searched its share.

    Codes: ``invalid``.
    """

    permission = Permission.READ
    call = "functions.list"
    rows = "functions"
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = PAGE_LIMIT
    after: Text | None = None
    name: Annotated[str, msgspec.Meta(max_length=NAME_LIMIT)] = ""
    """A part of the names; capital and small letters are the same."""


class Show(Request[FunctionInfo]):
    """One function. Codes: ``function_not_found``."""

    permission = Permission.READ
    call = "functions.show"
    function: Text


class Registered(Request[Registration]):
    """Return whether a worker of any node has registered a function; if none has, also the names of the registered ones."""

    permission = Permission.READ
    call = "functions.registered"
    function: Text


class Limit(Request[FunctionInfo]):
    """Limit a function; limits that are left out do not change.

    Codes: ``invalid``, ``too_large``, ``unsupported``, ``too_many_functions``, ``changed``.
    """

    permission = Permission.DEVELOP
    touches = Touches.FUNCTION
    call = "functions.limit"
    function: Text
    concurrency: Whole | UnsetType | None = UNSET
    concurrency_per_key: Whole | UnsetType | None = UNSET
    rate: RateSpec | UnsetType | None = UNSET
    rate_per_key: RateSpec | UnsetType | None = UNSET
    unlimited: bool = False
    declared: bool = False
    revision: Text | None = None
    """Of the last answer: if another command has changed the function since, the request fails."""


class Pause(Request[FunctionInfo]):
    """Start no more jobs of a function. Codes: as of `Limit`."""

    permission = Permission.OPERATE
    touches = Touches.FUNCTION
    call = "functions.pause"
    function: Text
    reason: Reason = ""
    until: Moment | None = None
    """When its jobs start again, in seconds since 1970; None: when it is resumed."""
    revision: Text | None = None


class Acknowledged(msgspec.Struct):
    """A function whose failures somebody has acknowledged. That holds until its next failure."""

    function: str
    at: str | None
    who: str
    dead_letters: int
    """Its dead letters: it had no fewer then."""


class Acknowledge(Request[Acknowledged]):
    """Say that the failures of a function need nobody any more: overviews count no trouble of it until its next failure.

    Codes: ``function_not_found``, ``unsupported``.
    """

    permission = Permission.OPERATE
    touches = Touches.FUNCTION
    call = "functions.acknowledge"
    function: Text
    reason: Reason = ""


class Resume(Request[FunctionInfo]):
    """Start jobs of a paused function again. Codes: as of `Limit`."""

    permission = Permission.OPERATE
    touches = Touches.FUNCTION
    call = "functions.resume"
    function: Text
    revision: Text | None = None
