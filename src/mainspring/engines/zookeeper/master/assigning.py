"""Which pending task goes to whom: the claims of all nodes, in turns, within what each of them may take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper.master.index import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.engines.zookeeper.master.index import Index, Task

MOST: Final = 2000
"""Tasks that are assigned in one go: others wait for the answer."""
LOOK: Final = 1000
"""Tasks that nobody may take, of each function and priority, after which those of the wanted slots are looked for directly."""
QUEUE: Final = 20_000
"""Tasks that one worker may have: the names of its queue have to fit into one answer."""


class Taker:
    """A worker, as far as it takes tasks."""

    __slots__ = ("draining", "room", "under_way", "who")

    def __init__(self, who: str, room: int = QUEUE) -> None:
        self.who = who
        self.room = room
        """How many more tasks its queue may have."""
        self.under_way = 0
        """How many are being written into it."""
        self.draining = False

    @property
    def takes(self) -> bool:
        """Whether it may be given anything."""
        return self.room > 0 and not self.draining


class OpenWant:
    """What a worker would take of a function, until it says otherwise."""

    __slots__ = ("function", "left", "overdue_us", "slots", "taker")

    def __init__(
        self, taker: Taker, function: bytes, limit: int, slots: frozenset[int] | None = None, overdue_us: int = 0
    ) -> None:
        self.taker = taker
        self.function = function
        self.left = limit
        self.slots = slots
        """Only tasks of these hash slots; None is all of them."""
        self.overdue_us = overdue_us
        """Tasks that were created or due before this time are taken whatever their slot."""

    @property
    def is_open(self) -> bool:
        """Whether one more task may be given on it."""
        return self.left > 0 and self.taker.takes

    def fits(self, task: Task) -> bool:
        """Say whether a task may be given on it, if it is open."""
        return self.slots is None or task.slot in self.slots or task.since_us < self.overdue_us


def assign(index: Index, wants: Iterable[OpenWant], most: int = MOST) -> list[tuple[OpenWant, Task]]:
    """Take tasks out of the index for open wants, by priority and age, and say which goes to whom.

    Nodes that want the same get the same number, as long as each wants more.
    """
    given: list[tuple[OpenWant, Task]] = []
    by_function: dict[bytes, list[OpenWant]] = {}
    for want in wants:
        if want.is_open and index.waiting(want.function):
            by_function.setdefault(want.function, []).append(want)
    for function, some in by_function.items():
        turn = _Turn(index, some, given, most)
        for priority in range(PRIORITIES):
            turn.give_oldest(function, priority)
            turn.give_by_slots(function, priority)
    return given


class _Turn:
    """The tasks of one function, and those who want them."""

    def __init__(self, index: Index, wants: list[OpenWant], given: list[tuple[OpenWant, Task]], most: int) -> None:
        self._index = index
        self._wants = wants
        self._given = given
        self._most = most
        self._shares = {want.taker: 0 for want in wants}

    def give_oldest(self, function: bytes, priority: int) -> None:
        """Give the oldest tasks, until too many were met that nobody may take."""
        passed = 0
        for task in self._index.walk(function, priority):
            if not self._goes_on() or passed > LOOK:
                break
            able = [want for want in self._wants if want.is_open and want.fits(task)]
            if able:
                self._give(min(able, key=self._rank), task)
            else:
                passed += 1

    def give_by_slots(self, function: bytes, priority: int) -> None:
        """Give tasks that are behind many of others' slots, in turns."""
        turns = [
            (want, self._index.walk(function, priority, want.slots))
            for want in self._wants
            if want.is_open and want.slots
        ]
        while turns and self._goes_on():
            following = []
            for want, tasks in sorted(turns, key=lambda turn: self._rank(turn[0])):
                task = next(tasks, None) if want.is_open and self._goes_on() else None
                if task is not None:
                    self._give(want, task)
                    following.append((want, tasks))
            turns = following

    def _goes_on(self) -> bool:
        return len(self._given) < self._most and any(want.is_open for want in self._wants)

    def _rank(self, want: OpenWant) -> tuple[int, str]:
        return self._shares[want.taker], want.taker.who

    def _give(self, want: OpenWant, task: Task) -> None:
        self._index.take(task)
        self._shares[want.taker] += 1
        want.left -= 1
        want.taker.room -= 1
        want.taker.under_way += 1
        self._given.append((want, task))
