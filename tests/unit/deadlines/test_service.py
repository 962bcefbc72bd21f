"""The deadlines of a node whose store answers when the test lets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.clock import to_us
from mainspring.deadlines.service import BATCH, Deadlines, name_of
from mainspring.deadlines.store import FindDeadlines, Item, RingDeadlines, Upcoming
from mainspring.errors import StoreUnavailableError
from mainspring.jobs.lateness import Kind
from mainspring.jobs.store import Signs
from mainspring.schedules.store import RingAbsences
from mainspring.storage.agenda import FETCH_AHEAD, RETRY_DELAY, TAKEOVER_DELAY
from mainspring.testing import ManualClock
from mainspring.turns_of_loop import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError
    from mainspring.storage.engine import Operation

JOB = Item(7, Kind.END)


class Node:
    """A node with deadlines. Times are seconds after the start."""

    def __init__(self, *, first: bool = True) -> None:
        self.clock = ManualClock()
        self.start = self.clock.wall()
        self.timers = Timers(lambda _: None)
        self.operations: list[tuple[Operation, Callable[[Any], None], Callable[[StoreError], None]]] = []
        self.paused = False
        self.deadlines = Deadlines(
            self,  # type: ignore[arg-type] # of the queue, they use ``put``
            self.clock,
            self.timers,
            first=lambda _: first,
            paused=lambda: self.paused,
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

    def rings(self, *items: Item) -> tuple[Callable[[Any], None], Callable[[StoreError], None]]:
        """Check that these items of jobs ring; return the functions for the outcome and for an error."""
        operation, done, failed = self.take()
        assert isinstance(operation, RingDeadlines)
        assert operation.items == list(items)
        assert operation.now_us == to_us(self.clock.wall())
        return done, failed

    def finds(self, *found: tuple[Item, int]) -> None:
        """Answer a fetch."""
        operation, done, _ = self.take()
        assert isinstance(operation, FindDeadlines)
        done(Upcoming(list(found), None))


def test_a_new_deadline_rings_at_its_time() -> None:
    node = Node()
    node.deadlines.written([(JOB, node.us(1)), (Item(8, Kind.END), node.us(FETCH_AHEAD + 1))])
    node.advance(0.9)
    assert not node.operations
    node.advance(0.11)
    done, _ = node.rings(JOB)
    done([])
    node.advance(4)
    assert not node.operations  # the second one is fetched in time


def test_many_ring_in_groups_one_after_the_other() -> None:
    node = Node()
    items = [Item(number, Kind.END) for number in range(1, BATCH + 4)]
    node.deadlines.fetch()
    node.finds(*((item, node.us(1)) for item in items))
    node.advance(1.01)
    done, _ = node.rings(*items[:BATCH])
    assert not node.operations
    done([])
    node.rings(*items[BATCH:])


def test_schedules_ring_apart() -> None:
    node = Node()
    schedule = Item(0, 0, "nightly")
    node.deadlines.written([(schedule, node.us(0)), (JOB, node.us(0))])
    operation, done, _ = node.take()
    assert isinstance(operation, RingAbsences)
    assert operation.names == ["nightly"]
    done(None)
    node.rings(JOB)


def test_a_failed_ring_is_fetched_again() -> None:
    node = Node()
    node.deadlines.written([(JOB, node.us(0))])
    _, failed = node.rings(JOB)
    failed(StoreUnavailableError("the store is away"))
    node.advance(RETRY_DELAY)
    node.finds((JOB, node.us(0)))
    node.rings(JOB)


def test_jobs_that_another_transaction_has_locked_ring_again() -> None:
    node = Node()
    node.deadlines.written([(JOB, node.us(0))])
    done, _ = node.rings(JOB)
    done([JOB])
    node.advance(RETRY_DELAY)
    node.finds((JOB, node.us(0)))
    node.rings(JOB)


def test_a_node_that_is_not_first_takes_over_what_is_left() -> None:
    node = Node(first=False)
    node.deadlines.fetch()
    node.finds((JOB, node.us(1)))
    node.advance(1 + TAKEOVER_DELAY / 2)
    assert not node.operations
    node.advance(TAKEOVER_DELAY)
    node.finds((JOB, node.us(1)))
    node.rings(JOB)


def test_a_paused_node_rings_nothing() -> None:
    node = Node()
    node.paused = True
    node.deadlines.written([(JOB, node.us(0))])
    node.deadlines.fetch()
    node.deadlines.tick()
    assert not node.operations


def test_a_node_that_pauses_drops_waiting_items() -> None:
    node = Node()
    items = [Item(number, Kind.END) for number in range(1, BATCH + 4)]
    node.deadlines.written((item, node.us(0)) for item in items)
    done, _ = node.rings(*items[:BATCH])
    node.paused = True
    done([])
    assert not node.operations
    node.paused = False
    node.deadlines.fetch()
    node.finds((items[-1], node.us(0)))
    node.rings(items[-1])


def test_a_clock_that_steps_forward_rings_at_the_next_tick() -> None:
    node = Node()
    node.deadlines.written([(JOB, node.us(4))])
    node.clock.step(10)
    node.deadlines.tick()
    node.rings(JOB)


def test_a_clock_that_steps_back_rings_at_the_new_time() -> None:
    node = Node()
    node.deadlines.written([(JOB, node.us(1))])
    node.clock.step(-3)
    node.advance(1.01)
    assert not node.operations
    node.advance(3)
    operation, done, _ = node.operations.pop()
    assert isinstance(operation, RingDeadlines)
    done([])


def test_names_are_those_of_items() -> None:
    items = [Item(1, 1), Item(1, 2), Item(2, 1), Item(0, 0, "6"), Item(0, 0, "1")]
    assert len({name_of(item) for item in items}) == len(items)
    assert name_of(items[0]).isdecimal()


def test_a_node_fetches_nothing_while_signs_show_that_no_deadline_is_near() -> None:
    node = Node()
    for first, fetches in ((0.0, 0), (FETCH_AHEAD * 10, 0), (None, 1)):
        for _ in range(3):
            us = None if first is None else node.us(first) if first else 0
            node.deadlines.read_signs(Signs(0, errands=False, signals=False, deadline_us=us))
            node.advance(3)
            node.deadlines.tick()
        assert len(node.operations) == fetches
    node.finds()
    assert node.deadlines.awaits_times()
    node.deadlines.written([(JOB, to_us(node.clock.wall()) + 1)])
    assert not node.deadlines.awaits_times()
