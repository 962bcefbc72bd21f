"""The alarms of runs: their timers and timeouts are recorded at their times.

The agenda (``storage.agenda``) fetches the runs that have an alarm soon. A node that writes an earlier alarm adds it by itself.
An alarm that rings too early, or twice, changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.clock import to_us
from mainspring.storage.agenda import Agenda
from mainspring.workflows.store import FindAlarms, RingAlarms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.storage.agenda import FetchTimes, Timers
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.workflows.store import Alarms as Upcoming

BATCH: Final = 1000
"""Runs whose alarms one operation rings: the first decisions start before the last alarms are recorded."""
AT_ONCE: Final = 10_000
"""Due runs that one fetch finds."""


class Alarms:
    """Rings the alarms of runs, on a node that calls ``tick`` at least every quarter of a second.

    ``first`` returns whether this node is first in line for a run, named by its id; ``paused`` whether nothing may be written.
    ``waits`` returns whether a run is set aside and not tried again yet, ``aside`` returns how many runs are.
    """

    def __init__(
        self,
        commits: CommitQueue,
        clock: Clock,
        timers: Timers,
        *,
        first: Callable[[str], bool],
        paused: Callable[[], bool],
        fetching: FetchTimes,
        waits: Callable[[int], bool] = lambda _: False,
        aside: Callable[[], int] = lambda: 0,
    ) -> None:
        self._waits = waits
        self._aside = aside
        self._ahead_us = to_us(fetching.ahead)
        self._commits = commits
        self._clock = clock
        self._agenda: Agenda[int] = Agenda(
            clock,
            timers,
            self._find,
            self._ring,
            str,
            first=first,
            paused=paused,
            fetching=fetching,
        )
        self._open: RingAlarms | None = None
        self._added: dict[int, int] = {}
        """The times of alarms that this node has added, by run: most commits leave a run's alarm as it is."""
        self._horizon_us = 0
        """The time up to which ``_added`` counts."""
        self._ringing: set[int] = set()
        """Runs whose alarms are being rung: the outcome has their next ones."""

    @property
    def lateness(self) -> float:
        """The seconds by which the last alarm that this node rang was late."""
        return self._agenda.lateness

    def fetch(self) -> None:
        """Fetch the alarms of the next seconds."""
        self._agenda.fetch()

    def tick(self) -> None:
        """Fetch and ring, as due."""
        self._agenda.tick()

    def written(self, alarms: Iterable[tuple[int, int]]) -> None:
        """Add the alarms of runs, by their ids, that this node has just written; 0 is none."""
        ringing = self._ringing
        now_us = to_us(self._clock.wall())
        if not self._horizon_us - self._ahead_us <= now_us <= self._horizon_us:  # earlier: the clock was stepped back
            self._added.clear()
            self._horizon_us = now_us + self._ahead_us
        added = self._added
        new = []
        for run, due_us in alarms:
            if due_us and run not in ringing and added.get(run) != due_us:
                added[run] = due_us
                new.append((run, due_us))
        if new:
            self._agenda.add(new)

    def _find(self, until_us: int, found: Callable[[Upcoming], None], failed: Callable[[StoreError], None]) -> None:
        # Runs that are set aside stay due: they must not fill the answer.
        self._commits.put(FindAlarms(until_us, AT_ONCE + self._aside()), found, failed)

    def _ring(self, due: Iterable[int]) -> None:
        for run in due:
            if self._waits(run):
                self._agenda.done([str(run)])
                continue
            operation = self._open
            if operation is None or not operation.open or len(operation.runs) >= BATCH:
                operation = self._open = self._operation()
            operation.runs.append(run)
            self._ringing.add(run)
            operation.rows += 1
            operation.now_us = to_us(self._clock.wall())

    def _operation(self) -> RingAlarms:
        runs: list[int] = []
        operation = RingAlarms(runs, 0)
        self._commits.put(operation, lambda outcome: self._rung(runs, outcome), lambda _: self._not_rung(runs))
        return operation

    def _rung(self, runs: Sequence[int], outcome: dict[int, int]) -> None:
        for run in runs:
            self._added.pop(run, None)
        self._end(runs)
        self.written(outcome.items())

    def _not_rung(self, runs: Sequence[int]) -> None:
        self._end(runs)
        self._agenda.fetch_later()

    def _end(self, runs: Sequence[int]) -> None:
        self._ringing.difference_update(runs)
        self._agenda.done(map(str, runs))
