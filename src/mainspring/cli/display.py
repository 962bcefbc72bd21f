"""Output of commands: tables for people on a terminal, plain lines and JSON for programs.

Text from clients and workers (names, errors, payloads) never reaches a terminal raw: control characters are written as
escapes, so that no job can move the cursor or forge a line.
"""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
from rich.cells import cell_len

from mainspring.appearance import terminal_style
from mainspring.cli.table_fit import GAP, Column, fit
from mainspring.quantities import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mainspring.cli.table_fit import Step

LONGEST_WORD = 80
"""Columns. Longer words are broken: users do not copy such names."""
_FRACTION = re.compile(r"(?<=\d\d:\d\d:\d\d)\.\d+Z$")


def printable(value: object) -> str:
    """Return a value as one line of text: ``-`` for an empty value, escapes for control characters."""
    if value is None or value == "":
        return "-"
    if isinstance(value, dict) and "message" in value:
        value = ": ".join(str(part) for key in ("type", "message") if (part := value.get(key)))
    elif isinstance(value, dict):
        value = " ".join(f"{key}={part}" for key, part in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def print_rows(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, json: bool, steps: Sequence[Step] = ()
) -> None:
    """Print objects: as a table with these columns, or complete as a JSON array."""
    if json:
        print_json(rows)
    else:
        print_table(columns, rows, steps)


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], steps: Sequence[Step] = ()) -> None:
    """Print columns of objects under their names: a table on a terminal, tab-separated lines elsewhere.

    A table leaves out empty columns and fractions of seconds. With ``steps``, each row is one line, and the steps are applied
    until it fits. Without them, texts are broken only between words, so that users can copy a handle or a name; the terminal
    breaks lines that are still too wide.
    """
    cells = [[printable(row.get(column)) for column in columns] for row in rows]
    if not sys.stdout.isatty():
        for line in (columns, *cells):
            sys.stdout.write("\t".join(line) + "\n")
        sys.stdout.flush()
        return
    from rich.console import Console  # noqa: PLC0415 - slow to load, and for terminals only
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    filled = {
        column: Column(column.upper(), [_FRACTION.sub("Z", text) for text in texts])
        for column, texts in ((column, [line[at] for line in cells]) for at, column in enumerate(columns))
        if not texts or set(texts) != {"-"}
    }
    table = Table(box=None, pad_edge=False, header_style="bold")
    console = Console()
    if steps:
        shown = fit(filled, steps, console.width, time.time())
        widths = [column.width for column in shown]
    else:
        shown = list(filled.values())
        widths = _widths(shown, console.width)
    for column, width in zip(shown, widths, strict=True):
        table.add_column(column.head, width=width, overflow="fold")
    for line in zip(*(column.texts for column in shown), strict=True):
        table.add_row(*(Text(text, style=terminal_style(text)) for text in line))
    console.width = max(console.width, sum(widths) + GAP * (len(widths) - 1))
    console.print(table)


def _widths(columns: Sequence[Column], room: int) -> list[int]:
    """Return the columns' widths: those of the longest texts, shrunk to fit into ``room`` as far as the longest words allow."""
    widths = [column.width for column in columns]
    words = [
        max(cell_len(word) for text in (column.head, *column.texts) for word in text.split(" ")) for column in columns
    ]
    spare = [max(0, width - max(min(word, LONGEST_WORD), GAP)) for width, word in zip(widths, words, strict=True)]
    over = sum(widths) + GAP * (len(widths) - 1) - room
    for at in sorted(range(len(widths)), key=spare.__getitem__, reverse=True):
        cut = max(0, min(over, spare[at]))
        widths[at] -= cut
        over -= cut
    return widths


def with_durations(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the fields, with the named ones converted from seconds to durations such as ``1h30m``; None stays None."""
    durations = {name: format_duration(seconds) for name in names if (seconds := fields.get(name)) is not None}
    return dict(fields) | durations


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print an object with a line ``name: value`` for each field, the values aligned."""
    width = max((len(name) for name in fields), default=0) + 2
    for name, value in fields.items():
        sys.stdout.write(f"{name + ':':<{width}}{printable(value)}\n")
    sys.stdout.flush()


def print_groups(groups: Iterable[Mapping[str, Any]]) -> None:
    """Print groups of fields as `print_fields` does, all aligned, with an empty line between groups."""
    filled = [group for group in groups if group]
    width = max((len(name) for group in filled for name in group), default=0) + 2
    texts = ["".join(f"{name + ':':<{width}}{printable(value)}\n" for name, value in group.items()) for group in filled]
    sys.stdout.write("\n".join(texts))
    sys.stdout.flush()
