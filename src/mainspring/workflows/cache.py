"""The runs that a node keeps in memory, so that they need not be read for each change.

A transaction takes the runs that it changes out of the cache, and puts them back after its commit. So nothing in the cache is
ahead of the store, and a transaction that fails costs the cache its runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.workflows.history import Event
    from mainspring.workflows.state import State
    from mainspring.workflows.store import RunRow

CACHE_BYTES: Final = 16 * 2**20
"""The default size."""

# Measured on CPython 3.11, for runs that were read from the store.
RUN_BYTES: Final = 2_000
ACTIVITY_BYTES: Final = 300
TIMER_BYTES: Final = 200
CHILD_BYTES: Final = 300
EVENT_BYTES: Final = 90
"""Of an event, besides its size in the store."""


class Tail(NamedTuple):
    """The last events of a run."""

    first: int
    """The number of the first one."""
    events: Sequence[Event]


class Run:
    """A run in memory: the row, the state, and the events after the ones that its decider was given last."""

    __slots__ = ("row", "snapshot_bytes", "snapshotted", "state", "tail", "tail_bytes", "task")

    def __init__(self, row: RunRow, state: State) -> None:
        self.row = row
        self.state = state
        self.tail: list[Event] = []
        """Events in order, up to the last one."""
        self.tail_bytes = 0
        self.task = state.scheduled
        """The event of the decision task that has the job ``row.decision``."""
        self.snapshotted = 0
        """Bytes of the history up to the last snapshot."""
        self.snapshot_bytes = 0
        """The size of the last snapshot, written or not."""

    def append(self, events: Sequence[Event], size: int) -> None:
        """Add events that are ``size`` bytes long in the store."""
        self.tail += events
        self.tail_bytes += size

    def trim(self) -> None:
        """Drop the events that a completed decision was given."""
        seen = self.state.seen
        if self.tail and self.tail[0].id <= seen:
            before = len(self.tail)
            self.tail = [event for event in self.tail if event.id > seen]
            self.tail_bytes = self.tail_bytes * len(self.tail) // before

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        state = self.state
        return (
            RUN_BYTES
            + ACTIVITY_BYTES * len(state.activities)
            + TIMER_BYTES * len(state.timers)
            + CHILD_BYTES * len(state.children)
            + EVENT_BYTES * len(self.tail)
            + self.tail_bytes
        )


class RunCache:
    """Open runs as they are committed, up to a number of bytes; the runs that were not changed for the longest time go first."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._runs: dict[int, tuple[Run, int]] = {}
        self.size = 0
        """About how many bytes the runs take."""

    def __len__(self) -> int:
        return len(self._runs)

    def take(self, run: int) -> Run | None:
        """Return a run and remove it; None if it is not there."""
        found = self._runs.pop(run, None)
        if found is None:
            return None
        self.size -= found[1]
        return found[0]

    def put(self, runs: Iterable[Run]) -> None:
        """Add committed runs; closed ones are not kept."""
        for run in runs:
            self.take(run.row.id)
            if run.row.status.open:
                run.trim()
                size = run.size
                self._runs[run.row.id] = (run, size)
                self.size += size
        while self.size > self._limit and self._runs:
            self.take(next(iter(self._runs)))

    def tail(self, run: int) -> Tail | None:
        """Return the events of a run after those that its last completed decision was given; None if they are not in memory.

        There may be none.
        """
        found = self._runs.get(run)
        if found is None:
            return None
        events = found[0].tail
        return Tail(found[0].row.events - len(events) + 1, events)

    def failed_builds(self, run: int) -> tuple[str, ...]:
        """Return the builds that could not make a decision of a run; none if it is not in memory."""
        found = self._runs.get(run)
        return () if found is None else found[0].row.parking.builds

    def root_of(self, run: int) -> int:
        """Return the root job of a run; the run if it is not in memory: the first run of a chain has the number of its root."""
        found = self._runs.get(run)
        return run if found is None else found[0].row.root

    def type_of(self, run: int) -> str | None:
        """Return the workflow of a run; None if it is not in memory."""
        found = self._runs.get(run)
        return None if found is None else found[0].row.type

    def peek(self, run: int) -> Run | None:
        """Return a run, which the caller must not change; None if it is not there."""
        found = self._runs.get(run)
        return None if found is None else found[0]
