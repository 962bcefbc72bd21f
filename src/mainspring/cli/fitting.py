"""Fits a table into a terminal: columns that are too wide are cut or left out, in a stated order."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Step: TypeAlias = "dict[str, int]"
"""How columns make room, by name: the least width to cut to, `LEFT_OUT`, or `AS_AGE` for times written as ages."""
LEFT_OUT: Final = 0
AS_AGE: Final = -1

GAP = 2
"""Spaces between two columns of a table."""
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


class Column:
    """One column: its head and the text of each row.

    ``width`` is that of the longest at first, and ``least`` what it may be cut to.
    """

    def __init__(self, head: str, texts: list[str]) -> None:
        self.head = head
        self.texts = texts
        self.width = self.least = max(map(cell_len, (head, *texts)))

    def cut(self) -> Column:
        """Return the column with its texts cut to its width."""
        return Column(cut(self.head, self.width), [cut(text, self.width) for text in self.texts])


def fit(columns: dict[str, Column], steps: Iterable[Step], room: int, now: float) -> list[Column]:
    """Return the columns that are shown, cut to their widths, which fit into ``room``; wider where all steps do not suffice.

    The steps are taken in order until the columns fit; then those that may be cut are as wide as there is room. ``now``, in
    seconds since 1970, is what ages are counted to.
    """
    columns = dict(columns)
    for step in steps:
        if _over([column.least for column in columns.values()], room) <= 0:
            break
        for name in step.keys() & columns.keys():
            least = step[name]
            if least == LEFT_OUT:
                del columns[name]
            elif least == AS_AGE:
                columns[name] = _ages(columns[name], now)
            else:
                columns[name].least = min(columns[name].least, least)
    shown = list(columns.values())
    _shrink(shown, room)
    return [column.cut() for column in shown]


def cut(text: str, width: int) -> str:
    """Cut a text to a width: a name in its middle, for both of its ends tell it from others, several words at their end."""
    if cell_len(text) <= width:
        return text
    tail = 0 if " " in text else (width - 1) // 2
    begin = set_cell_size(text, width - 1 - tail).rstrip(" ")
    end = set_cell_size(text[::-1], tail)[::-1].lstrip(" ")
    return f"{begin}…{end}"


def age(seconds: float) -> str:
    """Say how long ago something was, in its largest unit: ``3m ago``; ``in 3m`` for what comes, and ``now`` in between."""
    length = abs(seconds)
    count, unit = next(((int(length // size), unit) for unit, size in _UNITS if length >= size), (0, "s"))
    if not count:
        return "now"
    return f"in {count}{unit}" if seconds < 0 else f"{count}{unit} ago"


def _ages(column: Column, now: float) -> Column:
    texts = [text if text == "-" else age(now - datetime.fromisoformat(text).timestamp()) for text in column.texts]
    return Column(column.head.removesuffix("_AT"), texts)


def _over(widths: Sequence[int], room: int) -> int:
    """Return by how much columns are too wide."""
    return sum(widths) + GAP * (len(widths) - 1) - room


def _shrink(columns: list[Column], room: int) -> None:
    """Take what is too much from those columns that may be cut, from the widest first."""
    for column in columns:
        column.width = min(column.width, max(column.least, room))
    for _ in range(_over([column.width for column in columns], room)):
        wide = [column for column in columns if column.width > column.least]
        if not wide:
            return
        max(wide, key=lambda column: column.width).width -= 1
