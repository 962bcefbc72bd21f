from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.errors import StoreBusyError, StoreError, UsageError
from mainspring.storage.commit_queue import GROUP_ROWS, PATIENCE, PATIENCE_BYTES, PAUSES, CommitQueue
from mainspring.storage.operation import DEFERRED, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.ids import NodeId
    from mainspring.storage.engine import Answer, Committed, Opened


class Desk:
    """A loop, an engine and an owner in one: what they are asked to do waits until the test does it."""

    durable = False
    max_value = 0
    shared = False
    whole = True
    limits = True
    lines = True

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
        """The names of the operations that were answered, in order."""
        return [event[0] for event in self.events if isinstance(event, tuple)]

    def turn(self) -> None:
        """Run what was put off to the end of the turn."""
        soon, self.soon[:] = self.soon[:], []
        for function in soon:
            function()

    def answer(self, outcomes: Sequence[Any] | StoreError | None = None) -> None:
        """The group under way ends, each operation with its place in the group as its outcome."""
        assert self.group is not None
        assert self.committed is not None
        number = len(self.group)
        self.group = None
        self.committed(range(number) if outcomes is None else outcomes)

    def find_locked(self) -> None:
        """The group under way finds the store locked."""
        self.answer(StoreBusyError("locked"))

    def wait(self) -> float:
        """Let the only timer end, and the turn with it; returns its seconds."""
        ((seconds, function),) = self.later
        self.later.clear()
        function()
        self.turn()
        return seconds


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_one_turn_brings_is_one_group(desk: Desk) -> None:
    operations = [desk.put(name) for name in "abc"]
    assert desk.group is None, "not before the turn's end"
    assert len(desk.soon) == 1
    desk.turn()
    assert desk.group == operations
    desk.answer()
    assert desk.events == [("a", 0), ("b", 1), ("c", 2)]
    assert desk.queue.groups == 1


def test_what_comes_during_a_commit_is_the_next_group(desk: Desk) -> None:
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


def test_jobs_that_are_brought_are_counted_and_bounds_are_not(desk: Desk) -> None:
    class Bringing(Operation):
        brings_jobs = True

    for rows in (3, 0, 4):
        operation = Bringing()
        operation.rows = rows
        desk.queue.put(operation)
    desk.put("a search", rows=1000)
    desk.turn()
    assert desk.queue.jobs == 7


def test_what_is_put_together_is_never_split(desk: Desk) -> None:
    some = [Operation() for _ in range(3)]
    for operation in some:
        operation.rows = GROUP_ROWS
    desk.put("a", rows=1)
    desk.queue.put_together([(one, desk.events.append, desk.failed) for one in some])
    after = desk.put("b")
    desk.turn()
    assert desk.group is not None
    assert desk.group[1:] == some
    desk.answer()
    assert desk.events == [("a", 0), 1, 2, 3]
    desk.turn()
    assert desk.group == [after]


def test_what_is_put_together_fails_and_is_kept_together(desk: Desk) -> None:
    some = [Operation(), Operation()]
    some[1].overtakes = True
    desk.put("a", overtakes=True)
    desk.queue.put_together([(one, desk.events.append, desk.failed) for one in some])
    desk.turn()
    desk.find_locked()
    desk.turn()
    desk.answer()
    assert desk.answered == ["a"], "what may overtake alone has gone ahead"
    desk.wait()
    assert desk.group == some
    desk.answer(StoreError("full"))
    assert desk.failures[-1:] == ["full"]
    assert desk.events[1:] == ["full", "full"]


def test_a_store_whose_groups_are_not_whole_takes_nothing_together(desk: Desk) -> None:
    desk.whole = False
    with pytest.raises(UsageError, match="cannot be put together here"):
        desk.queue.put_together([(Operation(), desk.events.append, desk.failed)])
    assert desk.queue.idle


def test_an_operation_of_no_rows_is_committed_too(desk: Desk) -> None:
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


def test_what_an_outcome_puts_is_in_the_next_group(desk: Desk) -> None:
    desk.queue.put(Operation(), lambda _: desk.put_silently("b"))
    desk.turn()
    desk.answer()
    assert desk.queue.groups == 1
    assert not desk.queue.idle
    desk.turn()
    desk.answer()
    assert desk.events == [("b", 0)]


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


# ---- what nobody waits for ----


def test_what_nobody_waits_for_goes_with_the_next_group(desk: Desk) -> None:
    patient = desk.put("a", urgent=False)
    assert desk.soon == []
    assert patient.open
    urgent = desk.put("b")
    desk.turn()
    assert desk.group == [patient, urgent]
    assert not patient.open, "its rows are the engine's now"


def test_patience_ends(desk: Desk) -> None:
    patient = [desk.put(name, urgent=False) for name in "ab"]
    ((seconds, lose_patience),) = desk.later
    assert seconds == PATIENCE
    lose_patience()
    desk.turn()
    assert desk.group == patient
    desk.put("c", urgent=False)
    desk.answer()
    assert len(desk.later) == 2, "the next one has its own patience"
    desk.later[1][1]()
    desk.turn()
    desk.answer()
    assert desk.answered == list("abc")


def test_patience_that_ends_too_late_does_nothing(desk: Desk) -> None:
    desk.put("a", urgent=False)
    desk.put("b")
    desk.turn()
    desk.answer()
    desk.later[0][1]()
    assert (desk.soon, desk.queue.idle) == ([], True)


def test_patience_during_a_commit_ends_with_it(desk: Desk) -> None:
    desk.put("a")
    desk.turn()
    patient = desk.put("b", urgent=False)
    desk.later[0][1]()
    desk.answer()
    desk.turn()
    assert desk.group == [patient]


def test_patience_has_a_limit_in_bytes() -> None:
    desk = Desk(limit=2**30)
    desk.put("a", size=PATIENCE_BYTES, urgent=False)
    assert desk.soon == []
    desk.put("b", size=1, urgent=False)
    desk.turn()
    desk.answer()
    assert desk.queue.idle


def test_what_waits_for_idleness_is_in_a_hurry(desk: Desk) -> None:
    desk.put("a", urgent=False)
    desk.queue.when_idle(lambda: desk.events.append("idle"))
    desk.turn()
    desk.answer()
    assert desk.events == [("a", 0), "idle"]


# ---- the bound ----


def test_a_full_queue_presses_until_half_of_it_is_free(desk: Desk) -> None:
    desk.put("a", size=600)
    desk.turn()
    desk.put("b", size=400)
    assert desk.events == []
    desk.put("c", size=1)
    assert desk.events == [True]
    desk.put("d", size=200)
    assert desk.events == [True], "said once"
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


def test_what_an_operation_grows_by_counts(desk: Desk) -> None:
    operation = desk.put("a", size=10)
    operation.size += 700
    desk.queue.grown(700)
    assert desk.queue.bytes == 710
    desk.turn()
    desk.answer()
    assert desk.queue.bytes == 0


def test_growing_can_fill_the_queue(desk: Desk) -> None:
    operation = desk.put("a", size=10)
    operation.size += 2000
    desk.queue.grown(2000)
    assert desk.events == [True]


# ---- outcomes of their own ----


def test_an_operation_can_fail_alone_or_be_answered_later(desk: Desk) -> None:
    for name in ("a", "b", "c"):
        desk.put(name)
    desk.turn()
    assert desk.committed is not None
    desk.group, committed = None, desk.committed
    committed([1, StoreError("no"), DEFERRED])
    assert desk.events == [("a", 1), ("b", "no")]
    assert desk.queue.idle


def test_an_outcome_apart_is_given_before_or_after_those_of_its_group(desk: Desk) -> None:
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
    assert desk.events[1:] == [("a", 1), ("c", "late")], "it is one of the group that has ended"


def test_the_owner_learns_of_groups_of_which_nothing_was_committed(desk: Desk) -> None:
    for outcomes in (StoreError("full"), [StoreError("no right"), StoreError("another")], [StoreError("too large"), 1]):
        desk.put("a")
        desk.put("b")
        desk.turn()
        desk.answer(outcomes)
    assert desk.failures == ["full", "no right"]
    assert desk.queue.answered == 3


def test_a_closed_queue_hands_nothing_over(desk: Desk) -> None:
    desk.put("a")
    desk.queue.close()
    desk.turn()
    assert desk.group is None
    assert desk.events == []


# ---- a store that another program has locked ----


def test_a_group_that_finds_the_store_locked_is_kept_and_tried_again_by_a_timer(desk: Desk) -> None:
    first = [desk.put("a"), desk.put("b")]
    desk.turn()
    desk.find_locked()
    desk.put("c")
    desk.turn()
    assert desk.group is None, "no try before the timer"
    assert str(desk.queue.locked) == "locked"
    assert not desk.queue.idle
    for pause in PAUSES[:4]:
        assert desk.wait() == pause
        assert desk.group == first, "what was put later does not pass it"
        desk.find_locked()
    assert desk.wait() == PAUSES[4]
    desk.answer()
    assert desk.queue.locked is None
    desk.turn()
    desk.answer()
    assert desk.answered == list("abc")
    assert (desk.failures, desk.queue.groups, desk.queue.bytes, desk.queue.idle) == ([], 2, 0, True)


def test_what_may_overtake_does_not_wait_for_the_lock(desk: Desk) -> None:
    write, read = desk.put("write"), desk.put("read", overtakes=True)
    desk.turn()
    assert desk.group == [write, read], "as long as nothing is locked they go together"
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
    assert {barrier} < set(desk.group), "once the lock is gone they go together again"
    desk.answer()
    assert desk.answered == ["read", "second", "write", "third", "barrier"]
    assert desk.queue.idle
    assert desk.queue.answered == 2


def test_an_endless_row_of_reads_does_not_keep_what_is_locked_out(desk: Desk) -> None:
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


def test_an_endless_row_of_reads_does_not_keep_out_what_finds_out_that_the_lock_is_gone(desk: Desk) -> None:
    last(desk)
    desk.put("read", overtakes=True)
    desk.turn()
    write = desk.put("write")
    desk.put("read", overtakes=True)
    desk.answer()
    desk.turn()
    assert desk.group == [write]


def test_what_may_overtake_and_came_before_the_lock_was_met_does_so_too(desk: Desk) -> None:
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


def test_readers_wait_too_where_they_are_locked_out(desk: Desk) -> None:
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
    """A group waits for a lock that lasts for too long; returns for how many seconds it has waited."""
    desk.put("a")
    desk.turn()
    waited = 0.0
    desk.find_locked()
    while desk.later:
        waited += desk.wait()
        desk.find_locked()
    return waited


def test_a_lock_that_lasts_fails_groups_until_one_is_let_in(desk: Desk) -> None:
    assert 4 < last(desk) < 6
    assert (desk.events, desk.failures) == ([("a", "locked")], ["locked"])
    desk.put("b")
    desk.put("read", overtakes=True)
    desk.turn()
    desk.answer()  # the one that reads
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


def test_idleness_waits_for_what_is_locked_out(desk: Desk) -> None:
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


def test_idle_means_nothing_waits_and_nothing_is_under_way(desk: Desk) -> None:
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


def test_idle_comes_after_the_outcomes(desk: Desk) -> None:
    desk.put("a")
    desk.queue.when_idle(lambda: desk.events.append("idle"))
    desk.turn()
    desk.answer(StoreError("no"))
    assert desk.events == [("a", "no"), "idle"]


def test_idle_waits_for_what_the_outcomes_put(desk: Desk) -> None:
    desk.queue.put(Operation(), lambda _: desk.put_silently("b"))
    desk.queue.when_idle(lambda: desk.events.append("idle"))
    desk.turn()
    desk.answer()
    assert desk.events == []
    desk.turn()
    desk.answer()
    assert desk.events == [("b", 0), "idle"]
