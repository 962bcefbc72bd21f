"""The states of a pacer, which says many things regularly and at an even pace: a model without I/O and without a clock.

An item has a key, an action and a period: the action is due for the key once in each period, its *cycle*. Items with the same
action and period share a *round*, which has two queues. Those that are still due in this cycle are in its main deque, and those
that are done in its backup queue. One after the other leaves the front of the main deque, such that the last one leaves before
the cycle ends. At its end, the whole backup queue moves to the main deque.

| an item | when | goes |
|---|---|---|
| is added | | into the backup queue: its first turn is in the next cycle, about a period later |
| leaves the front of the main deque | its turn comes | out: its action runs |
| is out | its action is done | into the backup queue |
| is out | its action is throttled | back to the front; before the pause is over, nothing with this action has a turn |
| is out | its action fails | to the end of the main deque; after `FAILURES` in one cycle into the backup queue |
| is out | what it is about is gone: missing or cancelled | away |
| is in the backup queue | the cycle ends | to the end of the main deque, in its order |
| is anywhere | it is dropped | away; an answer that comes later changes nothing |

*Items that were late at the end of a cycle* stay at the front of the main deque. They leave at `CATCH_UP` times the even pace
and not at once: a stall of the process must not end in a burst.

*Capacity.* All rounds together have at most ``pace`` turns in a second: a cycle has room for its seconds times ``pace``. An item
that does not fit is refused when it is added. Otherwise all would be late, and some of them lost.

Times are monotonic seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

FAILURES: Final = 3
"""Failures of an item in one cycle; after them it waits for the next one."""
CATCH_UP: Final = 4
"""How many times faster than evenly late items leave."""
GRAIN: Final = 0.05
"""Seconds: turns that come within them have one `Pacer.take`."""
WARN_AT: Final = 0.8
"""The share of the capacity from which on the pacer is nearly full."""
ROOM_AT: Final = 0.9
"""The share at which a full pacer has room again: its owner gets no notice of each item that comes or goes."""

_ROUNDING: Final = 1e-9
"""The share by which sums of floats may be wrong."""

A = TypeVar("A", bound="Hashable")
K = TypeVar("K", bound="Hashable")


class Figures(NamedTuple):
    """The figures of a pacer."""

    items: int
    capacity: int
    """The items for which there is room if their periods are as those of now on average."""
    pace: float
    """Turns in a second, at most."""
    load: float
    """Turns in a second that the items need."""
    lag: float
    """Seconds by which the turn with the longest delay was late, since the figures were read before."""
    refused: int
    """Items that did not fit, since the start; the next two likewise."""
    throttled: int
    failed: int
    full: bool
    """Whether the next item may not fit."""


class _Round(Generic[A, K]):
    __slots__ = ("action", "backup", "ends", "late", "main", "next", "out", "period")

    def __init__(self, action: A, period: float, now: float) -> None:
        self.action = action
        self.period = period
        self.main: OrderedDict[K, None] = OrderedDict()
        self.backup: OrderedDict[K, None] = OrderedDict()
        self.out = 0
        self.late: dict[K, None] = {}
        """The items that have not had the turn of an earlier cycle."""
        self.ends = now + period
        self.next = now
        """The time of the next turn, while the main deque has items."""

    def is_empty(self) -> bool:
        return not (self.main or self.backup or self.out)

    def turn_over(self, now: float) -> None:
        """Begin another cycle if the present one has ended."""
        if now < self.ends:
            return
        begun = self.ends
        self.ends = begun + self.period if begun + self.period > now else now + self.period
        if not self.main:
            self.next = begun
        self.late = dict.fromkeys(self.main)
        self.main.update(self.backup)
        self.backup.clear()

    def gap(self) -> float:
        """Return the seconds between the turn of the item at the front and the next one."""
        even = max(self.ends - self.next, 0.0) / len(self.main)
        return even / CATCH_UP if self.late else even


class _Item(Generic[A, K]):
    __slots__ = ("failures", "is_out", "round")

    def __init__(self, of: _Round[A, K]) -> None:
        self.round = of
        self.is_out = False
        self.failures = 0


class Pacer(Generic[A, K]):
    """The items of one process. ``pace``: turns in a second, at most."""

    def __init__(self, pace: float) -> None:
        self.pace = pace
        self._items: dict[K, _Item[A, K]] = {}
        self._rounds: dict[tuple[A, float], _Round[A, K]] = {}
        self._paused: dict[A, float] = {}
        """Throttled actions, each with the end of its pause."""
        self._members: dict[float, int] = {}
        """How many items there are of each period."""
        self._free_at = 0.0
        """The time from which on the pace permits another turn."""
        self._expected = 0.0
        self._is_full = False
        self._lag = 0.0
        self._refused = self._throttled = self._failed = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: K) -> bool:
        return key in self._items

    # ---- items ----

    @property
    def load(self) -> float:
        """The turns in a second that the items need."""
        return sum(number / period for period, number in self._members.items())

    def expect(self, period: float) -> None:
        """Be full as soon as an item of this period, or a longer one, would not fit. One that never fits is not expected."""
        if 1 / period <= self.pace:
            self._expected = max(self._expected, 1 / period)

    def add(self, key: K, action: A, period: float, now: float, *, always: bool = False) -> bool:
        """Add an item; return False if it does not fit. ``always``: add it even so. It must not be there yet."""
        if key in self._items:
            raise ValueError(f"{key!r} was added before")
        if not always and not self._has_room(1 / period):
            self._refused += 1
            self.expect(period)
            return False
        of = self._rounds.get((action, period))
        if of is None:
            of = self._rounds[action, period] = _Round(action, period, now)
        of.turn_over(now)
        self._items[key] = _Item(of)
        of.backup[key] = None
        self._members[period] = self._members.get(period, 0) + 1
        return True

    def drop(self, key: K) -> bool:
        """Forget an item; return whether there was one."""
        item = self._items.pop(key, None)
        if item is None:
            return False
        of = item.round
        if item.is_out:
            of.out -= 1
        else:
            del (of.main if key in of.main else of.backup)[key]
        of.late.pop(key, None)
        self._members[of.period] -= 1
        if not self._members[of.period]:
            del self._members[of.period]
        if of.is_empty():
            del self._rounds[of.action, of.period]
            if all(action != of.action for action, _ in self._rounds):
                self._paused.pop(of.action, None)
        return True

    # ---- turns ----

    def take(self, now: float) -> dict[A, list[K]]:
        """Take the items whose turn has come, by their actions. They are out until an answer comes for each of them."""
        taken: dict[A, list[K]] = {}
        for one in self._rounds.values():
            one.turn_over(now)
        while now >= self._free_at and (of := self._due(now)) is not None:
            self._lag = max(self._lag, now - of.next)
            self._free_at = max(self._free_at, now - GRAIN) + 1 / self.pace
            of.next = max(of.next, now - GRAIN)
            of.next += of.gap()
            key, _ = of.main.popitem(last=False)
            of.late.pop(key, None)
            of.out += 1
            self._items[key].is_out = True
            taken.setdefault(of.action, []).append(key)
        return taken

    def _due(self, now: float) -> _Round[A, K] | None:
        """Return the round with the longest overdue turn."""
        due = None
        for of in self._rounds.values():
            if of.main and of.next <= now and self._paused.get(of.action, now) <= now:
                due = of if due is None or of.next < due.next else due
        return due

    def next(self, now: float) -> float | None:
        """Return when `take` should be called next; None: not before another item is added."""
        times = []
        for of in self._rounds.values():
            if not of.main:
                times.append(of.ends)
            else:
                times.append(max(of.next, self._free_at, self._paused.get(of.action, 0.0)))
        return max(min(times), now) if times else None

    # ---- answers ----

    def done(self, key: K) -> None:
        """Note that an item was done; its next turn is in the next cycle."""
        item = self._answered(key)
        if item is not None:
            item.failures = 0
            item.round.backup[key] = None

    def throttled(self, key: K, pause: float, now: float) -> None:
        """Note that an item was throttled: nothing with its action has a turn for ``pause`` seconds.

        Of several items report the last one first, so that they keep their order.
        """
        item = self._answered(key)
        if item is None:
            return
        self._throttled += 1
        of = item.round
        self._paused[of.action] = max(self._paused.get(of.action, 0.0), now + pause)
        of.main[key] = None
        of.main.move_to_end(key, last=False)
        of.next = min(of.next, now + pause)

    def failed(self, key: K, now: float) -> None:
        """Note that an item has failed for an unknown reason."""
        item = self._answered(key)
        if item is None:
            return
        self._failed += 1
        of = item.round
        item.failures += 1
        if item.failures < FAILURES:
            if not of.main:  # all of its turns must have a place in this cycle
                of.next = min(of.next, now + max(of.ends - now, 0.0) / 2)
            of.main[key] = None
        else:
            item.failures = 0
            of.backup[key] = None

    def gone(self, key: K) -> bool:
        """Note that what an item is about is missing or cancelled; return whether its owner must end its activity."""
        return self.drop(key)

    def _answered(self, key: K) -> _Item[A, K] | None:
        """Return an item that is out; None if it was dropped meanwhile, or answered."""
        item = self._items.get(key)
        if item is None or not item.is_out:
            return None
        item.is_out = False
        item.round.out -= 1
        return item

    # ---- figures ----

    @property
    def nearly_full(self) -> bool:
        """Whether the items need most of the capacity."""
        return self.load >= WARN_AT * self.pace

    def room(self, period: float) -> int:
        """Return how many more items of a period fit."""
        return max(int((self.pace - self.load) * period * (1 + _ROUNDING)), 0)

    def check_full(self) -> bool:
        """Return whether an item with the shortest expected period does not fit, or did not until there was more room again."""
        if not self._has_room(self._expected):
            self._is_full = True
        elif self.load + self._expected <= ROOM_AT * self.pace or not self._members:
            self._is_full = False
        return self._is_full

    def _has_room(self, turns: float) -> bool:
        """Return whether so many more turns in a second fit."""
        return self.load + turns <= self.pace * (1 + _ROUNDING)

    def figures(self) -> Figures:
        """Return the figures; the lag begins again."""
        lag, self._lag = self._lag, 0.0
        items, load = len(self._items), self.load
        cycle = items / load if load else 1.0
        return Figures(
            items,
            round(self.pace * cycle),
            self.pace,
            load,
            lag,
            self._refused,
            self._throttled,
            self._failed,
            full=self.check_full(),
        )
