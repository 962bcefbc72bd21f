"""Time-driven changes of stored jobs: they become due, expire and are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from mainspring.jobs.model import Job


class Wake(Operation):
    """Make due jobs pending, and expire waiting jobs that are past their expiry and have no counted attempt.

    The limit applies to each of the two. Outcome: ``Woken``.
    """

    __slots__ = ("now_us",)

    phase = Phase.WAKE

    def __init__(self, now_us: int, limit: int = 1000) -> None:
        super().__init__()
        self.now_us = now_us
        self.rows = limit


class Woken(NamedTuple):
    """The outcome of Wake."""

    due: dict[tuple[bytes, int], int]
    """The number of jobs of each function and priority that became pending."""
    expired: list[tuple[Job, int]]
    """The jobs that expired, without payload, each with its state before."""
    next_us: int
    """The earliest time of the next wake; 0 if no job waits for a time."""


class Sweep(Operation):
    """Delete jobs that ended before a time; failed jobs (dead letters) have their own time. Root jobs (``model.RUNS``) stay.

    A store that drops whole partitions may keep jobs longer, by at most the span of a partition (PostgreSQL: a day, for failed
    jobs a week). It keeps failed jobs at least as long as others. Outcome: ``int``, how many jobs were deleted one by one.
    """

    __slots__ = ("dead_before_us", "ended_before_us")

    phase = Phase.SWEEP

    def __init__(
        self,
        ended_before_us: int,
        dead_before_us: int,
        limit: int = 1000,
    ) -> None:
        super().__init__()
        self.ended_before_us = ended_before_us
        self.dead_before_us = dead_before_us
        self.rows = limit
