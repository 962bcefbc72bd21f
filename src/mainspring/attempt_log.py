"""Log lines about failed attempts: one per attempt, with a limit for functions that fail often.

Workers and nodes write these lines; each attempt is logged by one of the two.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog

from mainspring.log_limit import KeyedLogLimit

if TYPE_CHECKING:
    from collections.abc import Callable

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
