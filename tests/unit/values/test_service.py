"""Values on their way to the store, and those who wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.callbacks import CallInProgress
from mainspring.errors import StoreError
from mainspring.events import FollowValues, ValuesPublished
from mainspring.testing import ManualClock
from mainspring.values.model import NewValue, Swept
from mainspring.values.service import (
    FOLLOWED_FOR,
    LOOK_INTERVAL,
    RETRY_PAUSE,
    SWEEP_INTERVAL,
    LookValues,
    PublishValues,
    Seen,
    SweepValues,
    ValueService,
    Waiters,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.events import Message
    from mainspring.values.service import Waiter


class Queues:
    """The store's queues, and the node's timers and messages."""

    def __init__(self, *, is_shared: bool = False, mine: bool = True) -> None:
        self.clock = ManualClock()
        self.operations: list[tuple[Any, Callable[[Any], None], Callable[[StoreError], None]]] = []
        self.queries: list[tuple[Any, Callable[[Any], None], Callable[[StoreError], None]]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.broadcast: list[Message] = []
        self.sent: list[tuple[int, Message]] = []
        self.waiters = Waiters(
            self.clock.monotonic,
            lambda: 5,
            self.broadcast.append if is_shared else None,
            (lambda term, message: self.sent.append((term, message))) if is_shared else None,
        )
        queues: Any = self
        self.service = ValueService(
            queues,
            queues,
            self.clock,
            lambda seconds, then: self.timers.append((seconds, then)),
            self.waiters,
            lambda: 5,
            is_shared=is_shared,
            mine=lambda _: mine,
        )

    def put(self, operation: Any, done: Callable[[Any], None], failed: Callable[[StoreError], None]) -> None:
        self.operations.append((operation, done, failed))

    def ask(self, query: Any, done: Callable[[Any], None], failed: Callable[[StoreError], None]) -> None:
        self.queries.append((query, done, failed))

    def commit(self, outcome: Any) -> Any:
        """Commit the only operation with an outcome, and return it."""
        ((operation, done, failed),) = self.operations
        self.operations = []
        (failed if isinstance(outcome, StoreError) else done)(outcome)
        return operation

    def answer(self, outcome: Any) -> Any:
        ((query, done, failed),) = self.queries
        self.queries = []
        (failed if isinstance(outcome, StoreError) else done)(outcome)
        return query

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.service.check(self.clock.monotonic())


def new(job: int, name: str = "a", value: bytes = b"1") -> NewValue:
    return NewValue(job, name, 1, 1000, value)


def waiting(waiter: Waiter) -> list[None]:
    """Let somebody wait; return a list that gets an entry when the wait is over."""
    over: list[None] = []
    CallInProgress(waiter.wait(), over.append, lambda error: pytest.fail(str(error)))
    return over


def test_values_are_stored_under_the_term_of_the_node() -> None:
    queues = Queues()
    queues.service.publish([new(7)])
    operation = queues.commit([7])
    assert isinstance(operation, PublishValues)
    assert (operation.values, operation.term) == ([new(7)], 5)


def test_those_who_wait_are_woken_by_what_is_stored() -> None:
    queues = Queues()
    waiter, other = queues.waiters.add(7), queues.waiters.add(8)
    over, not_over = waiting(waiter), waiting(other)
    queues.service.publish([new(7)])
    assert over == []
    queues.commit([7])
    assert (len(over), len(not_over)) == (1, 0)
    queues.waiters.remove(7, waiter)
    queues.service.publish([new(7)])
    queues.commit([7])
    assert queues.waiters.jobs == {8}


def test_a_change_before_the_wait_is_not_missed() -> None:
    queues = Queues()
    waiter = queues.waiters.add(7)
    queues.service.written([7])
    assert len(waiting(waiter)) == 1
    assert waiting(waiter) == [], "it was only one change"


def test_refused_values_wake_nobody() -> None:
    queues = Queues()
    over = waiting(queues.waiters.add(7))
    queues.service.publish([new(7)])
    queues.commit([])
    assert over == []


def test_values_that_the_store_could_not_take_are_written_again_unless_later_ones_came() -> None:
    queues = Queues()
    queues.service.publish([new(7, "a"), new(7, "b")])
    queues.commit(StoreError("full"))
    queues.service.publish([new(7, "a", b"2")])
    queues.commit([7])
    ((seconds, retry),) = queues.timers
    assert seconds == RETRY_PAUSE
    retry()
    assert queues.commit([7]).values == [new(7, "b")]
    assert len(queues.timers) == 1


def test_a_value_does_not_come_back_over_one_that_was_already_under_way() -> None:
    queues = Queues()
    queues.service.publish([new(7, "a"), new(7, "b")])
    queues.service.publish([new(7, "a", b"2")])
    first, second = queues.operations
    first[2](StoreError("full"))
    second[1]([7])
    queues.operations.clear()
    ((_, retry),) = queues.timers
    retry()
    assert queues.commit([7]).values == [new(7, "b")]
    queues.service.publish([new(7, "a")])
    assert queues.commit([7]).values == [new(7, "a")]


def test_one_statement_a_second_looks_for_all_who_wait() -> None:
    queues = Queues(is_shared=True)
    queues.wait(LOOK_INTERVAL)
    assert queues.queries == [], "nobody waits"
    waiters = [queues.waiters.add(job) for job in (7, 7, 7, 8)]

    def woken(seen: Seen | StoreError) -> list[int]:
        overs = [waiting(waiter) for waiter in waiters]
        queues.wait(LOOK_INTERVAL)
        queues.wait(LOOK_INTERVAL)
        assert queues.answer(seen) == LookValues((7, 8)), "one at a time"
        return [len(over) for over in overs]

    assert woken(Seen({7: 3}, {7, 8})) == [1, 1, 1, 1], "the first look"
    assert woken(Seen({7: 3}, {7, 8})) == [0, 0, 0, 0], "nothing has changed"
    assert woken(StoreError("away")) == [0, 0, 0, 0]
    assert woken(Seen({7: 4}, {7, 8})) == [1, 1, 1, 0], "7 has a value"
    assert woken(Seen({7: 4}, {7})) == [0, 0, 0, 1], "8 has ended"


def test_a_store_of_one_node_is_not_looked_at() -> None:
    queues = Queues()
    queues.waiters.add(7)
    queues.wait(LOOK_INTERVAL)
    assert queues.queries == []


def test_other_nodes_are_notified_while_somebody_waits() -> None:
    queues = Queues(is_shared=True)
    first, second = queues.waiters.add(7), queues.waiters.add(8)
    assert queues.broadcast == [FollowValues(5)]
    queues.wait(LOOK_INTERVAL)
    assert queues.broadcast == [FollowValues(5)] * 2
    queues.waiters.remove(7, first)
    queues.waiters.remove(8, second)
    queues.wait(LOOK_INTERVAL)
    assert len(queues.broadcast) == 2


def test_what_is_stored_is_reported_to_nodes_that_asked() -> None:
    queues = Queues(is_shared=True)
    queues.service.written([7])
    assert queues.sent == [], "nobody asked"
    queues.waiters.received(FollowValues(9))
    queues.service.written([7, 8])
    assert queues.sent == [(9, ValuesPublished([7, 8]))]
    queues.clock.advance(FOLLOWED_FOR)
    queues.service.written([7])
    assert len(queues.sent) == 1, "it has not asked again"


def test_the_report_of_another_node_wakes_those_who_wait() -> None:
    queues = Queues(is_shared=True)
    over = waiting(queues.waiters.add(7))
    queues.waiters.received(ValuesPublished([8]))
    assert over == []
    queues.waiters.received(ValuesPublished([7]))
    assert len(over) == 1


def test_a_store_without_values_is_swept_once() -> None:
    queues = Queues()
    queues.wait(SWEEP_INTERVAL)
    assert isinstance(queues.commit(Swept(0, kept=False)), SweepValues)
    queues.wait(SWEEP_INTERVAL)
    assert queues.operations == []
    queues.service.written([7])
    queues.wait(SWEEP_INTERVAL)
    assert queues.commit(Swept(0, kept=True)).after == 0
    queues.wait(SWEEP_INTERVAL)
    queues.commit(StoreError("away"))
    queues.wait(SWEEP_INTERVAL)
    queues.commit(Swept(0, kept=False))
    queues.wait(SWEEP_INTERVAL)
    assert queues.operations == []


def test_a_sweep_goes_on_behind_its_last_job() -> None:
    queues = Queues()
    queues.wait(SWEEP_INTERVAL)
    queues.commit(Swept(70, kept=True))
    queues.wait(SWEEP_INTERVAL)
    assert queues.commit(Swept(0, kept=False)).after == 70
    queues.wait(SWEEP_INTERVAL)
    assert queues.commit(Swept(0, kept=False)).after == 0


def test_a_shared_store_is_swept_also_for_other_nodes() -> None:
    queues = Queues(is_shared=True)
    for _ in range(2):
        queues.wait(SWEEP_INTERVAL)
        queues.commit(Swept(0, kept=False))


def test_one_node_sweeps_a_shared_store() -> None:
    queues = Queues(is_shared=True, mine=False)
    queues.wait(SWEEP_INTERVAL)
    assert queues.operations == []
