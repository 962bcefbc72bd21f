"""Hints for pending tasks without a request: their recipients and intervals."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.zookeeper.master_dispatching import HINT_DELAY, MAX_HINT_DELAY, WakeupHints
from mainspring.engines.zookeeper.master_index import Worker
from mainspring.events import Pending

if TYPE_CHECKING:
    from mainspring.events import Message

WAITING = {b"f", b"g"}


class SentHints:
    """Hints, and the messages that they have sent to each term."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, Message]] = []
        self.wakeup_hints = WakeupHints(lambda term, message: self.messages.append((term, message)))
        self.workers = [Worker("n1-1"), Worker("n2-2")]

    def at(self, now: float, waiting: set[bytes] = WAITING) -> list[tuple[int, Message]]:
        """Return the messages of one time."""
        self.messages.clear()
        self.wakeup_hints.send(waiting, self.workers, now)
        return [*self.messages]


def test_all_nodes_get_a_hint() -> None:
    # The rows do not show who serves a function yet: a node writes its workers' functions with its next heartbeat.
    sent = SentHints()
    assert sent.at(0.0) == [(1, Pending([b"f", b"g"])), (2, Pending([b"f", b"g"]))]


def test_a_draining_node_gets_no_hint() -> None:
    sent = SentHints()
    sent.workers[0].leaving = True
    assert sent.at(0.0) == [(2, Pending([b"f", b"g"]))]


def test_hints_are_repeated_at_growing_intervals() -> None:
    sent = SentHints()
    assert sent.at(0.0)
    assert not sent.at(HINT_DELAY / 2)
    assert sent.wakeup_hints.times() == [HINT_DELAY, HINT_DELAY]
    times, now = [], 0.0
    while now < 20 * MAX_HINT_DELAY:
        now = min(sent.wakeup_hints.times())
        assert sent.at(now)
        times.append(now)
    pauses = [later - before for before, later in itertools.pairwise(times)]
    assert pauses[0] == pytest.approx(2 * HINT_DELAY)
    assert max(pauses) == pytest.approx(pauses[-1]) == pytest.approx(MAX_HINT_DELAY)


def test_a_function_that_has_tasks_again_gets_a_hint_at_once() -> None:
    sent = SentHints()
    sent.at(0.0)
    assert not sent.at(HINT_DELAY / 4, set())
    assert sent.at(HINT_DELAY / 2) == [(1, Pending([b"f", b"g"])), (2, Pending([b"f", b"g"]))]
