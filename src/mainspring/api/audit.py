"""Calls about the audit, and about marks: lines in charts for events such as deployments."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.errors import PAGE_LIMIT
from mainspring.api.request import Request, Touches
from mainspring.sizes import Text, Whole  # noqa: TC001 - msgspec reads the annotations

LABEL_LIMIT = 200
"""Characters in the label of a mark."""
MARK = "marks.add"
"""The act of a new mark: marks are acts."""


class ActInfo(msgspec.Struct):
    """An act in the audit; docs/reference/protocol.md explains the keys."""

    number: int
    at: str | None
    what: str
    who: str
    object: str
    namespace: str | None
    token: str | None
    address: str | None
    request: str | None
    before: Any
    after: Any
    reason: str
    refused: str | None
    """Why the caller was refused; None for an act that was done."""


class Listed(msgspec.Struct):
    """A page of acts, newest first."""

    acts: list[ActInfo]
    next: int | None
    """The value of ``after`` for the next page; None on the last one. A page may be short and have a next one."""
    searched_to: str | None
    """The time of the last act that was examined, if there is a next page."""


class ListActs(Request[Listed]):
    """The acts in a namespace, or in all of them. Codes: ``forbidden``, ``unsupported``."""

    permission = Permission.ADMIN
    touches = Touches.EACH
    call = "audit.list"
    rows = "acts"
    only_reads = True
    everywhere: bool = False
    """Acts of all namespaces, and those outside of namespaces, such as on nodes: for administrators of all namespaces."""
    who: Text | None = None
    what: Text | None = None
    object: Text | None = None
    """As in `ActInfo`: the handle of a job, the name of a function."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100
    after: Whole | None = None


class MarkInfo(msgspec.Struct):
    """A mark."""

    label: str
    at: str | None
    who: str


class Marks(msgspec.Struct):
    """A page of marks, newest first."""

    marks: list[MarkInfo]
    next: int | None


class ListMarks(Request[Marks]):
    """The marks of a namespace. Codes: ``unsupported``."""

    permission = Permission.READ
    call = "marks.list"
    rows = "marks"
    only_reads = True
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100
    after: Whole | None = None


class AddMark(Request[MarkInfo]):
    """Add a mark now. Codes: ``unsupported``."""

    permission = Permission.OPERATE
    touches = Touches.NONE
    call = MARK
    label: Annotated[str, msgspec.Meta(min_length=1, max_length=LABEL_LIMIT)]
