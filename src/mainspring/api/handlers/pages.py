"""Pages of lists: cursors, which say where the next page begins, and the bytes of a page.

A cursor is bound to its list and its filter. One of another list or filter is refused, and does not skip rows silently.
Only `registry.Api` makes and reads cursors, with `page_of`: handlers have places of their own, such as the handle of a job.
"""

from __future__ import annotations

import base64
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from mainspring.api.request import ApiError, Code, Page
from mainspring.sizes import PAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.api.request import Request
    from mainspring.callbacks import Ask

T = TypeVar("T")
_DIGEST: Final = 9
"""Bytes; a multiple of three, so that base64 needs no padding between the digest and the place."""
_encode = msgspec.json.Encoder().encode


async def page_of(request: Any, answer_to: Callable[[Any], Coroutine[Ask, Any, Page[Any]]]) -> Page[Any]:
    """Return the answer to a list's request, with a cursor in it, and with as many rows as a page may have bytes.

    ``answer_to`` answers requests with places in the place of cursors. Raises ApiError for a cursor of another list.
    """
    placed = request if request.cursor is None else replace(request, cursor=_place_in(request))
    page = await answer_to(placed)
    limit = request.limit
    if not request.bounds_pages:
        while limit > 1 and (number := number_fitting(page.items)) < len(page.items):
            # Only the handler knows the place after a row. Its next answer may have other rows, which are larger.
            limit = min(number, limit - 1)
            page = await answer_to(replace(placed, limit=limit))
    if page.next is not None:
        page.next = cursor_of(request, page.next)
    return page


def cursor_of(request: Any, place: str) -> str:
    """Return the cursor for a place in the list of a request."""
    return base64.urlsafe_b64encode(_digest(request, place) + place.encode()).rstrip(b"=").decode()


def _place_in(request: Any) -> str:
    """Return the place in the cursor of a request. Raises ApiError."""
    given: str = request.cursor
    try:
        raw = base64.b64decode(given.encode() + b"=" * (-len(given) % 4), b"-_", validate=True)
        place = raw[_DIGEST:].decode()
    except ValueError:  # also for text that is not UTF-8
        raise _wrong("it is no cursor of this node: take it from next in the previous page") from None
    if raw[:_DIGEST] != _digest(request, place):
        raise _wrong("it belongs to another list or to another filter, or is incomplete: begin without one")
    return place


def _digest(request: Any, place: str) -> bytes:
    """Return a digest of a list, its filter, and a place in it."""
    kind: type[Request[Any]] = type(request)
    criteria = _encode(replace(request, cursor=place, **_of_each_page(kind)))
    return blake2b(request.call.encode() + b"\0" + criteria, digest_size=_DIGEST).digest()


@cache
def _of_each_page(kind: type[Request[Any]]) -> dict[str, Any]:
    """Return the defaults of the fields that are about one page."""
    return {one.name: one.default for one in msgspec.structs.fields(kind) if one.name in kind.of_page}


def _wrong(reason: str) -> ApiError:
    return ApiError(Code.INVALID, f"the cursor is invalid: {reason}", field="cursor")


def no_place(place: str | None) -> ApiError:
    """Return the error for a place that the list does not have: somebody has made a cursor."""
    return _wrong(f"{(place or '')[:100]!r} is no place in this list: take it from next in the previous page")


def number_of(place: str) -> int:
    """Return the place in a list whose places are numbers. Raises ApiError."""
    if not place.isdecimal() or len(place) > 18:
        raise no_place(place)
    return int(place)


def numbered(request: Any, rows: Sequence[T]) -> Page[T]:
    """Return a page of a list whose handler has all of its rows: a place is the number of the rows before it."""
    first = 0 if request.cursor is None else number_of(request.cursor)
    end = first + request.limit
    return Page(list(rows[first:end]), str(end) if end < len(rows) else None)


def size_of(rows: Sequence[Any]) -> int:
    """Return the bytes of rows in an answer."""
    return len(_encode(rows))


def number_fitting(rows: Sequence[Any]) -> int:
    """Return how many of the first rows have at most `PAGE` bytes in an answer, and 1 if the first one alone has more."""
    if size_of(rows) <= PAGE.most:
        return len(rows)
    left = PAGE.most
    for number, row in enumerate(rows):
        left -= len(_encode(row)) + 1
        if left < 0:
            return max(number, 1)
    return len(rows)
