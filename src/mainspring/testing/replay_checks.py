"""Replays of the runs in a test: often enough to find a difference early, and in the end of each whole history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.worker.workflows.replay_checks import CHECKED_EVENTS, ReplayChecks

if TYPE_CHECKING:
    from mainspring.worker.workflows.runs import Run

EACH_UP_TO: Final = 100
"""Events of a history up to which the run is replayed for each decision; above, whenever the history has doubled."""


class GrowingChecks(ReplayChecks):
    """Chooses decisions of cached runs so that the time for replays stays proportional to the events."""

    def __init__(self) -> None:
        super().__init__(each=True)
        self._checked: dict[int, int] = {}
        """The events of the last check, by run."""

    def choose(self, run: Run, last: int) -> bool:
        """Return whether to replay a cached run with ``last`` events for the decision that was assigned."""
        if not self._is_due(run, last) or not super().choose(run, last):
            return False
        self._checked[run.id] = last
        return True

    def prevent_fusing(self, run: Run) -> bool:
        """Return whether to check the decision that follows ended activities."""
        return self._is_due(run, run.instance.position) and super().prevent_fusing(run)

    def _is_due(self, run: Run, last: int) -> bool:
        return last <= EACH_UP_TO or 2 * self._checked.get(run.id, EACH_UP_TO) <= last <= CHECKED_EVENTS
