"""Calls that come once everything is on disk that was reported before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs.store import Find

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.ends import Ends
    from mainspring.jobs.footing import Footing

AGAIN: Final = 0.25
"""Seconds after which is looked again where settlements wait for the store."""


class Barriers:
    """Waits for the commit queue, and for settlements that the store could not take yet."""

    def __init__(self, footing: Footing, ends: Ends) -> None:
        self._commits, self._timers, self._clock = footing.commits, footing.timers, footing.clock
        self._ends = ends

    def is_settled(self) -> bool:
        """Say whether all is on disk."""
        return self._commits.idle and not self._ends.waits

    def when_stored(self, then: Callable[[], None]) -> None:
        """Call a function once the store has taken, or refused, what was put before."""
        self._commits.put(Find([]), lambda _: then(), lambda _: then())

    def when_settled(self, then: Callable[[], None]) -> None:
        """Call a function once everything that was reported before is on disk, settlements that are tried again included."""
        late = self._ends.late

        def stored() -> None:
            if self._ends.waits:
                self._timers.at(self._clock.monotonic() + AGAIN, lambda: self.when_settled(then))
            elif self._ends.late != late:
                self.when_settled(then)  # what came before the first barrier may have been overtaken by it
            else:
                then()

        self.when_stored(stored)
