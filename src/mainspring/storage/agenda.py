"""When a node does its background work: due items at their times, and long work, such as an operation on many jobs, step by step.

The agenda fetches due items ahead from the store, so that each is handled at its time and not at the next fetch.

On a store that several nodes share, each node has all due items in its agenda. The node that is first in line handles an item.
The others check `TAKEOVER_DELAY` later whether it was handled, and handle it if it was not. Handling an item twice must therefore
change nothing. A node that is late with its own items waits as much longer: the others are probably as late, and to handle their
items, too, would make all of them later.

The pace of long work is the size of its next step, and the pause before it. A step is part of a group, and every operation
of the group waits for it. So a step extends its group by less than a short commit takes. While the node has other work,
steps are rare, so that few groups have one; the work may then use only a part of the node, but has a rate that it should
keep. A node without other work belongs to it.
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
IDLE_FACTOR = 2
"""How many times longer the interval is after a fetch that has found nothing: it stays shorter than `FETCH_AHEAD`."""
TAKEOVER_DELAY = 0.4
"""Seconds after an item's time at which a node that is not first in line handles it."""
RETRY_DELAY = 0.25
"""Seconds between a failed fetch and the next one."""
PAUSE = 0.005
"""The shortest time in seconds between two turns with due items: with thousands a second, each turn has several."""
LAST_PART = 0.25
"""The part of the items of a fetch that is left at the next one, if there were more than one fetch finds."""


TAKEOVER_US: Final = to_us(TAKEOVER_DELAY)


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
        self._under_way: dict[str, int] = {}
        """The times of the items that are being handled, by their names; the earliest are mostly first."""
        self._next_try = _Alarm(timers, self._try)
        self._next_fetch = _Alarm(timers, self.fetch)
        self._is_fetching = self._is_stale = False
        self._fetched_at = clock.monotonic()
        self._interval = fetching.interval
        self.lateness = 0.0
        """Seconds by which the last item that this node handled was late."""

    def _now_us(self) -> int:
        return to_us(self._clock.wall())

    def tick(self) -> None:
        """Fetch if the interval has passed, and handle due items."""
        if self._clock.monotonic() - self._fetched_at >= self._interval:
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

    @property
    def is_empty(self) -> bool:
        """Whether it has no items, and handles none."""
        return not self._queue and not self._under_way

    def skip(self, first_us: int) -> None:
        """Do without the next fetch, which would find nothing: the first item in the store is due then; 0: there is none."""
        until_us = self._now_us() + to_us(self._fetching.ahead)
        if self._is_fetching or not self.is_empty or self._paused() or 0 < first_us <= until_us:
            return
        self._fetched_at = self._clock.monotonic()
        self._interval = self._fetching.interval * IDLE_FACTOR

    def fetch_later(self) -> None:
        """Fetch after `RETRY_DELAY`, because the store could not answer."""
        self._timers.at(self._clock.monotonic() + RETRY_DELAY, self.fetch)

    def _found(self, upcoming: Upcoming[T]) -> None:
        self._is_fetching = False
        if self._paused():
            return
        self._queue.clear()
        self._interval = self._fetching.interval * (1 if upcoming.due else IDLE_FACTOR)
        now_us = self._now_us()
        late_us = now_us - self._takeover_us(now_us)
        for item, at_us in upcoming.due:
            self._enqueue(item, at_us, first=at_us <= late_us or self._first(self._name(item)))
        if upcoming.next_us is not None:
            fetch_us = upcoming.next_us - to_us(self._fetching.ahead)
            if upcoming.due:  # one fetch may not find all of the next seconds
                last_us = upcoming.due[-1][1]
                fetch_us = max(fetch_us, last_us - int((last_us - now_us) * LAST_PART))
            self._fetch_at(fetch_us)
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
        for name in names:
            self._under_way.pop(name, None)

    def add(self, items: Iterable[tuple[T, int]]) -> None:
        """Add items with their next times, and handle those that are due now.

        Other nodes may not fetch the earliest ones before their times. This node handles them as if it were first in line.
        """
        now_us = self._now_us()
        horizon_us = now_us + to_us(self._fetching.ahead)
        unseen_us = now_us + to_us(self._fetching.interval * IDLE_FACTOR)
        for item, at_us in items:
            if at_us <= horizon_us:
                self._enqueue(item, at_us, first=at_us < unseen_us or self._first(self._name(item)))
            else:
                self._fetch_at(at_us - to_us(self._fetching.ahead))
        self._try()

    def _enqueue(self, item: T, at_us: int, *, first: bool) -> None:
        if self._name(item) not in self._under_way:
            self._number += 1
            try_us = at_us if first else at_us + TAKEOVER_US
            heapq.heappush(self._queue, _Entry(try_us, at_us, self._number, item, first))

    def _try(self) -> None:
        """Handle the due items for which this node is first in line, and check whether the others were handled."""
        if self._paused():
            return
        now_us = self._now_us()
        mine: list[tuple[T, int]] = []
        has_others = False
        while self._queue and self._queue[0].try_us <= now_us:
            entry = heapq.heappop(self._queue)
            if not entry.first:
                has_others = True
            elif self._name(entry.item) not in self._under_way:
                self.lateness = from_us(now_us - entry.at_us)
                mine.append((entry.item, entry.at_us))
        if mine:
            self._begin(mine)
        if has_others:
            self._find(now_us - self._takeover_us(now_us), self._take_over, lambda _: None)
        if self._queue:
            try_us = self._queue[0].try_us
            # One microsecond later: both clocks are floats, and the item has to be due when the timer fires.
            wait = max(from_us(try_us + 1) - self._clock.wall(), PAUSE if mine or has_others else 0.0)
            self._next_try.set(self._clock.monotonic() + wait)

    def _take_over(self, upcoming: Upcoming[T]) -> None:
        """Handle late items, which the node that is first in line has not handled."""
        self._begin(upcoming.due)

    def _takeover_us(self, now_us: int) -> int:
        """Return the microseconds after which an item of another node is handled here."""
        earliest_us = next(iter(self._under_way.values()), now_us)
        return TAKEOVER_US + max(now_us - earliest_us, 0)

    def _begin(self, items: Iterable[tuple[T, int]]) -> None:
        if self._paused():
            return
        due: list[T] = []
        for item, at_us in items:
            name = self._name(item)
            if name not in self._under_way:  # an item may have been fetched twice
                self._under_way[name] = at_us
                due.append(item)
        if due:
            self._act(due)


SHORTEST: Final = 0.0003
LONGEST: Final = 0.008
"""Seconds by which a step beside other work may extend its group."""
SHARE: Final = 0.25
"""The share of the rest of the group's time that a step may take, between these limits: on a slow disk, steps are larger."""
WEIGHT: Final = 0.2
"""The weight of the last step in the average of the groups' times."""
OUTLIER: Final = 4
"""The multiple of the average time for one item from which a step counts as held up by other programs of the machine."""
PAUSES: Final = 10
"""The pause after a step beside other work, as a multiple of the time by which it has extended its group."""


class Steps(NamedTuple):
    """The limits of one kind of work. Sizes are numbers of its items: jobs, or fire times."""

    first: int
    smallest: int
    """A step has fixed costs."""
    largest: int
    aim: int
    """Items per second for which steps are larger, and pauses beside other work shorter, but not below the length of a step."""
    shortest: float = SHORTEST
    longest: float = LONGEST
    """Seconds by which a step may extend its group."""


class Pause(NamedTuple):
    """Seconds after a step."""

    shared: float
    """Without a step of any operation on this node."""
    own: float
    """Without a step of this operation."""


class Pace:
    """Adapts the size of steps to the time that they take. ``rate`` is the most items per second."""

    def __init__(self, steps: Steps, rate: float | None = None) -> None:
        self._steps = steps
        self._rate = rate
        self._size = steps.first
        self._began = 0.0
        self._rest = 0.0
        """The average of the rest of the group's time, in seconds: that of a single one varies with the disk."""
        self._turn = 0.0
        """The average of the least time from step to step, in seconds: steps need so many items that they keep the rate."""
        self._cost = 0.0
        """The average of the seconds for one item."""
        self.groups = 0
        """The number of groups that the node had committed with the last step."""
        self._is_alone = False

    @property
    def size(self) -> int:
        """The number of items for the next step."""
        return self._size if self._rate is None else max(min(self._size, int(self._rate)), 1)

    def number(self, left: int) -> int:
        """Return the number of items for the next step, if so many were read and are left.

        Without a rate, the last step of them has at most half as many as others, because it may read the next ones.
        """
        size, half = self.size, self.size // 2
        if self._rate is None and half < left <= size + half:
            return left - half
        return min(size, left)

    def begin(self, now: float, groups: int) -> bool:
        """Process the beginning of a step; return whether the node has committed nothing else since the one before.

        ``now`` is a monotonic time, ``groups`` the number of groups that the node has committed.
        """
        self._began = now
        self._is_alone = groups == self.groups
        return self._is_alone

    def after(self, number: int, extension: float, now: float, groups: int) -> Pause:
        """Process the end of a step with a number of items, which has extended its group by some seconds; return the pause."""
        seconds, steps = now - self._began, self._steps
        self.groups = groups
        self._rest += (seconds - extension - self._rest) * WEIGHT
        target = min(max(self._rest * SHARE, steps.shortest), steps.longest)
        self._turn += (seconds + extension - self._turn) * WEIGHT
        cost = extension / max(number, 1)
        self._cost += (min(cost, self._cost * OUTLIER or cost) - self._cost) * (WEIGHT if self._cost else 1)
        for_aim = min(int(self._turn * steps.aim), int(steps.longest / self._cost) if self._cost else steps.largest)
        smallest = max(steps.smallest, min(for_aim, steps.largest))
        if extension > target:
            self._size = max(int(min(self._size, number) * max(target / extension, 0.5)), smallest)
        elif number >= self._size:
            self._size = min(self._size + max(self._size // 4, 1), steps.largest)
        shared = extension
        if not self._is_alone:
            shared = max(min(extension * PAUSES, number / steps.aim - seconds), extension)
        own = 0.0 if self._rate is None else max(number / self._rate - seconds, 0.0)
        return Pause(shared, own)
