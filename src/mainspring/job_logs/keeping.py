"""The rule for long logs: the first lines of a delivery stay, and the last ones."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mainspring.job_logs.model import Chunk

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
