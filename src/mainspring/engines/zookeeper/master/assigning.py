"""Which pending task goes to whom: the claims of all nodes, in turns, within what each of them may take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper.master.index import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mainspring.engines.zookeeper.master.index import Index, Task

MOST: Final = 2000
"""Tasks that are assigned in one go: others wait for the answer."""
LOOK: Final = 1000
"""Tasks of others' slots that are looked at, of each function and priority, for those that have waited for too long."""
QUEUE: Final = 20_000
"""Tasks that one worker may have: the names of its queue have to fit into one answer."""


class Taker:
    """A worker, as far as it takes tasks."""

    __slots__ = ("draining", "given", "room", "who")

    def __init__(self, who: str, room: int = QUEUE) -> None:
        self.who = who
        self.room = room
        """How many more tasks its queue may have."""
        self.given = 0
        """How many it has been given: who has fewer comes first."""
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


def assign(index: Index, wants: Iterable[OpenWant], most: int = MOST) -> list[tuple[OpenWant, Task]]:
    """Take tasks out of the index for open wants, by priority and age, and say which goes to whom.

    Nodes that want the same take turns, one task each.
    """
    given: list[tuple[OpenWant, Task]] = []
    by_function: dict[bytes, list[OpenWant]] = {}
    for want in wants:
        if want.is_open and index.waiting(want.function):
            by_function.setdefault(want.function, []).append(want)
    for function, some in by_function.items():
        some.sort(key=lambda want: (want.taker.given, want.taker.who))
        for priority in range(PRIORITIES):
            _in_turns(index, function, priority, some, given, most)
            _overdue(index, function, priority, some, given, most)
    return given


def _give(index: Index, want: OpenWant, task: Task, given: list[tuple[OpenWant, Task]]) -> None:
    index.take(task)
    want.left -= 1
    want.taker.room -= 1
    want.taker.given += 1
    given.append((want, task))


def _in_turns(
    index: Index, function: bytes, priority: int, wants: list[OpenWant], given: list[tuple[OpenWant, Task]], most: int
) -> None:
    everything = index.walk(function, priority)
    turns: list[tuple[OpenWant, Iterator[Task]]] = [
        (want, everything if want.slots is None else index.walk(function, priority, want.slots)) for want in wants
    ]
    while turns and len(given) < most:
        following = []
        for want, tasks in turns:
            task = next(tasks, None) if want.is_open and len(given) < most else None
            if task is not None:
                _give(index, want, task, given)
                following.append((want, tasks))
        turns = following


def _overdue(
    index: Index, function: bytes, priority: int, wants: list[OpenWant], given: list[tuple[OpenWant, Task]], most: int
) -> None:
    """Give what has waited for too long to whoever would take it out of turn."""
    if not any(want.is_open and want.slots is not None and want.overdue_us for want in wants):
        return
    for looked, task in enumerate(index.walk(function, priority)):
        if looked >= LOOK or len(given) >= most:
            break
        able = [want for want in wants if want.is_open and task.since_us < want.overdue_us]
        if able:
            _give(index, min(able, key=lambda want: (want.taker.given, want.taker.who)), task, given)
