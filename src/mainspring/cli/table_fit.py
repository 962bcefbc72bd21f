"""Fits a table into a terminal: cuts columns that are too wide or leaves them out, in a given order."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Step: TypeAlias = "dict[str, int]"
"""How columns shrink, by name: the least width to cut to, `LEFT_OUT`, or `AS_AGE` to write times as ages."""
LEFT_OUT: Final = 0
AS_AGE: Final = -1

GAP = 2
"""Spaces between two columns of a table."""
_AGE_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


class Column:
    """One column: its head and the text of each row.

    ``width`` is at first the width of the longest text; ``least`` is the width to which it may be cut.
    """

    def __init__(self, head: str, texts: list[str]) -> None:
        self.head = head
        self.texts = texts
        self.width = self.least = max(map(cell_len, (head, *texts)))

    def cut(self) -> Column:
        """Return the column with its texts cut to its width."""
        return Column(cut(self.head, self.width), [cut(text, self.width) for text in self.texts])


def fit(columns: dict[str, Column], steps: Iterable[Step], room: int, now: float) -> list[Column]:
    """Return the columns to show, cut to fit into ``room``; they stay wider if the steps do not suffice.

    Applies the steps in order until the columns fit, and then widens the cut columns to fill ``room``. ``now``, in seconds since
    1970, is the end of ages.
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
    """Cut a text to a width: a name in its middle, because both ends distinguish it from others; several words at their end."""
    if cell_len(text) <= width:
        return text
    tail = 0 if " " in text else (width - 1) // 2
    begin = set_cell_size(text, width - 1 - tail).rstrip(" ")
    end = set_cell_size(text[::-1], tail)[::-1].lstrip(" ")
    return f"{begin}…{end}"


def age(seconds: float) -> str:
    """Return an age in its largest unit: ``3m ago``; ``in 3m`` for a negative age, and ``now`` below a second."""
    length = abs(seconds)
    count, unit = next(((int(length // size), unit) for unit, size in _AGE_UNITS if length >= size), (0, "s"))
    if not count:
        return "now"
    return f"in {count}{unit}" if seconds < 0 else f"{count}{unit} ago"


def _ages(column: Column, now: float) -> Column:
    texts = [text if text == "-" else age(now - datetime.fromisoformat(text).timestamp()) for text in column.texts]
    return Column(column.head.removesuffix("_AT"), texts)


def _over(widths: Sequence[int], room: int) -> int:
    """Return by how many terminal columns the table is too wide."""
    return sum(widths) + GAP * (len(widths) - 1) - room


def _shrink(columns: list[Column], room: int) -> None:
    """Reduce the widths of columns that may be cut until the table fits, each time that of the widest."""
    for column in columns:
        column.width = min(column.width, max(column.least, room))
    for _ in range(_over([column.width for column in columns], room)):
        wide = [column for column in columns if column.width > column.least]
        if not wide:
            return
        max(wide, key=lambda column: column.width).width -= 1
