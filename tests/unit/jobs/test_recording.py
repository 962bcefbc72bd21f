"""Series of a node: the differences of its figures, by minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.errors import StoreFullError
from mainspring.jobs.attempts import RECORD_INTERVAL, UNKNOWN_ERROR, Attempts, ErrorGroups, Recorder
from mainspring.jobs.held import FunctionQueue
from mainspring.jobs.model import Job, failure
from mainspring.jobs.rules import Event, Outcome, Settlement
from mainspring.series import HALF_HOUR, MINUTE, MOST_TYPES, OTHER_TYPES, Bucket
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from mainspring.series import SaveSeries

BEGIN = 1_699_999_200
"""The begin of a half hour."""


class Commits:
    """A commit queue that keeps what is put."""

    def __init__(self) -> None:
        self.rows: dict[tuple[bytes, int, int], Bucket] = {}
        self.refuses = False

    def put(self, operation: SaveSeries, done: object, failed: object) -> None:
        if self.refuses:
            failed(StoreFullError("full"))  # type: ignore[operator]
            return
        for row in operation.series:
            self.rows[row.function, row.step, row.at] = row.bucket
        done(None)  # type: ignore[operator]


class Recorded:
    def __init__(self) -> None:
        self.clock = ManualClock(BEGIN)
        self.attempts = Attempts(lambda: round(self.clock.wall() * 1_000_000))
        self.commits = Commits()
        self.queues: dict[bytes, FunctionQueue] = {}
        self.mine = True
        self.recorder = Recorder(
            self.attempts,
            self.commits,  # type: ignore[arg-type]
            self.clock,
            lambda: 3,
            self.queues.get,
            self.queues.values,
            lambda _: self.mine,
        )

    def ended(self, function: bytes, *outcomes: Outcome) -> None:
        self.attempts.ended([settlement(function, outcome) for outcome in outcomes])

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.recorder.tick()

    def bucket(self, function: bytes, minutes: int, step: int = MINUTE) -> Bucket:
        return self.commits.rows.get((function, step, BEGIN + 60 * minutes), Bucket())


def settlement(function: bytes, outcome: Outcome, error: bytes = b"") -> Settlement:
    event = Event.SUCCEED if outcome is Outcome.SUCCEEDED else Event.FAIL
    ended = Settlement(Job(7, function, b""), event, 1, error=error or failure("ValueError", "no\nmore"))
    ended.outcome, ended.ran_us, ended.waited_us = outcome, 2000, -1
    return ended


def test_the_minute_under_way_is_written_every_few_seconds() -> None:
    node = Recorded()
    node.ended(b"f", Outcome.SUCCEEDED)
    node.pass_time(RECORD_INTERVAL - 1)
    assert not node.commits.rows
    node.pass_time(1)
    assert node.bucket(b"f", 0).outcomes == {"succeeded": 1}
    node.ended(b"f", Outcome.FAILED)
    node.pass_time(RECORD_INTERVAL)
    assert node.bucket(b"f", 0).outcomes == {"succeeded": 1, "failed": 1}
    assert node.bucket(b"f", 0, HALF_HOUR).outcomes == {"succeeded": 1, "failed": 1}
    node.ended(b"f", Outcome.SUCCEEDED)
    node.pass_time(60)
    assert node.bucket(b"f", 0).outcomes == {"succeeded": 2, "failed": 1}
    assert (b"f", MINUTE, BEGIN + 60) not in node.commits.rows


def test_each_minute_has_what_happened_in_it() -> None:
    node = Recorded()
    node.attempts.submitted([Job(1, b"f", b""), Job(2, b"g", b""), Job(3, b"f", b"")])
    node.ended(b"f", Outcome.SUCCEEDED, Outcome.FAILED)
    assert not node.commits.rows
    node.pass_time(60)
    node.attempts.submitted([Job(4, b"f", b"")])
    node.ended(b"f", Outcome.SUCCEEDED)
    node.pass_time(60)
    node.pass_time(60)
    first, second = node.bucket(b"f", 0), node.bucket(b"f", 1)
    assert (first.submitted, first.outcomes) == (2, {"succeeded": 1, "failed": 1})
    assert (first.ran, first.ran_us) == ([0, 2], 4000)
    assert (second.submitted, second.outcomes, second.ran) == (1, {"succeeded": 1}, [0, 1])
    assert node.bucket(b"g", 0).submitted == 1
    assert (b"g", MINUTE, BEGIN + 60) not in node.commits.rows, "an idle function costs no row"
    half = node.bucket(b"f", 0, HALF_HOUR)
    assert (half.submitted, half.outcomes, half.ran_us) == (3, {"succeeded": 2, "failed": 1}, 6000)


def test_a_bucket_has_the_jobs_that_wait_at_its_end() -> None:
    node = Recorded()
    queue = node.queues[b"f"] = FunctionQueue(b"f")
    queue.backlog[1] = 7
    node.attempts.submitted([Job(1, b"f", b"")])
    node.pass_time(RECORD_INTERVAL)
    assert node.bucket(b"f", 0).waiting == 7
    queue.backlog[1] = 4
    node.pass_time(RECORD_INTERVAL)
    assert node.bucket(b"f", 0).waiting == 7, "each node sees the change: it is written once a minute"
    node.pass_time(60 - 2 * RECORD_INTERVAL)
    assert (node.bucket(b"f", 0).submitted, node.bucket(b"f", 0).waiting) == (1, 4)
    assert node.bucket(b"f", 0, HALF_HOUR).waiting == 4
    node.pass_time(60)
    assert (b"f", MINUTE, BEGIN + 60) not in node.commits.rows, "the same number costs no row"
    queue.counted = False
    node.attempts.submitted([Job(2, b"f", b"")])
    node.pass_time(60)
    unknown = node.bucket(b"f", 2)
    assert (unknown.submitted, unknown.waiting_us) == (1, 0)


def test_jobs_that_wait_without_an_attempt_are_written_once_a_minute() -> None:
    node = Recorded()
    queue = node.queues[b"f"] = FunctionQueue(b"f")
    queue.backlog[1] = 500  # of before the start, or from the inbox
    node.queues[b"new"] = FunctionQueue(b"new")
    node.queues[b"new"].counted = False
    node.queues[b"\x1fdecisions"] = FunctionQueue(b"\x1fdecisions")
    node.pass_time(RECORD_INTERVAL)
    assert not node.commits.rows
    node.pass_time(60)
    assert (node.bucket(b"f", 0).waiting, node.bucket(b"f", 0, HALF_HOUR).waiting) == (500, 500)
    queue.backlog[1] = 0  # they were cancelled, deleted, or have expired
    node.pass_time(60)
    assert node.bucket(b"f", 1) == Bucket(waiting_us=(BEGIN + 120 + round(RECORD_INTERVAL)) * 1_000_000)
    node.pass_time(60)
    assert {(name, at) for name, step, at in node.commits.rows if step == MINUTE} == {(b"f", BEGIN), (b"f", BEGIN + 60)}


def test_after_a_start_a_number_is_written_that_no_job_waits() -> None:
    """The last term may have written another number and ended before the next."""
    node = Recorded()
    node.queues[b"f"] = FunctionQueue(b"f")
    node.pass_time(60)
    assert node.bucket(b"f", 0) == Bucket(waiting_us=(BEGIN + 60) * 1_000_000)


def test_one_node_writes_the_waiting_jobs_of_a_function_without_figures() -> None:
    node = Recorded()
    queue = node.queues[b"f"] = FunctionQueue(b"f")
    queue.backlog[1] = 5
    node.mine = False
    node.pass_time(60)
    assert not node.commits.rows
    node.mine = True
    node.pass_time(60)
    assert node.bucket(b"f", 1).waiting == 5
    node.mine = False
    node.pass_time(60)  # another node writes other numbers
    node.mine = True
    node.pass_time(60)
    assert node.bucket(b"f", 3).waiting == 5


def test_the_newest_number_of_waiting_jobs_counts_and_none_is_added() -> None:
    for order in (1, -1):
        total = Bucket()
        for one in [Bucket(waiting=9, waiting_us=5), Bucket(waiting=3, waiting_us=8), Bucket(2)][::order]:
            total.add(one)
        assert total == Bucket(2, waiting=3, waiting_us=8)


def test_a_half_hour_begins_with_nothing_and_errors_are_in_it_alone() -> None:
    node = Recorded()
    node.pass_time(29 * 60)
    node.ended(b"f", Outcome.FAILED, Outcome.LOST)
    node.pass_time(60)
    node.ended(b"f", Outcome.FAILED)
    node.pass_time(60)
    assert {kind: group.number for kind, group in node.bucket(b"f", 0, HALF_HOUR).errors.items()} == {"ValueError": 2}
    assert {kind: group.number for kind, group in node.bucket(b"f", 30, HALF_HOUR).errors.items()} == {"ValueError": 1}
    assert not node.bucket(b"f", 29).errors
    assert node.bucket(b"f", 0, HALF_HOUR).errors["ValueError"].message == "no"


def test_what_the_store_refuses_is_written_with_the_next_minute() -> None:
    node = Recorded()
    node.commits.refuses = True
    node.ended(b"f", Outcome.SUCCEEDED)
    node.pass_time(60)
    node.commits.refuses = False
    node.ended(b"f", Outcome.SUCCEEDED)
    node.pass_time(60)
    assert [node.bucket(b"f", minute).outcomes for minute in (0, 1)] == [{"succeeded": 1}] * 2


def test_the_last_minute_of_a_node_is_written_before_it_ends() -> None:
    node = Recorded()
    node.ended(b"f", Outcome.SUCCEEDED)
    node.recorder.write()
    node.ended(b"f", Outcome.SUCCEEDED)
    node.recorder.write()
    assert node.bucket(b"f", 0).outcomes == {"succeeded": 2}


def test_errors_are_grouped_by_type_and_bounded() -> None:
    groups = ErrorGroups(lambda: 5)
    for number in range(MOST_TYPES + 3):
        groups.add(b"f", settlement(b"f", Outcome.FAILED, failure(f"E{number}", "why")))
    groups.add(b"g", settlement(b"g", Outcome.FAILED, b"not json"))
    taken = groups.take()
    assert len(taken[b"f"]) == MOST_TYPES + 1
    assert (taken[b"f"][OTHER_TYPES].number, taken[b"f"]["E0"].last_us) == (3, 5)
    assert list(taken[b"g"]) == [UNKNOWN_ERROR]
    assert groups.take() == {}


def test_buckets_of_several_nodes_are_added() -> None:
    first, second = Bucket(1, {"lost": 1}, [1], 5), Bucket(2, {"lost": 1, "failed": 2}, [0, 0, 3], 6)
    first.add(second)
    assert first == Bucket(3, {"lost": 2, "failed": 2}, [1, 0, 3], 11)
