"""Calls about the logs of jobs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.roles import Permission
from mainspring.api.request import Request
from mainspring.sizes import Text, Whole  # noqa: TC001 - msgspec reads the annotations

LONGEST_WAIT = 30.0
"""Seconds that a call may wait for lines."""
Level = Literal["debug", "info", "warning", "error", "critical"]


class LogLine(msgspec.Struct):
    """A line of a job's log; docs/reference/protocol.md explains the keys."""

    attempt: int
    number: int
    at: str | None
    level: str
    logger: str
    message: str
    fields: dict[str, str | int | float | bool | None]
    missed: int | UnsetType = UNSET
    """The number of lines that are missing before this one; left out if there are none."""


class Logged(msgspec.Struct):
    """A part of a job's log, the oldest line first."""

    lines: list[LogLine]
    next: str
    """The value of ``after`` for the lines that follow."""
    ended: bool
    """Whether the job has ended, and no more lines follow."""


class LogEnd(msgspec.Struct):
    """The last event of a stream of lines: the job has ended."""

    ended: bool = True


class FollowLogs(Request[None]):
    """A stream of the lines of a job's log, until it has ended. Codes: those of ``jobs.logs``."""

    permission = Permission.PAYLOADS
    name_in_audit = "jobs.follow_logs"
    handle: Text
    tail: Whole = 200
    """The number of earlier lines with which the stream begins, the newest ones."""
    after: Text | None = None
    """The place where another stream ended; instead of ``tail``."""
    level: Level = "debug"
    attempt: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None


class Logs(Request[Logged]):
    """Lines of a job's log. Codes: ``job_not_found``, ``invalid``, ``unsupported``."""

    permission = Permission.PAYLOADS
    call = "jobs.logs"
    only_reads = True
    handle: Text
    tail: Whole = 200
    """Without ``after``: the number of lines, the newest ones."""
    after: Text | None = None
    """``next`` of the previous answer; empty: from the first line."""
    limit: Whole = 1000
    """With ``after``: the largest number of lines."""
    level: Level = "debug"
    """The lowest level."""
    attempt: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    wait: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT)] = 0.0
    """With ``after``: seconds to wait for a line if there is none, and the job has not ended."""
