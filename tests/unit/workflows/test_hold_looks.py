"""A node decides each second about resources for which runs wait, while some may do so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from mainspring.resources.hold_store import AskHolds, FindRunRequests
from mainspring.testing.passing_time import ManualClock
from mainspring.workflows.hold_looks import INTERVAL, HoldLooks

if TYPE_CHECKING:
    from collections.abc import Callable


class Node:
    """A node whose store answers reads when the test lets it, and writes at once."""

    def __init__(self) -> None:
        self.reads: list[Callable[[list[str]], None]] = []
        self.decided: list[list[str]] = []
        self.paused = False
        self.clock = ManualClock()
        port = cast("Any", self)
        self.looks = HoldLooks(port, port, self.clock, paused=lambda: self.paused, looks=lambda: False)

    def ask(self, query: FindRunRequests, done: Callable[[list[str]], None], _: object) -> None:
        assert isinstance(query, FindRunRequests)
        self.reads.append(done)

    def put(self, operation: AskHolds, done: Callable[[object], None], _: object) -> None:
        self.decided.append([*operation.freed])
        done(None)

    def tick(self) -> bool:
        """Return whether a second later a read begins."""
        before = len(self.reads)
        self.clock.advance(INTERVAL)
        self.looks.tick()
        return len(self.reads) > before

    def answer(self, *names: str) -> None:
        """Answer the read with the resources for which runs wait."""
        self.reads.pop()([*names])


def test_a_node_looks_at_its_start_and_while_runs_wait() -> None:
    node = Node()
    assert node.tick(), "runs of an earlier process may wait"
    assert not node.tick(), "one read at a time"
    node.answer("l")
    assert (node.decided, node.tick()) == ([["l"]], True)
    node.answer()
    assert not node.tick()
    node.looks.asked()
    assert node.tick()


@pytest.mark.parametrize("paused", [False, True])
def test_a_request_that_comes_while_the_store_is_read_is_looked_for(paused: bool) -> None:
    node = Node()
    assert node.tick()
    node.looks.asked()
    node.paused = paused
    node.answer()
    node.paused = False
    assert node.tick()
    assert node.decided == []
