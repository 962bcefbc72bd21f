"""The alarms of runs at a node whose store answers when the test lets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring.clock import to_us
from mainspring.errors import StoreUnavailableError
from mainspring.storage.agenda import FETCH_AHEAD, RETRY_DELAY, FetchTimes
from mainspring.testing import ManualClock
from mainspring.turns_of_loop import Timers
from mainspring.workflows.store import RingAlarms
from mainspring.workflows.watch import AT_ONCE, Alarms

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError
    from mainspring.storage.engine import Operation

RUN = 7


class Found(NamedTuple):
    due: list[tuple[int, int]]
    next_us: int | None = None


class Node:
    """A node with alarms. Times are seconds after the start."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.start = self.clock.wall()
        self.timers = Timers(lambda _: None)
        self.operations: list[tuple[Operation, Callable[[Any], None], Callable[[StoreError], None]]] = []
        self.alarms = Alarms(
            self,  # type: ignore[arg-type] # of the queue, they use ``put``
            self.clock,
            self.timers,
            first=lambda _: True,
            paused=lambda: False,
            fetching=FetchTimes(),
        )

    def put(self, operation: Operation, done: Callable[[Any], None], failed: Callable[[StoreError], None]) -> None:
        self.operations.append((operation, done, failed))

    def us(self, seconds: float) -> int:
        return to_us(self.start + seconds)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.timers.run(self.clock.monotonic())

    def take(self) -> tuple[Operation, Callable[[Any], None], Callable[[StoreError], None]]:
        (entry,) = self.operations
        self.operations.clear()
        entry[0].open = False  # its group is under way
        return entry

    def rings(self) -> tuple[Callable[[Any], None], Callable[[StoreError], None]]:
        """Check that the alarm of the run rings, alone; return the functions for the outcome and for an error."""
        operation, done, failed = self.take()
        assert isinstance(operation, RingAlarms)
        assert operation.runs == [RUN]
        return done, failed


def test_the_next_alarm_of_a_run_is_that_of_the_outcome() -> None:
    node = Node()
    node.alarms.written([(RUN, node.us(1))])
    node.advance(1.01)
    done, _ = node.rings()
    node.alarms.written([(RUN, node.us(3))])  # the same commit, before its outcomes
    done({RUN: node.us(3)})
    node.advance(1)
    assert not node.operations
    node.advance(1)
    node.rings()


def test_an_alarm_that_a_later_commit_writes_rings() -> None:
    node = Node()
    node.alarms.written([(RUN, node.us(1))])
    node.advance(1.01)
    done, _ = node.rings()
    done({RUN: node.us(60)})
    node.alarms.written([(RUN, node.us(2))])
    node.advance(1)
    node.rings()


def test_the_alarm_of_a_failed_ring_is_fetched_and_rings() -> None:
    node = Node()
    node.alarms.written([(RUN, node.us(1))])
    node.advance(1.01)
    _, failed = node.rings()
    node.alarms.written([(RUN, node.us(2))])
    failed(StoreUnavailableError("the store is away"))
    node.advance(RETRY_DELAY)
    operation, found, _ = node.take()
    assert not isinstance(operation, RingAlarms)
    found(Found([(RUN, node.us(2))]))
    node.advance(1)
    done, _ = node.rings()
    done({RUN: node.us(3)})
    node.alarms.written([(RUN, node.us(2.5))])
    node.advance(0.5)
    node.rings()


def test_a_far_alarm_is_fetched_before_its_time() -> None:
    node = Node()
    node.alarms.written([(RUN, node.us(1))])
    node.advance(1.01)
    done, _ = node.rings()
    done({RUN: node.us(60)})
    node.advance(59 - FETCH_AHEAD)
    operation, found, _ = node.take()
    assert not isinstance(operation, RingAlarms)
    found(Found([(RUN, node.us(60))]))
    node.advance(FETCH_AHEAD)
    node.rings()


def test_runs_that_are_set_aside_ring_later_and_do_not_hide_the_others() -> None:
    node = Node()
    waiting = {RUN}
    node.alarms = Alarms(
        node,  # type: ignore[arg-type] # of the queue, they use ``put``
        node.clock,
        node.timers,
        first=lambda _: True,
        paused=lambda: False,
        fetching=FetchTimes(),
        waits=waiting.__contains__,
        aside=lambda: len(waiting),
    )
    node.alarms.written([(RUN, node.us(1)), (RUN + 1, node.us(1))])
    node.advance(1.01)
    operation, done, _ = node.take()
    assert isinstance(operation, RingAlarms)
    assert operation.runs == [RUN + 1]
    done({})
    node.alarms.fetch()
    operation, found, _ = node.take()
    assert operation.rows == AT_ONCE + 1
    waiting.clear()
    found(Found([(RUN, node.us(1))]))
    node.rings()
