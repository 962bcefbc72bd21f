"""Stored values in answers: times, names and failures as text, and rows within the size of a page.

Lists end early where their rows are large, and their cursors continue there.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from mainspring.api.request import ApiError, Code
from mainspring.jobs.model import decode_failure, line_of
from mainspring.sizes import PAGE, ROW_VALUE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from mainspring.api.request import Request
    from mainspring.callbacks import Ask

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


T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


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


async def within_budget(
    request: Request[Any], answer: Any, answer_to: Callable[[Any], Coroutine[Ask, Any, Any]]
) -> Any:
    """Return the answer to a list's request with as many rows as fit; its ``next`` continues after them.

    If its handler gives places, ``answer_to`` answers the request with a smaller limit: only the handler knows the place after
    a row.
    """
    limit: int | None = getattr(request, "limit", None)
    if request.place and (limit is None or answer.next is UNSET):
        return _cut(request, answer)
    if limit is None:
        return _numbered(request, answer)
    rows = getattr(answer, request.rows)
    while limit > 1 and (number := number_fitting(rows)) < len(rows):
        # The next answer may have other rows, which are larger: the limit falls until they fit.
        limit = min(number, limit - 1)
        request = replace(request, limit=limit)
        answer = await answer_to(request)
        rows = getattr(answer, request.rows)
    return answer


def _cut(request: Request[Any], answer: Any) -> Any:
    rows = getattr(answer, request.rows)
    number = number_fitting(rows)
    if number < len(rows):
        setattr(answer, request.rows, rows[:number])
        answer.next = getattr(rows[number - 1], request.place)
    return answer


def _numbered(request: Any, answer: Any) -> Any:
    """Cut an answer with all rows: its cursor is the number of those before."""
    first = request.after or "0"
    if not first.isdecimal() or len(first) > 18:
        raise ApiError(Code.INVALID, f"after is `next` of an earlier answer, not {first[:100]!r}")
    rows = getattr(answer, request.rows)[int(first) :]
    number = number_fitting(rows)
    setattr(answer, request.rows, rows[:number])
    if number < len(rows):
        answer.next = str(int(first) + number)
    return answer


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
