"""Lines that the code of a run has logged, until the report of its decision takes them along.

A line belongs to the report of the turn that has logged it. A node stores the lines of recorded reports alone, and later
executions only replay those turns: so no line is stored twice.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec

MOST_BYTES: Final = 64 * 1024
"""Bytes of the lines in one report; of more, the oldest are left out."""

_encode = msgspec.msgpack.Encoder().encode


class LogLines:
    """The lines since the last report. Their numbers begin with 1 in each report."""

    __slots__ = ("_bytes", "_lines", "_next")

    def __init__(self) -> None:
        self._lines: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._next = 1

    def add(self, line: Any, size: int) -> None:
        """Add a line of about so many bytes, which MessagePack can encode."""
        self._next += 1
        self._lines.append((line, size))
        self._bytes += size
        while self._bytes > MOST_BYTES and len(self._lines) > 1:
            self._bytes -= self._lines.popleft()[1]

    def take(self) -> bytes:
        """Return the lines with the number of the first one, encoded for a report; empty if there are none."""
        if not self._lines:
            return b""
        body = _encode((self._next - len(self._lines), [line for line, _ in self._lines]))
        self._lines.clear()
        self._bytes, self._next = 0, 1
        return body
