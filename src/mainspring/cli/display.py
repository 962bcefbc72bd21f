"""Output of commands: tables for people on a terminal, plain lines and JSON for programs, error lines, and exit codes.

Text from clients and workers (names, errors, payloads) never reaches a terminal raw: control characters are written as
escapes, so that no job can move the cursor or forge a line. A table that is too wide for its terminal has columns cut or left
out, in a given order.

====  ================================================
0     done
1     the job or the command failed
2     wrong usage
3     no server
4     not found
5     timed out
====  ================================================
"""

from __future__ import annotations

import errno
import re
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rich.cells import cell_len, set_cell_size

from mainspring.appearance import terminal_style
from mainspring.errors import (
    ConnectionLostError,
    JobLost,
    Kind,
    MainspringError,
    NoAnswerError,
    RefusedError,
    ServerError,
    StoreBusyError,
    StoreCorruptError,
    StoreForeignError,
    StoreFullError,
)
from mainspring.quantities import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TextIO


def did_you_mean(word: str, candidates: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """Return a question that begins with a semicolon and names the most similar candidates; empty if none is similar.

    ``cutoff``, from 0 to 1, is the least similarity.
    """
    import difflib  # noqa: PLC0415 - for mistakes only

    close = [repr(name) for name in difflib.get_close_matches(word, candidates, n=most, cutoff=cutoff)]
    if not close:
        return ""
    *others, last = close
    before = f"{', '.join(others)} or " if others else ""
    return f"; did you mean {before}{last}?"


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
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    import msgspec  # noqa: PLC0415 - help and most tables do without

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


EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_SERVER = 3
EXIT_NOT_FOUND = 4
EXIT_TIMED_OUT = 5
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141

EXPECTED_ERRORS = (MainspringError, OSError, TimeoutError)
"""Errors that a command reports in one line. Any other exception is a defect and shows its traceback."""

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (JobLost, EXIT_NOT_FOUND),
    (RefusedError, EXIT_FAILED),
    (NoAnswerError, EXIT_TIMED_OUT),
    *((kind.error, kind.exit_code) for kind in Kind),
    (ServerError, EXIT_NO_SERVER),
    (TimeoutError, EXIT_TIMED_OUT),
)

_USAGE_CODES = {"ARGUMENT_TOO_LARGE", "INVALID_ARGUMENTS", "INVALID_FUNCTION_NAME"}
"""Codes of a server's refusal for a request that is wrong in every state of the system."""

_ADVICE: tuple[tuple[type[BaseException], str], ...] = (
    (StoreFullError, "free some space and start again; no accepted job is lost"),
    (StoreBusyError, "stop the other node, or give this one another --store"),
    (StoreCorruptError, "restore a backup (see mainspring backup), or start with another --store"),
    (StoreForeignError, "give another --store"),
)

_ADVICE_SIGNS = ("; ", "--store", "mainspring import")
"""A message with one of these already contains advice."""

_NO_SERVER_ADVICE = "start one with: mainspring serve, or name it with --server or MAINSPRING_SERVER"

_OTHER_SERVER_ADVICE = "name the Gearman port of a Mainspring server with --server or MAINSPRING_SERVER"
"""For a gearmand, the HTTP port of a node, or another program that listens on the address."""

_SYSTEM = {
    errno.EACCES: "permission denied; run as a user with the permission, or change the permissions of the file",
    errno.EPERM: "permission denied; run as a user with the permission",
    errno.ENOENT: "no such file or directory; check the path",
    errno.ENOSPC: "no space is left on the device; free some and start again",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EISDIR: "it is a directory; name a file",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
}


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error."""
    if isinstance(error, RefusedError) and error.code in _USAGE_CODES:
        return EXIT_USAGE
    return next((code for kind, code in _CODES if isinstance(error, kind)), EXIT_FAILED)


def explain(error: BaseException) -> str:
    """Return one line with the problem and the remedy."""
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        reason = _SYSTEM.get(error.errno or 0, error.strerror or str(error) or type(error).__name__)
        return f"{error.filename}: {reason}" if error.filename else reason
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ConnectionLostError) and text.endswith("and did not answer"):
        return f"{text}: it hangs, or is not a Mainspring server; {_OTHER_SERVER_ADVICE}"
    if isinstance(error, ConnectionLostError):
        return f"{text}; {_NO_SERVER_ADVICE}" if text.startswith("no server") and "--tls-" not in text else text
    if isinstance(error, ServerError) and text.startswith("the server does not support"):
        return f"{text}; {_OTHER_SERVER_ADVICE}"
    advice = next((advice for kind, advice in _ADVICE if isinstance(error, kind)), None)
    if advice is None or any(sign in text for sign in _ADVICE_SIGNS):
        return text
    return f"{text}; {advice}"


def print_error(text: str, *, stream: TextIO | None = None) -> None:
    """Write an error line, with control characters escaped: parts of the text may come from clients and workers."""
    print(f"mainspring: {printable(text)}", file=sys.stderr if stream is None else stream, flush=True)


def progress_text(progress: Mapping[str, Any] | None) -> str | None:
    """Return a report of progress as text, such as ``30 of 100: resizing``; None for none."""
    if progress is None:
        return None
    numbers = f"{progress['done']:,} of {progress['total']:,}"
    return f"{numbers}: {progress['text']}" if progress["text"] else numbers
