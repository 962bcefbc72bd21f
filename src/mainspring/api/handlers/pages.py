"""Parts of answers: pages of lists with their cursors, and stored values as text and in rows.

A cursor says where the next page begins. A page has a largest number of bytes.

A cursor is bound to its list and its filter. One of another list or filter is refused, and does not skip rows silently.
Only `registry.Api` makes and reads cursors, with `page_of`: handlers have places of their own, such as the handle of a job.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from functools import cache, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from mainspring.api.request import ApiError, Code, Page
from mainspring.jobs.model import decode_failure, line_of
from mainspring.sizes import PAGE, ROW_VALUE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

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


_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_000_000
"""The years 1 and 9999, between which text can show a time."""


def rfc3339(time_us: int) -> str | None:
    """Return a stored time as text; None for 0. A time that text cannot show is the first or the last one that it can."""
    if not time_us:
        return None
    seconds, fraction = divmod(min(max(time_us, _FIRST_US), _LAST_US), 1_000_000)
    return f"{_second(seconds)}.{fraction:06d}Z"


@lru_cache(maxsize=4096)  # the rows of a list have times of few seconds
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()


def line(error: bytes) -> str | None:
    """Return a stored failure as one line, as lists show it; None for no failure."""
    return line_of(error) if error else None


def whole_line(error: bytes) -> str | None:
    """Return a stored failure with its whole message; None for no failure."""
    if not error:
        return None
    failed = decode_failure(error)
    return f"{failed.type}: {failed.message}"


def names_in_row(names: Iterable[str]) -> list[str]:
    """Return the first names that have at most `ROW_VALUE` bytes together, for a row whose names have no limit of their own."""
    found: list[str] = []
    left = ROW_VALUE.most
    for name in names:
        left -= len(_encode(name)) + 1
        if left < 0:
            break
        found.append(name)
    return found


def value_in_row(value: Any) -> Any:
    """Return a value of any form as a row has it: a large one is a mark with its size."""
    if value is None or isinstance(value, bool | int):
        return value
    try:
        size = len(_encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        return f"[… cannot be shown: {error} …]"
    return value if size <= ROW_VALUE.most else f"[… {size} bytes …]"
