from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.errors import StoreBusyError, StoreError, UsageError
from mainspring.storage.commit_queue import GATHER_BYTES, GATHER_DELAY, GROUP_ROWS, LOCK_RETRY_DELAYS, CommitQueue
from mainspring.storage.engine import DEFERRED, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.features import Feature
    from mainspring.ids import NodeId
    from mainspring.storage.engine import Answer, Committed, Opened


class Desk:
    """A loop, an engine and an owner in one: the test decides when each of them acts."""

    durable = False
    max_value = 0
    shared = False
    whole = True
    lacks: frozenset[Feature] = frozenset()

    def __init__(self, limit: int = 1000) -> None:
        self.soon: list[Callable[[], None]] = []
        self.group: list[Operation] | None = None
        self.committed: Committed | None = None
        self.apart: Answer
        self.events: list[object] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.failures: list[str] = []
        self.queue = CommitQueue(
            self,
            self.soon.append,
            lambda seconds, function: self.later.append((seconds, function)),
            limit=limit,
            pressure=self.events.append,
            failing=self.fail,
        )

    def fail(self, error: StoreError) -> None:
        self.failures.append(str(error))

    async def open(self, node: NodeId, deliver: Callable[[Callable[[], None]], object]) -> Opened:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        assert self.group is None, "one group at a time"
        self.group = list(group)
        self.committed = committed
        self.apart = answer

    def put(
        self, name: str, *, rows: int = 1, size: int = 10, urgent: bool = True, overtakes: bool = False
    ) -> Operation:
        operation = Operation()
        operation.rows, operation.size, operation.urgent = rows, size, urgent
        operation.overtakes = overtakes
        self.queue.put(
            operation,
            lambda outcome: self.events.append((name, outcome)),
            lambda error: self.events.append((name, str(error))),
        )
        return operation

    def failed(self, error: StoreError) -> None:
        self.events.append(str(error))

    def put_silently(self, name: str) -> None:
        self.put(name)

    @property
    def answered(self) -> list[str]:
        """Return the names of the answered operations, in order."""
        return [event[0] for event in self.events if isinstance(event, tuple)]

    def turn(self) -> None:
        """Run the functions that were delayed to the end of the turn."""
        soon, self.soon[:] = self.soon[:], []
        for function in soon:
            function()

    def answer(self, outcomes: Sequence[Any] | StoreError | None = None) -> None:
        """End the current group; the outcome of each operation is its place in the group."""
        assert self.group is not None
        assert self.committed is not None
        number = len(self.group)
        self.group = None
        self.committed(range(number) if outcomes is None else outcomes)

    def find_locked(self) -> None:
        """Answer that the store is locked."""
        self.answer(StoreBusyError("locked"))

    def wait(self) -> float:
        """Fire the only timer and end the turn. Return the timer's seconds."""
        ((seconds, function),) = self.later
        self.later.clear()
        function()
        self.turn()
        return seconds


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_operations_of_one_turn_form_one_group(desk: Desk) -> None:
    operations = [desk.put(name) for name in "abc"]
    assert desk.group is None, "not before the turn's end"
    assert len(desk.soon) == 1
    desk.turn()
    assert desk.group == operations
    desk.answer()
    assert desk.events == [("a", 0), ("b", 1), ("c", 2)]
    assert desk.queue.groups == 1


def test_operations_during_a_commit_form_the_next_group(desk: Desk) -> None:
    first = desk.put("a")
    desk.turn()
    second, third = desk.put("b"), desk.put("c")
    assert desk.soon == [], "nothing to do before the answer"
    assert desk.group == [first]
    desk.answer()
    desk.turn()
    assert desk.group == [second, third]
    desk.answer()
    desk.turn()
    assert desk.group is None
    assert desk.queue.groups == 2


def test_a_group_is_closed_when_it_is_large(desk: Desk) -> None:
    operations = [desk.put(name, rows=GROUP_ROWS // 2) for name in "abcde"]
    groups = []
    for _ in range(3):
        desk.turn()
        groups.append(desk.group)
        desk.answer()
    assert groups == [operations[:2], operations[2:4], operations[4:]]
    assert desk.answered == list("abcde")


def test_an_operation_larger_than_a_group_goes_alone(desk: Desk) -> None:
    operations = [desk.put("a", rows=GROUP_ROWS * 3), desk.put("b")]
    desk.turn()
    assert desk.group == operations[:1]


def test_the_rows_of_submissions_are_counted_as_jobs_and_bounds_are_not(desk: Desk) -> None:
    class Bringing(Operation):
        brings_jobs = True

    for rows in (3, 0, 4):
        operation = Bringing()
        operation.rows = rows
        desk.queue.put(operation)
    desk.put("a search", rows=1000)
    desk.turn()
    assert desk.queue.jobs == 7


def test_atomic_operations_are_never_split(desk: Desk) -> None:
    some = [Operation() for _ in range(3)]
    for operation in some:
        operation.rows = GROUP_ROWS
    desk.put("a", rows=1)
    desk.queue.put_atomic([(one, desk.events.append, desk.failed) for one in some])
    after = desk.put("b")
    desk.turn()
    assert desk.group is not None
    assert desk.group[1:] == some
    desk.answer()
    assert desk.events == [("a", 0), 1, 2, 3]
    desk.turn()
    assert desk.group == [after]


def test_atomic_operations_fail_and_are_retried_as_one(desk: Desk) -> None:
    some = [Operation(), Operation()]
    some[1].overtakes = True
    desk.put("a", overtakes=True)
    desk.queue.put_atomic([(one, desk.events.append, desk.failed) for one in some])
    desk.turn()
    desk.find_locked()
    desk.turn()
    desk.answer()
    assert desk.answered == ["a"], "the single operation may overtake"
    desk.wait()
    assert desk.group == some
    desk.answer(StoreError("full"))
    assert desk.failures[-1:] == ["full"]
    assert desk.events[1:] == ["full", "full"]


def test_a_store_without_whole_groups_refuses_atomic_operations(desk: Desk) -> None:
    desk.whole = False
    with pytest.raises(UsageError, match="cannot be atomic here"):
        desk.queue.put_atomic([(Operation(), desk.events.append, desk.failed)])
    assert desk.queue.idle


def test_an_operation_without_rows_is_committed(desk: Desk) -> None:
    desk.put("a", rows=0)
    desk.turn()
    desk.answer()
    assert desk.events == [("a", 0)]


def test_a_failed_group_fails_each_of_its_operations_and_no_other(desk: Desk) -> None:
    desk.put("a")
    desk.put("b")
    desk.turn()
    desk.put("c")
    desk.answer(StoreError("full"))
    assert desk.events == [("a", "full"), ("b", "full")]
    desk.turn()
    desk.answer()
    assert desk.events[2:] == [("c", 0)]
    assert desk.queue.idle


def test_operations_put_by_an_outcome_are_in_the_next_group(desk: Desk) -> None:
    desk.queue.put(Operation(), lambda _: desk.put_silently("b"))
    desk.turn()
    desk.answer()
    assert desk.queue.groups == 1
    assert not desk.queue.idle
    desk.turn()
    desk.answer()
    assert desk.events == [("b", 0)]


def test_functions_are_called_before_and_after_the_answers_of_a_group(desk: Desk) -> None:
    desk.queue.before_answers(lambda: desk.events.append("at once"))
    desk.queue.put(
        Operation(), lambda _: desk.queue.before_answers(lambda: desk.events.append("too late to be before"))
    )
    desk.turn()
    desk.queue.after_answers(lambda: desk.events.append("after"))
    desk.queue.before_answers(lambda: desk.events.append("before"))
    desk.answer()
    assert desk.events == ["at once", "before", "after", "too late to be before"]


def test_functions_before_the_answers_do_not_wait_for_a_locked_store(desk: Desk) -> None:
    desk.put("first")
    desk.turn()
    desk.queue.before_answers(lambda: desk.events.append("before"))
    desk.find_locked()
    assert desk.events == ["before"]


def test_flushing_twice_does_nothing_twice(desk: Desk) -> None:
    desk.put("a")
    desk.queue.flush()
    desk.turn()
    desk.put("b")
    desk.queue.flush()
    desk.answer()
    desk.queue.flush()
    desk.turn()
    desk.answer()
    desk.queue.flush()
    assert desk.events == [("a", 0), ("b", 0)]


# ---- operations without a waiting caller ----


def test_an_operation_without_a_caller_goes_with_the_next_group(desk: Desk) -> None:
    silent = desk.put("a", urgent=False)
    assert desk.soon == []
    assert silent.open
    urgent = desk.put("b")
    desk.turn()
    assert desk.group == [silent, urgent]
    assert not silent.open, "its rows are the engine's now"


def test_an_operation_without_a_caller_is_committed_after_the_delay(desk: Desk) -> None:
    silent = [desk.put(name, urgent=False) for name in "ab"]
    ((seconds, lose_patience),) = desk.later
    assert seconds == GATHER_DELAY
    lose_patience()
    desk.turn()
    assert desk.group == silent
    desk.put("c", urgent=False)
    desk.answer()
    assert len(desk.later) == 2, "the next operation has a delay of its own"
    desk.later[1][1]()
    desk.turn()
    desk.answer()
    assert desk.answered == list("abc")


def test_the_end_of_the_delay_after_the_commit_does_nothing(desk: Desk) -> None:
    desk.put("a", urgent=False)
    desk.put("b")
    desk.turn()
    desk.answer()
    desk.later[0][1]()
    assert (desk.soon, desk.queue.idle) == ([], True)


def test_a_delay_that_ends_during_a_commit_takes_effect_after_it(desk: Desk) -> None:
    desk.put("a")
    desk.turn()
    silent = desk.put("b", urgent=False)
    desk.later[0][1]()
    desk.answer()
    desk.turn()
    assert desk.group == [silent]


def test_the_delay_ends_when_enough_bytes_are_queued() -> None:
    desk = Desk(limit=2**30)
    desk.put("a", size=GATHER_BYTES, urgent=False)
    assert desk.soon == []
    desk.put("b", size=1, urgent=False)
    desk.turn()
    desk.answer()
    assert desk.queue.idle


def test_waiting_for_an_idle_queue_ends_the_delay(desk: Desk) -> None:
    desk.put("a", urgent=False)
    desk.queue.when_idle(lambda: desk.events.append("idle"))
    desk.turn()
    desk.answer()
    assert desk.events == [("a", 0), "idle"]


# ---- the bound ----


def test_a_full_queue_signals_pressure_until_half_of_it_is_free(desk: Desk) -> None:
    desk.put("a", size=600)
    desk.turn()
    desk.put("b", size=400)
    assert desk.events == []
    desk.put("c", size=1)
    assert desk.events == [True]
    desk.put("d", size=200)
    assert desk.events == [True], "signalled once"
    assert desk.queue.bytes == 1201
    desk.answer()
    assert desk.queue.bytes == 601
    assert False not in desk.events
    desk.turn()
    desk.answer()
    assert desk.queue.bytes == 0
    assert [event for event in desk.events if isinstance(event, bool)] == [True, False]


def test_a_failed_group_frees_its_bytes(desk: Desk) -> None:
    desk.put("a", size=2000)
    desk.turn()
    desk.answer(StoreError("no"))
    assert desk.queue.bytes == 0
    assert desk.events == [True, ("a", "no"), False]


def test_bytes_added_to_an_operation_count(desk: Desk) -> None:
    operation = desk.put("a", size=10)
    operation.size += 700
    desk.queue.add_bytes(700)
    assert desk.queue.bytes == 710
    desk.turn()
    desk.answer()
    assert desk.queue.bytes == 0


def test_added_bytes_can_fill_the_queue(desk: Desk) -> None:
    operation = desk.put("a", size=10)
    operation.size += 2000
    desk.queue.add_bytes(2000)
    assert desk.events == [True]


# ---- separate outcomes ----


def test_an_operation_can_fail_alone_or_be_answered_later(desk: Desk) -> None:
    for name in ("a", "b", "c"):
        desk.put(name)
    desk.turn()
    assert desk.committed is not None
    desk.group, committed = None, desk.committed
    committed([1, StoreError("no"), DEFERRED])
    assert desk.events == [("a", 1), ("b", "no")]
    assert desk.queue.idle


def test_a_separate_outcome_may_come_before_or_after_its_group(desk: Desk) -> None:
    for name in ("a", "b", "c"):
        desk.put(name)
    desk.turn()
    apart, committed = desk.apart, desk.committed
    assert committed is not None
    apart(1, "early")
    assert desk.events == [("b", "early")]
    desk.group = None
    committed([1, DEFERRED, DEFERRED])
    desk.put("d")
    desk.turn()
    apart(2, StoreError("late"))
    assert desk.events[1:] == [("a", 1), ("c", "late")], "it belongs to the group that has ended"


def test_failing_is_called_for_groups_of_which_nothing_was_committed(desk: Desk) -> None:
    for outcomes in (StoreError("full"), [StoreError("no right"), StoreError("another")], [StoreError("too large"), 1]):
        desk.put("a")
        desk.put("b")
        desk.turn()
        desk.answer(outcomes)
    assert desk.failures == ["full", "no right"]
    assert desk.queue.answered == 3


def test_a_closed_queue_gives_nothing_to_the_engine(desk: Desk) -> None:
    desk.put("a")
    desk.queue.close()
    desk.turn()
    assert desk.group is None
    assert desk.events == []


# ---- a store that another program has locked ----


def test_a_group_that_finds_the_store_locked_is_retried_by_a_timer(desk: Desk) -> None:
    first = [desk.put("a"), desk.put("b")]
    desk.turn()
    desk.find_locked()
    desk.put("c")
    desk.turn()
    assert desk.group is None, "no retry before the timer"
    assert str(desk.queue.locked) == "locked"
    assert not desk.queue.idle
    for pause in LOCK_RETRY_DELAYS[:4]:
        assert desk.wait() == pause
        assert desk.group == first, "a later operation does not overtake it"
        desk.find_locked()
    assert desk.wait() == LOCK_RETRY_DELAYS[4]
    desk.answer()
    assert desk.queue.locked is None
    desk.turn()
    desk.answer()
    assert desk.answered == list("abc")
    assert (desk.failures, desk.queue.groups, desk.queue.bytes, desk.queue.idle) == ([], 2, 0, True)


def test_an_operation_that_may_overtake_does_not_wait_for_the_lock(desk: Desk) -> None:
    write, read = desk.put("write"), desk.put("read", overtakes=True)
    desk.turn()
    assert desk.group == [write, read], "without a lock they are one group"
    desk.find_locked()
    desk.turn()
    assert desk.group == [read]
    desk.answer()
    barrier, second = desk.put("barrier"), desk.put("second", overtakes=True)
    desk.turn()
    assert desk.group == [second]
    desk.answer()
    assert desk.answered == ["read", "second"]
    desk.wait()
    assert desk.group == [write]
    desk.put("third", overtakes=True)
    desk.answer()
    desk.turn()
    assert desk.group is not None
    assert {barrier} < set(desk.group), "after the lock they are one group again"
    desk.answer()
    assert desk.answered == ["read", "second", "write", "third", "barrier"]
    assert desk.queue.idle
    assert desk.queue.answered == 2


def test_endless_reads_do_not_delay_a_blocked_group(desk: Desk) -> None:
    write = desk.put("write")
    desk.turn()
    desk.find_locked()
    desk.put("read", overtakes=True)
    desk.turn()
    desk.wait()
    desk.put("read", overtakes=True)
    desk.answer()
    desk.turn()
    assert desk.group == [write]


def test_endless_reads_do_not_delay_the_group_that_detects_the_end_of_the_lock(desk: Desk) -> None:
    last(desk)
    desk.put("read", overtakes=True)
    desk.turn()
    write = desk.put("write")
    desk.put("read", overtakes=True)
    desk.answer()
    desk.turn()
    assert desk.group == [write]


def test_an_earlier_operation_that_may_overtake_does_so_too(desk: Desk) -> None:
    desk.put("a")
    desk.turn()
    read = desk.put("read", overtakes=True)
    write = desk.put("b")
    desk.find_locked()
    desk.turn()
    assert desk.group == [read]
    desk.answer()
    desk.wait()
    desk.answer()
    desk.turn()
    assert desk.group == [write]


def test_reads_that_find_the_store_locked_wait_too(desk: Desk) -> None:
    read = desk.put("read", overtakes=True)
    desk.turn()
    desk.find_locked()
    desk.turn()
    assert desk.group is None
    desk.wait()
    assert desk.group == [read]
    desk.answer()
    assert desk.queue.idle


def last(desk: Desk) -> float:
    """Let a group wait for a lock until it fails. Return the seconds that it waited."""
    desk.put("a")
    desk.turn()
    waited = 0.0
    desk.find_locked()
    while desk.later:
        waited += desk.wait()
        desk.find_locked()
    return waited


def test_a_long_lock_fails_groups_until_one_succeeds(desk: Desk) -> None:
    assert 4 < last(desk) < 6
    assert (desk.events, desk.failures) == ([("a", "locked")], ["locked"])
    desk.put("b")
    desk.put("read", overtakes=True)
    desk.turn()
    desk.answer()  # the read
    desk.turn()
    desk.find_locked()
    assert desk.answered == ["a", "read", "b"]
    assert desk.later == [], "it has waited long enough"
    assert desk.queue.bytes == 0
    desk.put("c")
    desk.turn()
    desk.answer()
    desk.put("d")
    desk.turn()
    desk.find_locked()
    assert desk.answered == ["a", "read", "b", "c"], "the next lock has its own time"
    assert len(desk.later) == 1


def test_a_blocked_group_keeps_the_queue_from_being_idle(desk: Desk) -> None:
    desk.put("a")
    desk.turn()
    desk.find_locked()
    desk.queue.when_idle(lambda: desk.events.append("idle"))
    desk.turn()
    assert desk.events == []
    desk.wait()
    desk.answer()
    assert desk.events == [("a", 0), "idle"]


# ---- idleness ----


def test_an_idle_queue_has_nothing_queued_and_nothing_in_progress(desk: Desk) -> None:
    order: list[str] = []
    desk.queue.when_idle(lambda: order.append("at once"))
    assert order == ["at once"]
    desk.put("a")
    desk.queue.when_idle(lambda: order.append("later"))
    desk.turn()
    desk.put("b")
    desk.answer()
    assert order == ["at once"]
    desk.turn()
    desk.answer()
    assert order == ["at once", "later"]
    assert desk.queue.idle


def test_functions_that_wait_for_an_idle_queue_run_after_the_outcomes(desk: Desk) -> None:
    desk.put("a")
    desk.queue.when_idle(lambda: desk.events.append("idle"))
    desk.turn()
    desk.answer(StoreError("no"))
    assert desk.events == [("a", "no"), "idle"]


def test_idle_waits_for_operations_put_by_outcomes(desk: Desk) -> None:
    desk.queue.put(Operation(), lambda _: desk.put_silently("b"))
    desk.queue.when_idle(lambda: desk.events.append("idle"))
    desk.turn()
    desk.answer()
    assert desk.events == []
    desk.turn()
    desk.answer()
    assert desk.events == [("b", 0), "idle"]


def test_withdrawn_operations_take_no_space(desk: Desk) -> None:
    desk.put("a", size=600)
    desk.turn()
    desk.put("b", size=600)
    assert desk.events == [True]
    desk.queue.withdraw(desk.queue.waiting, StoreError("given up"))
    assert desk.queue.bytes == 600
    desk.answer()
    assert desk.queue.bytes == 0
    assert False in desk.events
