"""Who is told of what waits and was not asked for, and how often."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.zookeeper.master.workers import FIRST, LONGEST, WakeupHints, Worker
from mainspring.events.relay import Pending

if TYPE_CHECKING:
    from mainspring.events.relay import Message

WAITING = {b"f", b"g"}


class Told:
    """Nudges, and what they have said to which term."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, Message]] = []
        self.wakeup_hints = WakeupHints(lambda term, message: self.messages.append((term, message)))
        self.workers = [Worker("n1-1"), Worker("n2-2")]

    def at(self, now: float, waiting: set[bytes] = WAITING) -> list[tuple[int, Message]]:
        """Return what is told at a time."""
        self.messages.clear()
        self.wakeup_hints.tell(waiting, self.workers, now)
        return [*self.messages]


def test_all_are_told() -> None:
    # Whom a function concerns, nobody knows: a node writes which ones its workers serve with its next beat only.
    told = Told()
    assert told.at(0.0) == [(1, Pending([b"f", b"g"])), (2, Pending([b"f", b"g"]))]


def test_who_drains_is_not_told() -> None:
    told = Told()
    told.workers[0].draining = True
    assert told.at(0.0) == [(2, Pending([b"f", b"g"]))]


def test_they_are_told_again_less_and_less_often() -> None:
    told = Told()
    assert told.at(0.0)
    assert not told.at(FIRST / 2)
    assert told.wakeup_hints.times() == [FIRST, FIRST]
    times, now = [], 0.0
    while now < 20 * LONGEST:
        now = min(told.wakeup_hints.times())
        assert told.at(now)
        times.append(now)
    pauses = [later - before for before, later in itertools.pairwise(times)]
    assert pauses[0] == pytest.approx(2 * FIRST)
    assert max(pauses) == pytest.approx(pauses[-1]) == pytest.approx(LONGEST)


def test_what_waits_again_is_told_at_once() -> None:
    told = Told()
    told.at(0.0)
    assert not told.at(FIRST / 4, set())
    assert told.at(FIRST / 2) == [(1, Pending([b"f", b"g"])), (2, Pending([b"f", b"g"]))]
