"""The agenda of due items: fetched ahead from the store, so that each is handled at its time and not at the next fetch.

On a store that several nodes share, each node has all due items in its agenda. The node that is first in line handles an item.
The others check `TAKEOVER_DELAY` later whether it was handled, and handle it if it was not. Handling an item twice must therefore
change nothing.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from mainspring.clock import from_us, to_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError

FETCH_AHEAD = 5.0
"""Seconds before its time at which an item is fetched."""
FETCH_INTERVAL = 2.0
"""Seconds between fetches, which find the changes of other nodes."""
TAKEOVER_DELAY = 0.4
"""Seconds after an item's time at which a node that is not first in line handles it."""
RETRY_DELAY = 0.25
"""Seconds between a failed fetch and the next one."""


class FetchTimes(NamedTuple):
    """Seconds: how long before its time an item is fetched, and the interval between fetches, which find other nodes' changes."""

    ahead: float = FETCH_AHEAD
    interval: float = FETCH_INTERVAL


FETCH_TIMES: Final = FetchTimes()

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Timers(Protocol):
    """Calls functions at monotonic times."""

    def at(self, time: float, function: Callable[[], None]) -> Any:
        """Call a function at a time. Return the timer for `cancel`."""

    def cancel(self, timer: Any) -> None:
        """Cancel a timer."""


class Upcoming(Protocol[T_co]):
    """The items that are due up to a time."""

    @property
    def due(self) -> Sequence[tuple[T_co, int]]:
        """Return the due items with their times in microseconds, the earliest first."""

    @property
    def next_us(self) -> int | None:
        """Return the first time after the ones that were read; None if there is none."""


class _Entry(NamedTuple):
    try_us: int
    """The time at which this node handles the item if nobody else has."""
    at_us: int
    number: int
    item: Any
    first: bool


class _Alarm:
    """One timer, set to the earliest of the requested times."""

    def __init__(self, timers: Timers, ring: Callable[[], None]) -> None:
        self._timers = timers
        self._ring = ring
        self._timer: Any = None
        self._time = 0.0

    def set(self, monotonic: float) -> None:
        """Ring at a monotonic time, unless the timer is set to an earlier one.

        Wall times would not do: a timer that was set while the wall clock was behind would count as early and ring late.
        """
        if self._timer is not None:
            if self._time <= monotonic:
                return
            self._timers.cancel(self._timer)
        self._time = monotonic
        self._timer = self._timers.at(monotonic, self._rings)

    def _rings(self) -> None:
        self._timer = None
        self._ring()


class Agenda(Generic[T]):
    """Calls ``act`` with items when they are due. The owner calls ``tick`` at least every quarter of a second.

    ``find`` reads the items that are due up to a wall time. It calls the first of its functions with the result, the second with
    the error. ``act`` receives the items that are due now. It does not receive an item again before ``done`` is called with the
    item's name. ``name`` returns an item's unique name. ``first`` returns whether this node is first in line for a name. While
    ``paused`` returns True, nothing is fetched or handled. ``fetching`` has the times between fetches.
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
        fetching: FetchTimes = FETCH_TIMES,
    ) -> None:
        self._fetching = fetching
        self._clock = clock
        self._timers = timers
        self._find = find
        self._act = act
        self._name = name
        self._first = first
        self._paused = paused
        self._queue: list[_Entry] = []
        """Heap of the items, by the time at which this node handles them."""
        self._number = 0
        self._under_way: set[str] = set()
        self._next_try = _Alarm(timers, self._try)
        self._next_fetch = _Alarm(timers, self.fetch)
        self._is_fetching = self._is_stale = False
        self._fetched_at = clock.monotonic()
        self.lateness = 0.0
        """Seconds by which the last item that this node handled was late."""

    def _now_us(self) -> int:
        return to_us(self._clock.wall())

    def tick(self) -> None:
        """Fetch if the interval has passed, and handle due items."""
        if self._clock.monotonic() - self._fetched_at >= self._fetching.interval:
            self.fetch()
        self._try()  # the wall clock may have been stepped

    # ---- fetching ----

    def fetch(self) -> None:
        """Fetch the items of the next seconds, now or as soon as the current fetch has ended."""
        if self._is_fetching:
            self._is_stale = True
        elif not self._paused():
            self._is_fetching = True
            self._fetched_at = self._clock.monotonic()
            self._find(self._now_us() + to_us(self._fetching.ahead), self._found, self._not_found)

    def fetch_later(self) -> None:
        """Fetch after `RETRY_DELAY`, because the store could not answer."""
        self._timers.at(self._clock.monotonic() + RETRY_DELAY, self.fetch)

    def _found(self, upcoming: Upcoming[T]) -> None:
        self._is_fetching = False
        if self._paused():
            return
        self._queue.clear()
        late_us = self._now_us() - to_us(TAKEOVER_DELAY)
        for item, at_us in upcoming.due:
            self._enqueue(item, at_us, first=at_us <= late_us or self._first(self._name(item)))
        if upcoming.next_us is not None:
            self._fetch_at(upcoming.next_us - to_us(self._fetching.ahead))
        if self._is_stale:
            self._is_stale = False
            self.fetch()
        self._try()

    def _not_found(self, error: StoreError) -> None:
        del error
        self._is_fetching = False
        self.fetch_later()

    def _fetch_at(self, time_us: int) -> None:
        """Fetch at a wall time, unless an earlier fetch is planned."""
        wait = max(from_us(time_us) - self._clock.wall(), RETRY_DELAY)
        self._next_fetch.set(self._clock.monotonic() + wait)

    # ---- handling ----

    def done(self, names: Iterable[str]) -> None:
        """Mark items as no longer in progress, whatever their outcome."""
        self._under_way.difference_update(names)

    def add(self, items: Iterable[tuple[T, int]]) -> None:
        """Add items with their next times, and handle those that are due now."""
        horizon_us = self._now_us() + to_us(self._fetching.ahead)
        for item, at_us in items:
            if at_us <= horizon_us:
                self._enqueue(item, at_us, first=self._first(self._name(item)))
            else:
                self._fetch_at(at_us - to_us(self._fetching.ahead))
        self._try()

    def _enqueue(self, item: T, at_us: int, *, first: bool) -> None:
        if self._name(item) not in self._under_way:
            self._number += 1
            try_us = at_us if first else at_us + to_us(TAKEOVER_DELAY)
            heapq.heappush(self._queue, _Entry(try_us, at_us, self._number, item, first))

    def _try(self) -> None:
        """Handle the due items for which this node is first in line, and check whether the others were handled."""
        if self._paused():
            return
        now_us = self._now_us()
        mine: list[T] = []
        has_others = False
        while self._queue and self._queue[0].try_us <= now_us:
            entry = heapq.heappop(self._queue)
            if not entry.first:
                has_others = True
            elif self._name(entry.item) not in self._under_way:
                self.lateness = from_us(now_us - entry.at_us)
                mine.append(entry.item)
        if mine:
            self._begin(mine)
        if has_others:
            self._find(now_us - to_us(TAKEOVER_DELAY), self._take_over, lambda _: None)
        if self._queue:
            try_us = self._queue[0].try_us
            # One microsecond later: both clocks are floats, and the item has to be due when the timer fires.
            wait = max(from_us(try_us + 1) - self._clock.wall(), 0.0)
            self._next_try.set(self._clock.monotonic() + wait)

    def _take_over(self, upcoming: Upcoming[T]) -> None:
        """Handle late items, which the node that is first in line has not handled."""
        self._begin([item for item, _ in upcoming.due])

    def _begin(self, items: Iterable[T]) -> None:
        if self._paused():
            return
        due: list[T] = []
        for item in items:
            name = self._name(item)
            if name not in self._under_way:  # an item may have been fetched twice
                self._under_way.add(name)
                due.append(item)
        if due:
            self._act(due)
