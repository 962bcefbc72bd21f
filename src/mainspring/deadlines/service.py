"""Deadlines on a node: due rows are fetched ahead of their times, and handled in groups.

The node that is first in line for a row handles it; the others look later whether it has (`storage.agenda`). One operation with
many rows at a time waits for the store, so that requests of clients come in between.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mainspring.clock import to_us
from mainspring.deadlines.store import FindDeadlines, Item, RingDeadlines
from mainspring.schedules.store import RingAbsences
from mainspring.storage.agenda import FETCH_TIMES, Agenda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.clock import Clock
    from mainspring.deadlines.store import Upcoming
    from mainspring.errors import StoreError
    from mainspring.jobs.store import Signs
    from mainspring.storage.agenda import FetchTimes, Timers
    from mainspring.storage.commit_queue import CommitQueue

BATCH: Final = 500
"""Rows of one operation: some 10 ms of a node's time."""
AT_ONCE: Final = 10_000
"""Rows that one fetch finds."""


def name_of(item: Item) -> str:
    """Return the name of an item, a number for a job: the nodes share those evenly without a hash of each."""
    return f"schedule {item.schedule}" if item.schedule else str(item.job << 2 | item.kind)


class Deadlines:
    """The deadlines slice of a node that calls ``tick`` at least every quarter of a second.

    ``first`` returns whether this node is first in line for a name; ``paused`` whether nothing may be written.
    """

    def __init__(
        self,
        commits: CommitQueue,
        clock: Clock,
        timers: Timers,
        *,
        first: Callable[[str], bool] | None = None,
        paused: Callable[[], bool],
        fetching: FetchTimes = FETCH_TIMES,
    ) -> None:
        self._commits = commits
        self._clock = clock
        self._paused = paused
        self._ahead_us = to_us(fetching.ahead)
        self._agenda: Agenda[Item] = Agenda(
            clock,
            timers,
            self._find,
            self._ring,
            name_of,
            first=first or (lambda _: True),
            paused=paused,
            fetching=fetching,
        )
        self._due: deque[Item] = deque()
        """Items that are in no operation yet."""
        self._is_ringing = False

    @property
    def lateness(self) -> float:
        """The seconds by which the last item that this node handled was late."""
        return self._agenda.lateness

    def fetch(self) -> None:
        """Fetch the rows of the next seconds."""
        self._agenda.fetch()

    def tick(self) -> None:
        """Fetch and ring, as due."""
        self._agenda.tick()

    def awaits_times(self) -> bool:
        """See `jobs.sharing.Sharing.add_reader`."""
        return self._agenda.is_empty

    def read_signs(self, signs: Signs) -> None:
        """See `jobs.sharing.Sharing.add_reader`."""
        if signs.deadline_us is not None:
            self._agenda.skip(signs.deadline_us)

    def written(self, rows: Iterable[tuple[Item, int]]) -> None:
        """Add rows that this node has just written; those that a fetch finds in time may be left out by it."""
        until_us = to_us(self._clock.wall()) + self._ahead_us
        soon = [(item, due_us) for item, due_us in rows if due_us <= until_us]
        if soon:
            self._agenda.add(soon)

    def _find(self, until_us: int, found: Callable[[Upcoming], None], failed: Callable[[StoreError], None]) -> None:
        self._commits.put(FindDeadlines(until_us, AT_ONCE), found, failed)

    def _ring(self, due: Iterable[Item]) -> None:
        self._due.extend(due)
        self._ring_next()

    def _ring_next(self) -> None:
        if self._is_ringing or not self._due:
            return
        if self._paused():
            self._agenda.done(map(name_of, self._due))
            self._due.clear()
            return
        now_us = to_us(self._clock.wall())
        items = [self._due.popleft() for _ in range(min(BATCH, len(self._due)))]
        self._is_ringing = True
        schedules = [item.schedule for item in items if item.schedule]
        jobs = [item for item in items if not item.schedule]
        if schedules:
            self._due.extendleft(jobs)
            of_schedules = [item for item in items if item.schedule]
            self._commits.put(
                RingAbsences(schedules, now_us),
                lambda _: self._rung(of_schedules, ()),
                lambda _: self._not_rung(of_schedules),
            )
        else:
            self._commits.put(
                RingDeadlines(jobs, now_us), lambda left: self._rung(jobs, left), lambda _: self._not_rung(jobs)
            )

    def _rung(self, items: Sequence[Item], left: Sequence[Item]) -> None:
        self._is_ringing = False
        self._agenda.done(map(name_of, items))
        if left:
            self._agenda.fetch_later()
        self._ring_next()

    def _not_rung(self, items: Sequence[Item]) -> None:
        self._is_ringing = False
        self._agenda.done(map(name_of, items))
        self._agenda.fetch_later()
