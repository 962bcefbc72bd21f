"""Backfills of schedules, on each engine that keeps operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.bulk.rules import Action, BulkOperation, Outcome, Spec, Status
from mainspring.bulk.store import BeginBulk, EndBulk, ListTouched, StepBackfill, Stepped, TakeBulk
from mainspring.engines.memory.bulk import MemoryBulkSlice
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.memory.schedules import MemoryScheduleSlice
from mainspring.engines.postgres.changing import PostgresBulkSlice
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.postgres.schedules import PostgresScheduleSlice
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.slice_transaction import SqliteBulkSlice, SqliteScheduleSlice
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event
from mainspring.schedules import store as ops
from mainspring.schedules.model import FireState, Overlap, Reason
from tests.conformance.suite.driver import Store
from tests.conformance.suite.scheduling import MINUTE, START, Scheduling

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conformance.suite import Make


class Backfills(Scheduling):
    """A store with schedules and backfills. Schedules begin at START, and fire every minute."""

    def begin(self, name: str = "a", first: int = -5, last: int = -1, **spec: Any) -> BulkOperation:
        """Begin a backfill of a range of minutes."""
        (bulk,) = self.group(
            BeginBulk(
                BulkOperation(
                    id=self.store.new_id(),
                    created_us=self.now_us,
                    spec=Spec(
                        action=Action.BACKFILL,
                        schedule=name,
                        from_us=START + first * MINUTE,
                        to_us=START + last * MINUTE,
                        **spec,
                    ),
                )
            )
        )
        assert isinstance(bulk, BulkOperation)
        return bulk

    def stepping(self, bulk: BulkOperation, limit: int = 1000, *, permits: bool = True) -> StepBackfill:
        return StepBackfill(bulk, limit, self.now_us, lambda _: permits)

    def step(self, bulk: BulkOperation, limit: int = 1000, *, permits: bool = True) -> BulkOperation:
        (stepped,) = self.group(self.stepping(bulk, limit, permits=permits))
        assert isinstance(stepped, Stepped)
        assert stepped.stepped
        assert stepped.bulk is not None
        return stepped.bulk

    def minutes(self, name: str = "a") -> list[int]:
        """Return the minutes whose rows are not skipped."""
        rows = self.history(name)
        return [(row.fire_us - START) // MINUTE for row in rows if row.state is not FireState.SKIPPED]


class BackfillSuite:
    """The contract of backfills."""

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError

    @pytest.fixture
    def s(self, make: Make) -> Iterator[Backfills]:
        store = Store(make)
        backfills = Backfills(make, store)
        yield backfills
        backfills.check()
        store.close()

    def test_each_past_time_has_a_job(self, s: Backfills) -> None:
        s.add("a", args=b"payload", expires=30.0, jitter=3600.0)
        bulk = s.begin()
        first = s.step(bulk, 2)
        assert (first.status, first.progress.counts) == (Status.RUNNING, {Outcome.FIRED: 2})
        assert s.minutes() == [-5, -4]
        last = s.step(first, 3)
        assert (last.status, last.ended_us, last.progress.counts) == (Status.DONE, s.now_us, {Outcome.FIRED: 5})
        rows = s.history("a")
        assert [row.fire_us for row in rows] == [START + minute * MINUTE for minute in range(-5, 0)]
        assert {row.operation for row in rows} == {bulk.id}
        jobs = s.claim("a")
        assert sorted(job.options.fire_us for job in jobs if job.options) == [row.fire_us for row in rows]
        assert {(job.payload, job.due_us, job.expires_us) for job in jobs} == {
            (b"payload", s.now_us, s.now_us + 30_000_000)
        }, "they are not due in the past, where they would expire"
        touched = s.store.all_of(ListTouched(id=bulk.id))
        assert [job for step in touched for job in step[Outcome.FIRED]] == [row.job for row in rows]
        for job in jobs:
            s.end(job)
        assert s.outcomes("a") == ["succeeded"] * 5
        assert s.stored("a").state.next_us == START, "the schedule goes on"
        s.fire()
        assert s.minutes() == [-5, -4, -3, -2, -1, 0]

    def test_a_repeated_step_fires_nothing(self, s: Backfills) -> None:
        s.add("a")
        bulk = s.begin()
        first, repeated = s.group(s.stepping(bulk, 2), s.stepping(bulk, 2))
        assert (first.stepped, repeated.stepped) == (True, False)
        assert first.bulk == repeated.bulk
        assert len(s.claim("a")) == 2

    def test_a_second_backfill_fires_no_time_again(self, s: Backfills) -> None:
        s.add("a")
        s.step(s.begin(last=-3))
        second = s.step(s.begin())
        assert second.progress.counts == {Outcome.ALREADY_FIRED: 3, Outcome.FIRED: 2}
        assert len(s.claim("a")) == 5

    def test_the_next_run_of_a_node_goes_on(self, s: Backfills) -> None:
        s.add("a")
        bulk = s.step(s.begin(), 2)
        s.store.reopen()
        s.attend()
        (late,) = s.group(s.stepping(bulk))
        assert not late.stepped, "it was not taken over yet"
        (taken,) = s.group(TakeBulk(bulk.id))
        assert s.step(taken).progress.counts == {Outcome.FIRED: 5}
        assert s.minutes() == [-5, -4, -3, -2, -1]
        assert len(s.store.list()) == 5

    def test_an_abort_stops_the_next_step(self, s: Backfills) -> None:
        s.add("a")
        bulk = s.begin()
        stepped, ended = s.group(s.stepping(bulk, 2), EndBulk("default", bulk.id, Status.ABORTED, "no more", s.now_us))
        assert ended.progress.counts == {Outcome.FIRED: 2}
        (late,) = s.group(s.stepping(stepped.bulk))
        assert not late.stepped
        assert s.minutes() == [-5, -4]

    def test_skipped_times_run(self, s: Backfills) -> None:
        s.add("a", exclude=("2023-11-13",))
        s.at(3)
        s.fire()
        assert s.outcomes("a") == ["misfire", "misfire", "misfire", "fired"]
        ended = s.step(s.begin(first=-24 * 60, last=3), 2000)
        assert ended.progress.counts[Outcome.ALREADY_FIRED] == 1
        assert s.minutes()[-4:] == [0, 1, 2, 3]
        assert {row.fire_us // 86_400_000_000 for row in s.history("a")} == {START // 86_400_000_000}, "others excluded"
        assert len(s.claim("a")) == ended.progress.counts[Outcome.FIRED] + 1

    def test_times_that_are_due_belong_to_the_schedule(self, s: Backfills) -> None:
        s.add("a")
        s.at(3)
        ended = s.step(s.begin(last=3))
        assert ended.progress.counts == {Outcome.FIRED: 5}
        assert s.minutes() == [-5, -4, -3, -2, -1]

    def test_a_paused_schedule_runs_past_times(self, s: Backfills) -> None:
        s.add("a")
        s.change("pause", "a")
        assert s.step(s.begin()).progress.counts == {Outcome.FIRED: 5}
        assert s.stored("a").state.paused

    def test_times_queue(self, s: Backfills) -> None:
        s.add("a", overlap=Overlap.QUEUE)
        assert s.step(s.begin()).progress.counts == {Outcome.FIRED: 1, Outcome.WAITING: 4}
        for minute in range(-5, 0):
            job = s.running("a")
            assert job.options is not None
            assert job.options.fire_us == START + minute * MINUTE
            s.end(job)
        assert s.outcomes("a") == ["succeeded"] * 5

    @pytest.mark.parametrize("overlap", [Overlap.FORBID, Overlap.REPLACE])
    def test_one_time_runs_at_once(self, s: Backfills, overlap: Overlap) -> None:
        s.add("a", overlap=overlap)
        bulk = s.begin(last=-4)
        first = s.step(bulk)
        assert (first.status, first.progress.counts) == (Status.RUNNING, {Outcome.FIRED: 1})
        assert s.step(first) == first, "an earlier run is under way"
        s.run("a")
        last = s.step(first)
        assert (last.status, last.progress.counts) == (Status.DONE, {Outcome.FIRED: 2})
        assert s.outcomes("a") == ["succeeded", "fired"]

    def test_times_join_a_live_job_of_their_unique(self, s: Backfills) -> None:
        s.add("a", unique=b"u")
        assert s.step(s.begin()).progress.counts == {Outcome.FIRED: 1, Outcome.JOINED: 4}
        assert len(s.claim("a")) == 1

    def test_children_follow(self, s: Backfills) -> None:
        s.add("a", wait_for_children=True)
        s.add("b", parents=("a",))
        s.step(s.begin(last=-5))
        s.run("a")
        assert s.outcomes("a") == ["succeeded, 1 left"]
        s.run("b")
        assert (s.outcomes("a"), s.outcomes("b")) == (["succeeded"], ["succeeded"])
        assert s.minutes("b") == [-5]

    def missed(self, s: Backfills, *roots: str) -> None:
        """Skip the minutes 0 and 1 of the roots, which fire from minute 2 on; all fire then."""
        s.at(2)
        s.fire()
        for root in roots:
            assert s.outcomes(root)[:2] == ["misfire"] * 2

    def test_skipped_descendants_follow(self, s: Backfills) -> None:
        s.add("a", wait_for_children=True)
        s.add("b", parents=("a",))
        s.add("c", parents=("b",))
        self.missed(s, "a")
        assert s.outcomes("c")[:2] == ["parent"] * 2
        ended = s.step(s.begin(first=0, last=1))
        assert ended.progress.counts == {Outcome.FIRED: 2}
        assert s.minutes("b") == s.minutes("c") == []
        for name in "abc":
            for job in s.claim(name):
                s.end(job)
        assert s.outcomes("a") == s.outcomes("b") == s.outcomes("c") == ["succeeded"] * 3
        assert s.step(s.begin(first=0, last=1)).progress.counts == {Outcome.ALREADY_FIRED: 2}

    def test_a_schedule_waits_for_the_children_that_follow_its_backfill(self, s: Backfills) -> None:
        s.add("a", wait_for_children=True)
        s.add("b", parents=("a",), wait_for_children=True)
        s.add("c", parents=("b",))
        self.missed(s, "a")
        for name in "abc":
            s.run(name)
        s.step(s.begin(first=0, last=0))
        s.run("a")
        s.run("b")
        assert (s.outcomes("a")[0], s.outcomes("b")[0]) == ("succeeded, 1 left", "succeeded, 1 left")
        s.run("c")
        assert (s.outcomes("a")[0], s.outcomes("b")[0], s.outcomes("c")[0]) == ("succeeded",) * 3

    def test_children_of_a_failed_backfill_are_skipped_again(self, s: Backfills) -> None:
        s.add("a")
        s.add("b", parents=("a",))
        self.missed(s, "a")
        s.run("a")
        s.step(s.begin(first=0, last=0))
        s.run("a", Event.FAIL)
        assert (s.outcomes("a")[0], s.outcomes("b")[0]) == ("failed", "parent")

    def test_a_child_follows_once_all_its_skipped_parents_have_run(self, s: Backfills) -> None:
        s.add("a")
        s.add("b")
        s.add("c", parents=("a", "b"))
        s.add("d", parents=("c",))
        self.missed(s, "a", "b")
        for name in "abcd":
            s.run(name)
        s.step(s.begin(first=0, last=0))
        s.run("a")
        assert s.outcomes("c") == s.outcomes("d") == ["parent", "parent", "succeeded"]
        s.step(s.begin("b", first=0, last=0))
        assert s.minutes("c") == [2]
        s.run("b")
        s.run("c")
        s.run("d")
        assert s.outcomes("c") == s.outcomes("d") == ["succeeded", "parent", "succeeded"]

    def test_a_child_follows_two_backfills_under_way(self, s: Backfills) -> None:
        s.add("a")
        s.add("b")
        s.add("c", parents=("a", "b"))
        self.missed(s, "a", "b")
        for name in "abc":
            s.run(name)
        s.step(s.begin(first=0, last=0))
        s.step(s.begin("b", first=0, last=0))
        s.run("b")
        assert s.minutes("c") == [2]
        s.run("a")
        s.run("c")
        assert s.outcomes("c") == ["succeeded", "parent", "succeeded"]

    def test_a_family_with_two_branches_follows(self, s: Backfills) -> None:
        s.add("a", wait_for_children=True)
        s.add("b", parents=("a",))
        s.add("c", parents=("a",))
        s.add("d", parents=("b", "c"))
        self.missed(s, "a")
        s.step(s.begin(first=0, last=1))
        for name in "abcd":
            for job in s.claim(name):
                s.end(job)
        assert [s.outcomes(name) for name in "abcd"] == [["succeeded"] * 3] * 4

    def test_a_parent_that_runs_waits_for_a_child_that_follows(self, s: Backfills) -> None:
        s.add("a")
        s.add("b", wait_for_children=True, misfire="all")
        s.add("c", parents=("a", "b"))
        s.add("d", parents=("b",))
        self.missed(s, "a")
        jobs = {job.options.fire_us: job for job in s.claim("b") if job.options}
        s.end(jobs[START])
        assert s.outcomes("b")[0] == "succeeded, 1 left"
        s.step(s.begin(first=0, last=0))
        assert s.outcomes("b")[0] == "succeeded, 2 left"
        s.run("d")
        assert s.outcomes("b")[0] == "succeeded, 1 left"
        s.end(next(job for job in s.claim("a") if job.options and job.options.fire_us == START))
        s.run("c")
        assert (s.outcomes("b")[0], s.outcomes("c")[0]) == ("succeeded", "succeeded")

    def test_a_child_that_its_own_pause_has_skipped_stays_skipped(self, s: Backfills) -> None:
        s.add("a")
        s.add("b", parents=("a",))
        s.change("pause", "b")
        s.fire()
        s.run("a")
        assert s.outcomes("b") == ["paused"]
        s.change("resume", "b")
        assert s.step(s.begin(first=0, last=0)).progress.counts == {Outcome.ALREADY_FIRED: 1}
        assert s.outcomes("b") == ["paused"]

    def test_times_whose_rows_were_deleted_do_not_run(self, s: Backfills) -> None:
        s.add("a")
        for minute in (75, 149):  # more at once would share a row
            s.at(minute)
            s.fire()
        s.at(1_000_000)
        (forgotten,) = s.group(ops.ForgetFires("", s.now_us))
        assert forgotten.number == 50
        ended = s.step(s.begin(first=0, last=149))
        assert ended.progress.counts == {Outcome.FORGOTTEN: 50, Outcome.ALREADY_FIRED: 2, Outcome.FIRED: 98}
        assert s.step(s.begin(first=0, last=149)).progress.counts == {Outcome.FORGOTTEN: 50, Outcome.ALREADY_FIRED: 100}

    def test_times_of_a_range_run_and_leave_the_others_skipped(self, s: Backfills) -> None:
        s.add("a")
        s.add("b", parents=("a",))
        s.at(200)
        s.fire()
        assert (s.outcomes("a"), s.outcomes("b")) == (["misfire", "fired"], ["parent"])
        s.step(s.begin(first=0, last=1))
        s.step(s.begin(first=100, last=100))
        rows = {(row.fire_us - START) // MINUTE: row for row in s.history("a")}
        assert [at for at, row in rows.items() if row.state is FireState.FIRED] == [0, 1, 100, 200]
        assert (rows[2].reason, rows[2].until_us) == (Reason.MISFIRE, START + 199 * MINUTE)
        for job in s.claim("a"):
            s.end(job)
        children = {(row.fire_us - START) // MINUTE: row for row in s.history("b")}
        assert [at for at, row in children.items() if row.state is FireState.FIRED] == [0, 1, 100, 200]
        assert (children[2].reason, children[2].until_us) == (Reason.PARENT, START + 199 * MINUTE)

    def test_a_backfill_ends_without_its_schedule_or_its_permission(self, s: Backfills) -> None:
        s.add("a")
        refused = s.step(s.begin(), permits=False)
        assert (refused.status, refused.progress.why) == (Status.STOPPED, "its caller may not run the function 'a'")
        bulk = s.begin()
        s.change("remove", "a")
        ended = s.step(bulk)
        assert (ended.status, ended.progress.why) == (Status.STOPPED, "the schedule was removed")
        assert s.store.list() == []

    def test_a_schedule_fires_in_the_group_of_a_step(self, s: Backfills) -> None:
        s.add("a", overlap=Overlap.QUEUE)
        s.add("b")
        stepped, fired = s.group(s.stepping(s.begin()), s.firing())
        assert stepped.bulk.progress.counts == {Outcome.FIRED: 1, Outcome.WAITING: 4}
        assert all(one.won for one in fired.values())
        assert s.outcomes("a") == ["fired"] + ["waiting"] * 5
        assert s.stored("a").state.queued == 5


class TestMemory(BackfillSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = MemoryEngine([MemoryBulkSlice(), MemoryScheduleSlice()])
        return lambda: engine


class TestSqlite(BackfillSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: SqliteEngine(tmp_path / "jobs.db", slices=[SqliteBulkSlice(), SqliteScheduleSlice()])


class TestPostgres(BackfillSuite):
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: PostgresEngine(database, slices=[PostgresBulkSlice(), PostgresScheduleSlice()])

    def test_the_next_node_goes_on(self, s: Backfills) -> None:
        s.add("a")
        bulk = s.step(s.begin(), 2)
        other = s.store.beside()
        s.store.end_term(s.store.term)
        (taken,) = other.group(TakeBulk(bulk.id))
        (stepped,) = other.group(s.stepping(taken))
        assert stepped.bulk.progress.counts == {Outcome.FIRED: 5}
        assert sorted(job.state for job in other.list()) == [State.PENDING] * 5
