"""Limits for log lines that clients or failing tasks can cause at any rate."""

from __future__ import annotations

from typing import Final


class LogLimit:
    """Lets one line through in so many seconds, and counts those that are left out. Times are monotonic seconds."""

    __slots__ = ("_left_out", "_next", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = float("-inf")
        self._left_out = 0

    def left_out(self, now: float) -> int | None:
        """Return how many lines were left out before this one; None: leave this one out, too."""
        if now < self._next:
            self._left_out += 1
            return None
        self._next = now + self._seconds
        left_out, self._left_out = self._left_out, 0
        return left_out


class KeyedLogLimit:
    """Lets so many lines through for each key and span, and counts those that are left out. Times are monotonic seconds.

    A span lasts for ``seconds`` from its first line on. Of more than ``keys`` keys in one, those that come last share one limit,
    that of the key "".
    """

    def __init__(self, lines: int = 10, keys: int = 1000, seconds: float = 1.0) -> None:
        self._lines = lines
        self._keys = keys
        self._span = seconds
        self._spans: dict[str, _Span] = {}  # in the order in which they began
        self._over: list[tuple[str, int]] = []

    def allows(self, key: str, now: float) -> bool:
        """Say whether a line may be written."""
        self._end_spans(now)
        if key not in self._spans and len(self._spans) >= self._keys:
            key = ""
        span = self._spans.get(key)
        if span is None:
            span = self._spans[key] = _Span(now + self._span)
        span.lines += 1
        return span.lines <= self._lines

    def left_out(self, now: float) -> list[tuple[str, int]]:
        """Return the keys whose lines were left out, with their numbers, for each span that is over; each is returned once."""
        self._end_spans(now)
        over, self._over = self._over, []
        return over

    @property
    def next_end(self) -> float | None:
        """When the first span is over in which lines were left out; None: none were."""
        return min((one.end for one in self._spans.values() if one.lines > self._lines), default=None)

    def _end_spans(self, now: float) -> None:
        while self._spans:
            key = next(iter(self._spans))
            span = self._spans[key]
            if span.end > now:
                return
            del self._spans[key]
            if span.lines > self._lines:
                self._over.append((key, span.lines - self._lines))


CAUSE_EVERY: Final = 60.0
"""Seconds between two lines with the same cause."""
CAUSES: Final = 20
"""Causes with lines of their own in that time."""


class CauseLimit:
    """Lets one line a minute through for each cause of what fails again and again. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._limit = KeyedLogLimit(1, CAUSES, CAUSE_EVERY)

    def allows(self, cause: str, now: float) -> bool:
        """Say whether a line may be written."""
        self._limit.left_out(now)  # nobody asks for their number
        return self._limit.allows(cause, now)


class _Span:
    """A span in which lines of one key were written: when it is over, and how many there were."""

    __slots__ = ("end", "lines")

    def __init__(self, end: float) -> None:
        self.end = end
        self.lines = 0
