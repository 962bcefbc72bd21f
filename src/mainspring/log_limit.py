"""Limits for log lines that clients or failing tasks could cause at any rate, and the lines about failed attempts.

Workers and nodes write one line for each failed attempt, with a limit for functions that fail often. Each attempt is logged by
one of the two.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable


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


LOGGER_NAME: Final = "mainspring.attempts"
MAX_ERROR_LENGTH: Final = 1000
"""The most characters of an error in a line."""

AttemptEnd = Literal["failed", "timed out", "lost", "given up"]
"""How an attempt ended. ``given up``: it was lost with a node, and its job has failed because no attempt is left."""
EVENT_OF: Final[dict[AttemptEnd, str]] = {
    "failed": "attempt failed",
    "timed out": "attempt timed out",
    "lost": "attempt lost",
    "given up": "job given up",
}


class AttemptLog:
    """Writes the lines of one process, on its event loop.

    ``clock`` returns the loop's time; ``call_later`` calls a function after a number of seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        limit: KeyedLogLimit | None = None,
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._limit = limit or KeyedLogLimit()
        self._timer_set = False

    def allows(self, function: str) -> bool:
        """Return whether a line about a function may be written now. Refused lines are counted and logged later."""
        now = self._clock()
        allowed = self._limit.allows(function, now)
        self._log_left_out(now)
        if not allowed and not self._timer_set:
            self._set_timer(now)
        return allowed

    def write(
        self,
        end: AttemptEnd,
        function: str,
        handle: str,
        attempt: int,
        error: str,
        next_retry: float | str | None,
        traceback: str | None = None,
    ) -> None:
        """Write a line. ``next_retry`` is in seconds since 1970; None: no retry follows; a text: its time is unknown."""
        if isinstance(next_retry, float):
            next_retry = (
                datetime.fromtimestamp(next_retry, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            )
        more = {} if traceback is None else {"exception": traceback.rstrip()}
        _logger().warning(
            EVENT_OF[end],
            function=_printable(function),
            handle=handle,
            attempt=attempt,
            error=error if len(error) <= MAX_ERROR_LENGTH else f"{error[:MAX_ERROR_LENGTH]}…",
            next_retry=next_retry,
            **more,
        )

    def close(self) -> None:
        """Log the number of lines left out so far."""
        self._log_left_out(self._clock() + 1)

    def _log_left_out(self, now: float) -> None:
        for function, number in self._limit.left_out(now):
            _logger().warning(
                "attempts failed that are not logged", function=_printable(function) or "(others)", left_out=number
            )

    def _set_timer(self, now: float) -> None:
        end = self._limit.next_end
        self._timer_set = end is not None
        if end is not None:
            self._call_later(max(end - now, 0), self._span_ended)

    def _span_ended(self) -> None:
        now = self._clock()
        self._log_left_out(now)
        self._set_timer(now)


def _logger() -> Any:
    """Return the logger: the node's or worker's own log, or `logging` in an application that embeds a worker."""
    if structlog.is_configured():
        return structlog.get_logger(LOGGER_NAME)
    return structlog.wrap_logger(
        logging.getLogger(LOGGER_NAME),
        processors=[structlog.processors.LogfmtRenderer(key_order=["event"])],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _printable(name: str) -> str:
    """Return a name with its control characters escaped: clients choose names, and a log may be read on a terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in name)
