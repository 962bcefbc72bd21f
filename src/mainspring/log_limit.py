"""Limits for log lines that clients or failing tasks could cause at any rate."""

from __future__ import annotations

from typing import Final


class LogLimit:
    """Allows one line per ``seconds``, and counts the lines that are left out. Times are monotonic seconds."""

    __slots__ = ("_left_out", "_next", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = float("-inf")
        self._left_out = 0

    def left_out(self, now: float) -> int | None:
        """Return how many lines were left out before this one; None: leave out this one, too."""
        if now < self._next:
            self._left_out += 1
            return None
        self._next = now + self._seconds
        left_out, self._left_out = self._left_out, 0
        return left_out


class KeyedLogLimit:
    """Allows ``lines`` lines per key and span, and counts the lines that are left out. Times are monotonic seconds.

    A key's span begins with its first line and lasts ``seconds``. While ``keys`` keys have a span, all other keys share the limit
    of the key "".
    """

    def __init__(self, lines: int = 10, keys: int = 1000, seconds: float = 1.0) -> None:
        self._lines = lines
        self._keys = keys
        self._span = seconds
        self._spans: dict[str, _Span] = {}  # in the order in which they began
        self._ended: list[tuple[str, int]] = []

    def allows(self, key: str, now: float) -> bool:
        """Return whether a line may be written."""
        self._end_spans(now)
        if key not in self._spans and len(self._spans) >= self._keys:
            key = ""
        span = self._spans.get(key)
        if span is None:
            span = self._spans[key] = _Span(now + self._span)
        span.lines += 1
        return span.lines <= self._lines

    def left_out(self, now: float) -> list[tuple[str, int]]:
        """Return each key with the number of lines left out, for spans that have ended since the last call."""
        self._end_spans(now)
        ended, self._ended = self._ended, []
        return ended

    @property
    def next_end(self) -> float | None:
        """The end of the first span in which lines were left out; None: there is no such span."""
        return min((one.end for one in self._spans.values() if one.lines > self._lines), default=None)

    def _end_spans(self, now: float) -> None:
        while self._spans:
            key = next(iter(self._spans))
            span = self._spans[key]
            if span.end > now:
                return
            del self._spans[key]
            if span.lines > self._lines:
                self._ended.append((key, span.lines - self._lines))


CAUSE_SPAN: Final = 60.0
"""Seconds between two lines with the same cause."""
MAX_CAUSES: Final = 20
"""Causes with separate limits in that time."""


class CauseLimit:
    """Allows one line per minute for each cause of a repeated failure. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._limit = KeyedLogLimit(1, MAX_CAUSES, CAUSE_SPAN)

    def allows(self, cause: str, now: float) -> bool:
        """Return whether a line may be written."""
        self._limit.left_out(now)  # discards the numbers, which are not logged
        return self._limit.allows(cause, now)


class _Span:
    """The end of a key's span, and the number of lines in it."""

    __slots__ = ("end", "lines")

    def __init__(self, end: float) -> None:
        self.end = end
        self.lines = 0
