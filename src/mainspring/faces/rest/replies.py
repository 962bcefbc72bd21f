"""Answers to HTTP requests, before they are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


class Items(msgspec.Struct, Generic[T]):
    """A page of a list."""

    items: list[T]
    next: str | None = None
    """The cursor of the next page; None: there is none."""
    searched_to: str | None = None
    """How far the search has come, if it ended before the page was full."""


def page_of(answer: Any, name: str) -> Items[Any]:
    """Return an answer of the API as a page; ``name`` is its field with the items."""
    following = getattr(answer, "next", None)
    return Items(
        getattr(answer, name),
        str(following) if following else None,  # it may be UNSET
        getattr(answer, "searched_to", None) or None,
    )


class Raw(msgspec.Struct, frozen=True):
    """Bytes of a user, which browsers save and never show."""

    data: bytes
    filename: str = "data"


class Reply(msgspec.Struct, frozen=True):
    """An answer with a status or headers of its own."""

    value: object = None
    """A JSON value, `Raw`, or None for no body."""
    status: int = 200
    headers: Mapping[str, str] = {}
