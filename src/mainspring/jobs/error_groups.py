"""The failed attempts of a node, grouped by function and type of error. Successes cost nothing here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.failures import UNREADABLE, decode_failure
from mainspring.jobs.rules import Outcome
from mainspring.series.model import MESSAGE_LIMIT, ErrorGroup, add_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.rules import Settlement

UNKNOWN = "unknown"
"""The type of a failure that is not readable."""
_TYPES = {Outcome.LOST: "WorkerLost", Outcome.TIMED_OUT: "Timeout"}


class ErrorGroups:
    """Groups failed attempts until they are taken. ``now_us`` returns the wall time in microseconds."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._groups: dict[bytes, dict[str, ErrorGroup]] = {}

    def add(self, function: bytes, settlement: Settlement) -> None:
        """Add an attempt that failed, timed out or was lost. ``function`` is the name under which it is counted."""
        kind, message = _TYPES.get(settlement.outcome or Outcome.FAILED, UNKNOWN), settlement.why
        if settlement.error:
            failed = decode_failure(settlement.error)
            if failed.type != UNREADABLE:
                kind, message = failed.type, failed.message
        now_us = self._now_us()
        group = ErrorGroup(1, now_us, now_us, settlement.job.id, message.partition("\n")[0][:MESSAGE_LIMIT])
        add_error(self._groups.setdefault(function, {}), kind[:MESSAGE_LIMIT], group)

    def take(self) -> dict[bytes, dict[str, ErrorGroup]]:
        """Return the groups by function and type, and begin with none."""
        taken, self._groups = self._groups, {}
        return taken
