"""Settlements that are not in the store yet, with what follows once they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.jobs.store import Settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.admission import AdmissionQueue
    from mainspring.jobs.held import Held, Worker
    from mainspring.jobs.rules import Settlement

    Acknowledge = Callable[[bool], None]
    """Is called with whether the settlement was recorded; False means that it was stale."""


class PendingSettlement(NamedTuple):
    """A reported settlement."""

    settlement: Settlement
    exception: bytes | None
    acknowledge: Acknowledge | None
    admission: AdmissionQueue[Held] | None
    """The queue that receives the job's tokens."""
    worker: Worker | None


class SettleBatch:
    """Settlements that are committed with operations of another slice: all of them, or none."""

    __slots__ = ("operation", "pending")

    def __init__(self) -> None:
        self.operation = Settle([])
        self.pending: list[PendingSettlement] = []
