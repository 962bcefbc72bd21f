"""Attempts that were lost with their node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs.model import Job
from mainspring.jobs.rules import Event, Outcome, Settlement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.jobs.store import LostAttempt

NODE_LOST: Final = "its node was lost"
"""The reason of lost attempts that were recorded as running at a lost node."""


def settlements_of(lost: Iterable[LostAttempt]) -> list[Settlement]:
    """Return the settlements that report lost attempts."""
    settlements = []
    for one in lost:
        settlement = Settlement(Job(one.job_id, one.function, b""), Event.LOSE, one.attempt)
        settlement.outcome, settlement.why = Outcome.LOST, NODE_LOST
        settlements.append(settlement)
    return settlements
