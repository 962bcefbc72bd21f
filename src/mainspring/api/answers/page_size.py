"""The budget of a page in bytes: lists end early where their rows are large, and their cursors continue there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mainspring.sizes import PAGE, ROW_VALUE

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def fitting(rows: Sequence[T]) -> Sequence[T]:
    """Return the first rows that have at most `PAGE` bytes in an answer, and always one: the others are on the next page."""
    if len(_encode(rows)) <= PAGE.most:
        return rows
    left = PAGE.most
    for number, row in enumerate(rows):
        left -= len(_encode(row)) + 1
        if left < 0:
            return rows[: max(number, 1)]
    return rows


def value_in_row(value: Any) -> Any:
    """Return a value of any form as a row has it: a large one is a mark with its size."""
    if value is None or isinstance(value, bool | int):
        return value
    try:
        size = len(_encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        return f"[… cannot be shown: {error} …]"
    return value if size <= ROW_VALUE.most else f"[… {size} bytes …]"
