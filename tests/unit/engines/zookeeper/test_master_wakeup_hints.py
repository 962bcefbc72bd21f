"""Hints about pending tasks that no node has requested: who gets them, and how often."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.zookeeper.master.workers import FIRST, LONGEST, WakeupHints, Worker
from mainspring.events.relay import Pending

if TYPE_CHECKING:
    from mainspring.events.relay import Message

WAITING = {b"f", b"g"}


class Sent:
    """Hints, and which term got which."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, Message]] = []
        self.wakeup_hints = WakeupHints(lambda term, message: self.messages.append((term, message)))
        self.workers = [Worker("n1-1"), Worker("n2-2")]

    def at(self, now: float, waiting: set[bytes] = WAITING) -> list[tuple[int, Message]]:
        """Return the hints that are sent at a time."""
        self.messages.clear()
        self.wakeup_hints.tell(waiting, self.workers, now)
        return [*self.messages]


def test_all_nodes_get_hints() -> None:
    # Whom a function concerns, nobody knows: a node writes which ones its workers serve with its next beat only.
    sent = Sent()
    assert sent.at(0.0) == [(1, Pending([b"f", b"g"])), (2, Pending([b"f", b"g"]))]


def test_a_draining_node_gets_no_hint() -> None:
    sent = Sent()
    sent.workers[0].draining = True
    assert sent.at(0.0) == [(2, Pending([b"f", b"g"]))]


def test_hints_are_repeated_at_growing_intervals() -> None:
    sent = Sent()
    assert sent.at(0.0)
    assert not sent.at(FIRST / 2)
    assert sent.wakeup_hints.times() == [FIRST, FIRST]
    times, now = [], 0.0
    while now < 20 * LONGEST:
        now = min(sent.wakeup_hints.times())
        assert sent.at(now)
        times.append(now)
    pauses = [later - before for before, later in itertools.pairwise(times)]
    assert pauses[0] == pytest.approx(2 * FIRST)
    assert max(pauses) == pytest.approx(pauses[-1]) == pytest.approx(LONGEST)


def test_a_function_with_new_tasks_is_hinted_at_once() -> None:
    sent = Sent()
    sent.at(0.0)
    assert not sent.at(FIRST / 4, set())
    assert sent.at(FIRST / 2) == [(1, Pending([b"f", b"g"])), (2, Pending([b"f", b"g"]))]
