"""What is due soon: fetched ahead from the store, so that it is done at its time and not at that of the next look.

On a store that several nodes share, each of them has what is due in its agenda. The one that is first in line does it; the others
look a moment later whether that has happened, and do it where it has not. So what is done twice must change nothing.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from mainspring.clock import from_us, to_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError

AHEAD = 5.0
"""Seconds before its time that something is fetched."""
LOOK_EVERY = 2.0
"""Seconds between looks at what others have changed."""
BACKUP = 0.4
"""Seconds that a node waits for another one to do what is that one's."""
AGAIN = 0.25
"""Seconds after which the store is asked again where it could not answer."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Timers(Protocol):
    """Calls functions at monotonic times."""

    def at(self, time: float, function: Callable[[], None]) -> Any:
        """Call a function at a time; returns what `cancel` takes."""

    def cancel(self, timer: Any) -> None:
        """Do not call it."""


class Upcoming(Protocol[T_co]):
    """What is due up to a time."""

    @property
    def due(self) -> Sequence[tuple[T_co, int]]:
        """What is due, with its time, the earliest first."""

    @property
    def next_us(self) -> int | None:
        """The first time of what was not read; None where there is nothing else."""


class _Entry(NamedTuple):
    try_us: int
    """When this node tries."""
    at_us: int
    number: int
    item: Any
    first: bool


class _Alarm:
    """One timer, at the earliest of the times that were asked for."""

    def __init__(self, timers: Timers, ring: Callable[[], None]) -> None:
        self._timers = timers
        self._ring = ring
        self._timer: Any = None
        self._time_us = 0

    def set(self, time_us: int, monotonic: float) -> None:
        """Ring at a wall time, which is this monotonic time as the clocks are now, if not before."""
        if self._timer is not None:
            if self._time_us <= time_us:
                return
            self._timers.cancel(self._timer)
        self._time_us = time_us
        self._timer = self._timers.at(monotonic, self._rings)

    def _rings(self) -> None:
        self._timer = None
        self._ring()


class Agenda(Generic[T]):
    """Has things done at their times. ``tick`` is called at least every quarter of a second.

    ``find`` asks the store for what is due up to a wall time, and calls the first of its functions with the answer, the second
    where there is none. ``act`` is called with what is to be done now; nothing of it comes again before ``done`` is called with
    its name. ``name`` tells things apart, also for ``first``, which says whether this node is first in line. ``paused``: nothing
    is fetched or done.
    """

    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        find: Callable[[int, Callable[[Upcoming[T]], None], Callable[[StoreError], None]], None],
        act: Callable[[Iterable[T]], None],
        name: Callable[[T], str],
        *,
        first: Callable[[str], bool],
        paused: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._find = find
        self._act = act
        self._name = name
        self._first = first
        self._paused = paused
        self._queue: list[_Entry] = []
        """Heap of what is to be tried."""
        self._number = 0
        self._under_way: set[str] = set()
        self._next_try = _Alarm(timers, self._try)
        self._next_look = _Alarm(timers, self.look)
        self._looking = self._stale = False
        self._looked = clock.monotonic()
        self.lateness = 0.0
        """By how many seconds the last thing that this node tried was late when it was to be done."""

    def _now_us(self) -> int:
        return to_us(self._clock.wall())

    def tick(self) -> None:
        """Do what is due now and then."""
        if self._clock.monotonic() - self._looked >= LOOK_EVERY:
            self.look()
        self._try()  # the wall clock may have been stepped

    # ---- fetching ----

    def look(self) -> None:
        """Fetch what is due in the next seconds, now or as soon as a look that is under way has ended."""
        if self._looking:
            self._stale = True
        elif not self._paused():
            self._looking = True
            self._looked = self._clock.monotonic()
            self._find(self._now_us() + to_us(AHEAD), self._found, self._not_found)

    def look_again(self) -> None:
        """Look in a moment: the store could not answer."""
        self._timers.at(self._clock.monotonic() + AGAIN, self.look)

    def _found(self, upcoming: Upcoming[T]) -> None:
        self._looking = False
        if self._paused():
            return
        self._queue.clear()
        late_us = self._now_us() - to_us(BACKUP)
        for item, at_us in upcoming.due:
            self._enqueue(item, at_us, first=at_us <= late_us or self._first(self._name(item)))
        if upcoming.next_us is not None:
            self._look_at(upcoming.next_us - to_us(AHEAD))
        if self._stale:
            self._stale = False
            self.look()
        self._try()

    def _not_found(self, error: StoreError) -> None:
        del error
        self._looking = False
        self.look_again()

    def _look_at(self, time_us: int) -> None:
        """Look at a wall time, if not before."""
        wait = max(from_us(time_us) - self._clock.wall(), AGAIN)
        self._next_look.set(time_us, self._clock.monotonic() + wait)

    # ---- doing ----

    def done(self, names: Iterable[str]) -> None:
        """Things are no longer under way, whatever has become of them."""
        self._under_way.difference_update(names)

    def add(self, items: Iterable[tuple[T, int]]) -> None:
        """Note the next times of things, and do what is due by now."""
        horizon_us = self._now_us() + to_us(AHEAD)
        for item, at_us in items:
            if at_us <= horizon_us:
                self._enqueue(item, at_us, first=self._first(self._name(item)))
            else:
                self._look_at(at_us - to_us(AHEAD))
        self._try()

    def _enqueue(self, item: T, at_us: int, *, first: bool) -> None:
        if self._name(item) not in self._under_way:
            self._number += 1
            try_us = at_us if first else at_us + to_us(BACKUP)
            heapq.heappush(self._queue, _Entry(try_us, at_us, self._number, item, first))

    def _try(self) -> None:
        """Do what this node is first in line for, and see about the rest."""
        if self._paused():
            return
        now_us = self._now_us()
        mine: list[T] = []
        others = False
        while self._queue and self._queue[0].try_us <= now_us:
            entry = heapq.heappop(self._queue)
            if not entry.first:
                others = True
            elif self._name(entry.item) not in self._under_way:
                self.lateness = from_us(now_us - entry.at_us)
                mine.append(entry.item)
        self._begin(mine)
        if others:
            self._find(now_us - to_us(BACKUP), self._left_over, lambda _: None)
        if self._queue:
            try_us = self._queue[0].try_us
            # A microsecond later: both clocks are floats, and what is due at a time has to be due then.
            wait = max(from_us(try_us + 1) - self._clock.wall(), 0.0)
            self._next_try.set(try_us, self._clock.monotonic() + wait)

    def _left_over(self, upcoming: Upcoming[T]) -> None:
        """Do what is late: whoever was first in line has not."""
        self._begin([item for item, _ in upcoming.due])

    def _begin(self, items: Iterable[T]) -> None:
        if self._paused():
            return
        due: list[T] = []
        for item in items:
            name = self._name(item)
            if name not in self._under_way:  # it may have been fetched twice
                self._under_way.add(name)
                due.append(item)
        if due:
            self._act(due)
