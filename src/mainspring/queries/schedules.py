"""The read side of schedules: their histories in pages. It never writes."""

from __future__ import annotations

from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase


class ListFires(Operation):
    """Read rows of a schedule, those of the newest fire times first, of times before ``before_us`` where that is given.

    Outcome: ``list[Fire]``, also where the schedule was removed.
    """

    __slots__ = ("before_us", "name")

    phase = Phase.READ
    reads = True

    def __init__(
        self,
        name: str,
        before_us: int | None = None,
        limit: int = 100,
    ) -> None:
        super().__init__()
        self.name = name
        self.before_us = before_us
        self.rows = limit
        self.overtakes = True
