"""Checks of the code of cached runs: some of their decisions are made by a replay of the whole history.

The code of a cached run goes on from decision to decision, so a difference between the code and the history would stay unseen
until another worker replays the run. A check evicts the code from memory, and replays it from the first event on. If its
commands are not those of the history, the run is parked as after any other replay.
"""

from __future__ import annotations

from random import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.worker.workflows.runs import Run

CHECKED_EVENTS: Final = 1_000
"""Events of a history above which its replay takes too long for a check."""
ONE_IN: Final = 1_000
"""One of so many decisions of cached runs is checked."""


class ReplayChecks:
    """Chooses the decisions to check: one in ``ONE_IN`` by ``chance``, or each one."""

    def __init__(self, *, each: bool, chance: Callable[[], float] = random) -> None:
        self._each = each
        self._chance = chance

    def choose(self, run: Run, last: int) -> bool:
        """Return whether to replay a cached run with ``last`` events for the decision that was assigned."""
        if not run.instance.position or last > CHECKED_EVENTS or not run.quiet:
            return False
        chosen = run.check or self._draw()
        run.check = False
        return chosen

    def prevent_fusing(self, run: Run) -> bool:
        """Return whether to check the decision that follows ended activities.

        It must be assigned then, and not be fused with their ends: the worker reads the history first.
        """
        run.check = run.instance.position <= CHECKED_EVENTS and self._draw()
        return run.check

    def _draw(self) -> bool:
        return self._each or self._chance() < 1 / ONE_IN
