"""Lines that tasks log, the chunks in which a store keeps them, and the rule for long logs.

Text of tasks is made safe for terminals and pages. The first lines of a delivery stay, and the last ones.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mainspring.sizes import CANNOT_READ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_ESCAPES: Final = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]"  # CSI, such as colours
    "|\x1b[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?"  # OSC and other strings, such as the title of a window
    "|\x1b[ -/]*[0-~]?"
    "|\x9b[0-?]*[ -/]*[@-~]"  # CSI in one character
)
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def clean(text: str) -> str:
    """Return a text without escape sequences; other control characters but line feeds and tabs become U+FFFD."""
    if _UNSAFE.search(text) is None:
        return text
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNSAFE.sub("\ufffd", text)


def cut(text: str, limit: int) -> str:
    """Return a text of at most about ``limit`` characters, with the number of missing ones in its middle."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}[… {len(text) - 2 * half} characters …]{text[-half:]}"


if TYPE_CHECKING:
    Value = str | int | float | bool | None

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
"""The names of levels; a line has the index of its level."""
MAX_MESSAGE: Final = 16_384
"""Characters of a message; a longer one is cut in the middle."""
MAX_NAME: Final = 255
"""Characters of a logger's or field's name."""
MAX_VALUE: Final = 1024
"""Characters of a field's value."""
MAX_FIELDS: Final = 32
REDACTED: Final = "[redacted]"
CHUNK_BYTES: Final = 16_384
"""Bytes after which a chunk is full. Its last line may be longer."""
CHUNK_LINES: Final = 500
UNREADABLE: Final = "(this line cannot be read by this version)"
_ERROR: Final = LEVELS.index("error")
CHUNK_OVERHEAD: Final = 64
"""Bytes that a chunk counts in addition to its lines."""


class Line(msgspec.Struct, array_like=True):
    """One line. ``at_us`` is its time by the worker's clock, and once it is stored by the node's; in microseconds since 1970 UTC.

    ``level`` is an index of `LEVELS`.
    """

    at_us: int
    level: int
    logger: str
    message: str
    fields: dict[str, str | int | float | bool | None] | None = None


class Chunk(NamedTuple):
    """Consecutive lines of one delivery."""

    id: int
    """Unique among the chunks of a job, and higher than those of earlier ones: about the time in microseconds."""
    job: int
    namespace: str
    function: bytes
    attempt: int
    delivery_us: int
    """The time when the delivery began, which identifies it among those of the job."""
    first: int
    """The number of the first line."""
    lines: int
    levels: int
    """The levels of the lines as bits: 1 for the first one of `LEVELS`, 2 for the second one, and so on."""
    body: bytes
    """The lines, encoded."""

    @property
    def size(self) -> int:
        """Return the bytes that it counts as."""
        return len(self.body) + CHUNK_OVERHEAD


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Line]).decode


def lines_of(chunk: Chunk) -> list[Line]:
    """Return the lines of a chunk. For a body that cannot be read, each line says so: it must not break the log."""
    try:
        lines = _decode(chunk.body)
    except CANNOT_READ:
        lines = []
    if len(lines) == chunk.lines and all(0 <= line.level < len(LEVELS) for line in lines):
        return lines
    return [
        Line(min(chunk.id, _LATEST_US), _ERROR, "mainspring", UNREADABLE) for _ in range(min(chunk.lines, CHUNK_LINES))
    ]


def mask_from(level: int) -> int:
    """Return the bits of a level and of those above it."""
    return (1 << len(LEVELS)) - (1 << level)


def hides_nothing(_: str) -> bool:
    """Return False: all fields may be seen."""
    return False


def redate(lines: Sequence[Line], sent_us: int, now_us: int) -> None:
    """Change the times of lines from the worker's clock, whatever that shows, to the node's.

    ``sent_us`` is the time at which the worker has sent them, by the clock of the lines. It is 0 if the worker does not state it:
    then a difference below a minute may be the age of the lines. No line has a time after now, or more than a day before.
    """
    if not lines:
        return
    ahead_us = (sent_us or lines[-1].at_us) - now_us
    if abs(ahead_us) < (SENT_WITHIN_US if sent_us else _KEPT_BACK_US):
        ahead_us = 0
    for line in lines:
        line.at_us = min(max(line.at_us - ahead_us, now_us - _OLDEST_US), now_us)


SENT_WITHIN_US: Final = 500_000
"""Microseconds that packets may take, and by which clocks may differ, without a change of the times of lines."""
_KEPT_BACK_US: Final = 60_000_000
_OLDEST_US: Final = 86_400_000_000
_LATEST_US: Final = 253_370_764_800_000_000
"""The year 9999: later times cannot be shown."""


def tidy(line: Line, hides: Callable[[str], bool]) -> None:
    """Remove from a line what may harm a reader's terminal, cut what is too long, and redact the fields that ``hides`` names."""
    line.at_us = min(max(line.at_us, 0), _LATEST_US)
    line.level = min(max(line.level, 0), len(LEVELS) - 1)
    line.logger = cut(clean(line.logger), MAX_NAME)
    line.message = cut(clean(line.message), MAX_MESSAGE)
    if line.fields:
        line.fields = {
            cut(clean(name), MAX_NAME): REDACTED
            if hides(name)
            else cut(clean(value), MAX_VALUE)
            if isinstance(value, str)
            else value
            for name, value in list(line.fields.items())[:MAX_FIELDS]
        }


class Part(NamedTuple):
    """The part of a chunk that does not depend on the job."""

    first: int
    lines: int
    levels: int
    body: bytes


def parts_of(first: int, lines: Sequence[Line], hides: Callable[[str], bool] = hides_nothing) -> Iterator[Part]:
    """Tidy lines, and yield them in parts of the size of a chunk. ``hides`` is as in `tidy`."""
    start = size = levels = 0
    for place, line in enumerate(lines):
        tidy(line, hides)
        length = len(line.message) + 32
        if place > start and (size + length > CHUNK_BYTES or place - start >= CHUNK_LINES):
            yield Part(first + start, place - start, levels, _encode(lines[start:place]))
            start, size, levels = place, 0, 0
        size += length
        levels |= 1 << line.level
    if start < len(lines):
        yield Part(first + start, len(lines) - start, levels, _encode(lines[start:]))


HALF_LINES: Final = 5_000
HALF_BYTES: Final = 512 * 1024
"""The limits of the first lines, and of the last ones: together 10,000 lines and 1 MiB."""


class HeadAndTail:
    """Chooses the chunks of the log of one delivery that stay."""

    def __init__(self, half_lines: int = HALF_LINES, half_bytes: int = HALF_BYTES) -> None:
        self._half_lines = half_lines
        self._half_bytes = half_bytes
        self._head_lines = self._head_bytes = 0
        self._head_is_full = False
        self._tail: deque[tuple[int, int, int]] = deque()
        self._tail_lines = self._tail_bytes = 0

    def add(self, chunk: Chunk) -> list[int]:
        """Add the next chunk; return the ids of the chunks of the middle that are to be deleted for it."""
        lines, size = chunk.lines, chunk.size
        if not self._head_is_full:
            self._head_lines += lines
            self._head_bytes += size
            if self._head_lines <= self._half_lines and self._head_bytes <= self._half_bytes:
                return []
            self._head_is_full = True
        self._tail.append((chunk.id, lines, size))
        self._tail_lines += lines
        self._tail_bytes += size
        dropped = []
        while len(self._tail) > 1 and (self._tail_lines > self._half_lines or self._tail_bytes > self._half_bytes):
            chunk_id, lines, size = self._tail.popleft()
            self._tail_lines -= lines
            self._tail_bytes -= size
            dropped.append(chunk_id)
        return dropped
