"""What time alone does to stored jobs: they become due, expire, and are forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from mainspring.jobs.model import Job


class Wake(Operation):
    """Make jobs pending whose time has come, and expire those that wait after their time and have no counted attempt.

    Each at most as many as the limit says. Outcome: ``Woken``.
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
    """How many jobs of each function and priority became pending."""
    expired: list[tuple[Job, int]]
    """The jobs that expired, without payload, and the state that each was in before."""
    next_us: int
    """When to wake next, at the earliest: 0 where nothing waits for a time."""


class Sweep(Operation):
    """Forget jobs that ended before a time: failed ones (dead letters) have a time of their own.

    A store that drops many at once may keep some for longer, by at most the span of what it drops (PostgreSQL: a day, of failed
    ones a week), and failed ones as long as any others. Outcome: ``int``, how many were forgotten one by one.
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
