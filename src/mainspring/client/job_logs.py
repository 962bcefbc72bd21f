"""The log of a job, as its submitter reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from mainspring.client.reconnect_policy import RECONNECT_TIMEOUT, delays

if TYPE_CHECKING:
    from mainspring.errors import ConnectionLostError

METHOD: Final = "jobs.logs"
WAIT: Final = 10.0
"""Seconds of one request for lines while there are none."""
PAGE: Final = 1000
"""Lines of one request."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a task has logged."""

    attempt: int
    number: int
    """Its number among the lines of one run of the task; the first is 1."""
    at: datetime | None
    """The time in the worker."""
    level: str
    """debug, info, warning, error or critical."""
    logger: str
    """The name of the logger of `logging`; empty for ``current_job().log``."""
    message: str
    fields: dict[str, Any] = field(default_factory=dict)
    missed: int = 0
    """The number of lines before this one that were not kept."""


def line_of(given: dict[str, Any]) -> LogLine:
    """Return a line of a server's answer."""
    at = given.get("at")
    return LogLine(
        attempt=given["attempt"],
        number=given["number"],
        at=None if at is None else datetime.fromisoformat(at),
        level=given["level"],
        logger=given["logger"],
        message=given["message"],
        fields=given["fields"],
        missed=given.get("missed", 0),
    )


def tail_of(handle: str, tail: int, level: str) -> dict[str, Any]:
    """Return the parameters of a request for the last lines."""
    return {"handle": handle, "tail": tail, "level": level}


class LogCursor:
    """The place of a reader in a log that grows: the parameters of its next request."""

    def __init__(self, handle: str, level: str = "debug") -> None:
        self.params: dict[str, Any] = {"handle": handle, "after": "", "level": level, "limit": PAGE, "wait": WAIT}
        self.ended = False
        """Whether the job has ended, and all lines were read."""
        self._failed_at: float | None = None
        self._delays = delays()

    def add(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        """Process an answer; return its lines."""
        self._failed_at = None
        self._delays = delays()
        self.params["after"] = answer["next"]
        self.ended = answer["ended"]
        lines: list[dict[str, Any]] = answer["lines"]
        return lines

    def lost(self, error: ConnectionLostError, now: float) -> float:
        """Return the seconds after which the request is sent again, to any node, because a connection has ended.

        Raises the error if no server has answered for as long as waits for jobs go on without one.
        """
        if self._failed_at is None:
            self._failed_at = now
        elif now - self._failed_at > RECONNECT_TIMEOUT:
            raise error
        return next(self._delays)
