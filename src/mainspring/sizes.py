"""The limits of values that arrive from outside and are stored or shown: one table, with which a test compares the page *Limits*.

A worker's or client's text is refused, or shortened where a refusal would lose the outcome of a job. Fields of requests have a
limit in their types (`Text`, `Texts`, `Whole`), which `tests/security/test_sizes.py` requires of each of them.
"""

from __future__ import annotations

import re
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_args, get_origin

from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Iterator


class Size(NamedTuple):
    """One limit."""

    most: int
    unit: str
    what: str
    then: str
    """`REFUSED`, `SHORTENED` or `LEFT_OUT`."""

    def __str__(self) -> str:
        for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
            if self.unit == "bytes" and self.most % size == 0:
                return f"{self.most // size} {unit}"
        return f"{self.most:,} {self.unit}"


REFUSED: Final = "refused"
SHORTENED: Final = "shortened"
LEFT_OUT: Final = "left out"

FAILURE_TYPE: Final = Size(200, "characters", "the type of a failure", SHORTENED)
FAILURE_TEXT: Final = Size(65_536, "characters", "the message of a failure, and its traceback", SHORTENED)
FAILURE_LINE: Final = Size(
    500, "characters", "the message of a failure in lists; a job's own view has all of it", SHORTENED
)
STORED_FAILURE: Final = Size(4_096, "bytes", "the part of a stored failure that a list reads", SHORTENED)

PAGE: Final = Size(
    4 * 2**20,
    "bytes",
    "a page of any list: it ends early, and its cursor continues there",
    SHORTENED,
)
ROW_VALUE: Final = Size(
    65_536,
    "bytes",
    "a value in a row, such as the change of an act in the audit: a mark with its size replaces it",
    SHORTENED,
)
ABOUT: Final = Size(65_536, "bytes", "what a run's code waits for, as its worker reports it", LEFT_OUT)
PARKED_TEXT: Final = Size(65_536, "characters", "the sentence that says why a run is parked", SHORTENED)
PARKED_LINE: Final = Size(1_000, "characters", "a recorded or repeated command of a parked run", SHORTENED)
PARKED_LINES: Final = Size(100, "entries", "the commands of a parked run", SHORTENED)
IDENTIFIER: Final = Size(
    1_024, "characters", "a name, a version, a digest of code, a handle or a reason in a worker's report", REFUSED
)
UNREAD: Final = Size(2**20, "entries", "the unread signals that a run hands to the next one", REFUSED)
TAGS: Final = Size(100, "entries", "the tags of a run", REFUSED)
TEXT: Final = Size(4_096, "characters", "a text in a request that has no smaller limit", REFUSED)
LEVELS: Final = Size(500, "levels", "JSON arguments, and the value of a signal", REFUSED)
ENTRIES: Final = Size(10_000, "entries", "a list in a request that has no smaller limit", REFUSED)
FAILURE: Final = Size(2**20, "bytes", "the stored failure of a run", REFUSED)

CANNOT_READ: Final = (ValueError, RecursionError)
"""The errors of a decoder: a MsgspecError and text that is not UTF-8 are ValueErrors, and too many levels the other one."""


def brief_line(message: str) -> str:
    """Return the first line of the message of a failure, shortened as in lists."""
    return shorten(message.partition("\n")[0], FAILURE_LINE.most)


MARK: Final = "[… {} characters …]"


# ---- the types of fields in requests ----

Text = Annotated[str, Meta(max_length=TEXT.most)]
"""A name, a handle, a key, a cursor or a reason."""
Identifier = Annotated[str, Meta(max_length=IDENTIFIER.most)]
"""A version, an App or a digest of code, which reports repeat."""
Texts = Annotated[list[Text], Meta(max_length=ENTRIES.most)]
TextTuple = Annotated[tuple[Text, ...], Meta(max_length=ENTRIES.most)]
Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A number that each store can keep."""
KIND: Final = "kind"
"""The key under which a type says how people write its values, if Python's type does not: see `api.declaration.FieldKind`."""
IS_OPTION: Final = "is_option"
"""The key of a description for False where commands and forms do not have the field by themselves: see `about`."""
Seconds = Annotated[float, Meta(ge=-1e12, le=1e12, extra={KIND: "duration"})]
"""A duration; the rules of its request have a smaller limit."""
Time = Annotated[datetime, Meta(tz=True)]
"""A time as RFC 3339 text, with a time zone."""


def described(help: str, *names: str, metavar: str = "", label: str = "", choices: tuple[str, ...] = ()) -> Meta:  # noqa: A002 - the field's own term
    """Return the description of a field, for its annotation.

    For example ``delay: Annotated[Seconds, described("Start the job this long from now, or later.")]``.

    ``help`` is a sentence for the help of the command, for OpenAPI and for forms. ``names`` are the options of the command, such
    as ``--delay``; by default there is one, of the field's name. ``metavar`` names the value in the help. ``label`` names the
    input of a form. ``choices`` are values that faces offer, where the type allows others.
    """
    return Meta(description=help, extra={key: value for key, value in _extras(names, metavar, label, choices) if value})


def about(help: str) -> Meta:  # noqa: A002 - the field's own term
    """Return the description of a field that is no option of a command and no input of a form by itself, such as a handle."""
    return Meta(description=help, extra={IS_OPTION: False})


def _extras(names: tuple[str, ...], metavar: str, label: str, choices: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    yield "names", names
    yield "metavar", metavar
    yield "label", label
    yield "choices", choices


def bare(kind: Any) -> Any:
    """Return a type without its limits."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_STEPS: Final = {ord(sign): step for sign, step in (("[", 1), ("{", 1), ("]", -1), ("}", -1))}
_OTHERS: Final = bytes(byte for byte in range(256) if byte not in _STEPS)
SHORTEST_TOO_DEEP: Final = 2 * LEVELS.most
"""Bytes that JSON with too many levels exceeds."""


def is_too_deep(text: bytes) -> bool:
    """Return whether JSON has more levels than `LEVELS`: its readers could not decode it."""
    is_wide = len(text) <= SHORTEST_TOO_DEEP or text.count(b"[") + text.count(b"{") <= LEVELS.most
    if is_wide:  # as nearly all: the rest takes time for each bracket
        return False
    brackets = _STRING.sub(b"", text).translate(None, _OTHERS)
    return any(level > LEVELS.most for level in accumulate(map(_STEPS.__getitem__, brackets)))


def shorten(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters; a longer one lacks its middle, with the number of its characters there."""
    if len(text) <= most:
        return text
    mark = MARK.format(len(text) - most + len(MARK) + 8)
    half = (most - len(mark)) // 2
    mark = MARK.format(len(text) - 2 * half)
    return f"{text[:half]}{mark}{text[-half:]}"


SIZES: Final = tuple(size for size in list(globals().values()) if isinstance(size, Size))
"""All limits."""
