"""What every engine with schedules has to do, as tests that it has to pass."""

# ruff: noqa: D102 - the tests' names say it
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from mainspring.errors import ConflictError, NotFoundError, StoreError, UsageError
from mainspring.jobs import store as job_ops
from mainspring.jobs.model import Priority, Retry, State
from mainspring.jobs.rules import Event
from mainspring.schedules import store as ops
from mainspring.schedules.model import Cause, FireState, Origin, Overlap, Reason
from mainspring.testing.conformance.driver import EVERYTHING, Make, Store, ignore
from mainspring.testing.conformance.scheduling import MINUTE, SECOND, START, Scheduling, at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.schedules.model import Schedule
    from mainspring.storage.engine import Engine

ENDS = [Event.SUCCEED, Event.FAIL, Event.CANCEL]


class ScheduleSuite:
    """The contract of ``mainspring.schedules.store``. After each test the content is checked as a whole."""

    @pytest.fixture
    def make(self) -> Make:
        """Return how to make an engine; a derived class says how."""
        raise NotImplementedError

    @pytest.fixture
    def s(self, make: Make) -> Iterator[Scheduling]:
        """Give a test an open store."""
        store = Store(make)
        try:
            scheduling = Scheduling(make, store)
            yield scheduling
            scheduling.check()
            store.counts()
        finally:
            store.close()

    # ---- schedules ----

    def test_a_schedule_is_stored_as_it_was_given(self, s: Scheduling) -> None:
        given = s.add(
            "a",
            args=b"\x00payload",
            timezone="Europe/Berlin",
            jitter=1.5,
            exclude=("2030-12-24",),
            misfire=7,
            overlap=Overlap.QUEUE,
            priority=int(Priority.HIGH),
            retry=Retry(max_attempts=3),
            timeout=2.0,
            unique=b"u",
            expires=60.0,
        )
        s.add("b", parents=("a",), wait_for_children=True)
        assert [stored.schedule.name for stored in s.read()] == ["a", "b"]
        assert s.stored("a").schedule == given
        state = s.stored("a").state
        assert (state.version, state.next_us, state.origin, state.paused) == (1, START, Origin.CLI, False)
        assert s.stored("b").state.next_us is None
        assert s.read("b", "unknown") == [s.stored("b")]

    def test_versions_guard_changes(self, s: Scheduling) -> None:
        schedule = s.add("a", trigger=at(5))
        for version in (None, 0):
            refused = s.save(ops.Change("put", "a", version, schedule))
            assert isinstance(refused.error, ConflictError)
        assert isinstance(s.save(ops.Change("put", "a", 2, schedule)).error, ConflictError)
        assert isinstance(s.save(ops.Change("put", "b", 1, schedule)).error, NotFoundError)
        assert isinstance(s.save(ops.Change("pause", "a", 2)).error, ConflictError)
        for kind in ("pause", "resume", "remove"):
            assert isinstance(s.change(kind, "b").error, NotFoundError)
        saved = s.save(ops.Change("put", "a", 1, schedule))
        assert saved.error is None
        assert saved.schedules["a"] == s.stored("a")
        assert s.stored("a").state.version == 2

    def test_changes_are_made_together_or_not_at_all(self, s: Scheduling) -> None:
        a = s.add("a")
        b = s.add("b")
        child = s.add("c", parents=("a",))
        refused = s.save(
            ops.Change("remove", "b"), ops.Change("put", "d", 0, _named(a, "d")), ops.Change("pause", "a", 5)
        )
        assert isinstance(refused.error, ConflictError)
        assert refused.schedules == {"a": s.stored("a"), "b": s.stored("b"), "d": None}
        # A parent that others have cannot go; together with its children it can.
        assert isinstance(s.change("remove", "a").error, UsageError)
        assert isinstance(s.save(ops.Change("put", "e", 0, _named(child, "e", parents=("x",)))).error, UsageError)
        cycle = ops.Change("put", "a", 1, _named(a, "a", trigger=None, parents=("c",)))
        assert isinstance(s.save(cycle).error, UsageError)
        assert isinstance(s.save(ops.Change("pause", "b"), ops.Change("resume", "b")).error, UsageError)
        assert [stored.schedule for stored in s.read()] == [a, b, child]
        saved = s.save(ops.Change("remove", "a"), ops.Change("remove", "c"), ops.Change("put", "d", 0, _named(a, "d")))
        assert saved.error is None
        assert [stored.schedule.name for stored in s.read()] == ["b", "d"]

    def test_two_saves_of_one_group_are_made_one_after_the_other(self, s: Scheduling) -> None:
        a, b = s.add("a"), s.add("b")
        first, second = s.group(
            s.saving(ops.Change("put", "a", 1, _named(a, "a", trigger=None, parents=("b",)))),
            s.saving(ops.Change("put", "b", 1, _named(b, "b", trigger=None, parents=("a",)))),
        )
        assert first.error is None
        assert isinstance(second.error, UsageError)

    def test_everything_is_there_after_a_new_start(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.QUEUE)
        s.add("b", parents=("a",))
        s.add("x")
        s.add("c", parents=("a", "x"))
        s.fire()
        s.at(1)
        s.fire("a")
        s.run("x")
        s.declare("app", b"1")
        before = (s.read(), s.history("a"), s.told("a"), s.due(START + MINUTE * 9))
        s.store.reopen()
        s.store.recover()
        s.attend()
        assert (s.read(), s.history("a"), s.told("a"), s.due(START + MINUTE * 9)) == before
        assert s.declare("app", b"1")[0].deployment.first_seen_us == s.now_us
        s.run("a")
        s.run("a")
        assert s.told("a") == ["succeeded", "succeeded"]
        assert s.told("c") == ["fired"]

    def test_a_group_that_fails_leaves_nothing(self, s: Scheduling) -> None:
        s.add("a")
        s.add("b", parents=("a",))
        s.fire()
        job = s.running("a")
        s.at(1)
        before = (s.read(), s.history("a"), s.history("b"), s.store.counts())
        with self.spoiled(s.store.engine), pytest.raises(StoreError):
            s.group(
                job_ops.Settle([s.settlement(job)], ignore, ignore),
                s.saving(ops.Change("put", "new", 0, _named(s.stored("a").schedule, "new"))),
                s.firing(),
                job_ops.Submit([s.store.job(b"big", b"x" * 100_000) for _ in range(50)], ignore, ignore),
            )
        assert (s.read(), s.history("a"), s.history("b"), s.store.counts()) == before
        s.check()
        s.end(job)
        assert s.told("b") == ["fired"]

    def spoiled(self, engine: Engine) -> Any:  # noqa: ARG002
        """Return a context in which large groups fail; engines that have none are passed over."""
        pytest.skip("nothing can be spoiled in this engine")

    # ---- firing ----

    def test_a_fire_time_has_one_row_and_one_job(self, s: Scheduling) -> None:
        retry = Retry(max_attempts=3)
        s.add("a", args=b"payload", priority=0, retry=retry, timeout=2.0, expires=30.0)
        s.at(1)
        assert [(one.name, time_us) for one, time_us in s.due().due] == [("a", START)]
        fired = s.fire()["a"]
        assert fired.stored == s.stored("a")
        assert s.stored("a").state.next_us == START + 2 * MINUTE
        skipped, row = s.history("a")
        assert (skipped.fire_us, skipped.state, skipped.reason) == (START, FireState.SKIPPED, Reason.MISFIRE)
        assert (row.fire_us, row.state, row.cause) == (START + MINUTE, FireState.FIRED, Cause.TRIGGER)
        job = s.running("a")
        assert s.noted.committed == [job.id] == [row.job]
        assert (job.payload, job.priority, job.input_size) == (b"payload", 0, 7)
        assert (job.due_us, job.created_us) == (row.fire_us, s.now_us)
        assert job.expires_us == row.fire_us + 30 * SECOND
        assert job.options is not None
        assert (job.options.retry, job.options.timeout) == (retry, 2.0)
        assert (job.options.schedule, job.options.fire_us) == ("a", START + MINUTE)
        s.end(job)
        assert s.told("a") == ["misfire", "succeeded"]

    def test_whoever_is_second_decides_nothing(self, s: Scheduling) -> None:
        s.add("a")
        s.add("b")
        first, second = s.firing(), s.firing("a")
        won, lost = s.group(first, second)
        assert (won["a"].won, lost["a"].won) == (True, False)
        assert won["a"].stored == lost["a"].stored == s.stored("a")
        (again,) = s.group(s.firing(), ops.FindDue(s.now_us, ignore, ignore))[:1]
        assert again == {}
        (late,) = s.group(ops.FireSchedules(second.due, s.now_us + MINUTE, ignore, ignore))
        assert not late["a"].won
        assert (len(s.history("a")), len(s.history("b"))) == (1, 1)
        assert len(s.claim("a")) == 1

    def test_a_schedule_that_is_gone_fires_no_more(self, s: Scheduling) -> None:
        s.add("a")
        operation = s.firing()
        s.change("remove", "a")
        (fired,) = s.group(operation)
        assert fired == {"a": ops.Fired(won=False, stored=None)}
        assert s.history("a") == []

    def test_what_is_due_is_found_in_order(self, s: Scheduling) -> None:
        for name, minute in (("a", 5), ("b", 1), ("c", 3)):
            s.add(name, trigger=at(minute))
        s.add("child", parents=("a",))

        def names(upcoming: ops.Upcoming) -> list[str]:
            return [one.name for one, _ in upcoming.due]

        assert s.due(START - 1) == ops.Upcoming([], START + MINUTE)
        assert s.due(START + 3 * MINUTE).next_us == START + 5 * MINUTE
        assert names(s.due(START + 3 * MINUTE)) == ["b", "c"]
        assert names(s.due(START + 9 * MINUTE)) == ["b", "c", "a"]
        assert s.due(START + 9 * MINUTE).next_us is None
        assert names(s.due(START + 9 * MINUTE, limit=1)) == ["b"]
        assert s.due(START + 9 * MINUTE, limit=1).next_us == START + 3 * MINUTE

    def test_a_long_gap_is_worked_off_in_steps(self, s: Scheduling) -> None:
        s.add("a", misfire=3)
        s.at(10)
        steps = 0
        while (operation := s.firing("a", limit=4)).due:
            (fired,) = s.group(operation)
            steps += 1
            assert fired["a"].more == (steps < 3)
        assert steps == 3
        assert s.told("a") == ["misfire"] * 8 + ["fired"] * 3
        assert len(s.claim("a")) == 3

    def test_a_job_with_jitter_is_due_later(self, s: Scheduling) -> None:
        s.add("a", jitter=30.0)
        s.fire()
        (row,) = s.history("a")
        assert START < row.due_us <= START + 30 * SECOND
        assert s.claim("a") == []
        assert s.store.state(row.job) is State.SCHEDULED
        assert s.store.wake(row.due_us).due == {(b"a", 1): 1}
        s.run("a")

    def test_a_live_unique_is_joined(self, s: Scheduling) -> None:
        s.add("a", unique=b"u", overlap=Overlap.ALLOW)
        s.fire()
        s.at(1)
        s.fire()
        first, second = s.history("a")
        assert (second.state, second.job) == (FireState.JOINED, first.job)
        s.run("a")
        assert s.told("a") == ["succeeded", "succeeded"]
        assert s.history("a")[1].ended_us == s.now_us

    def test_a_job_of_nobodys_schedule_is_joined_and_its_end_found(self, s: Scheduling) -> None:
        job = s.store.submitted(function=b"a", unique=b"u")
        s.add("a", unique=b"u")
        s.fire()
        (row,) = s.history("a")
        assert (row.state, row.job) == (FireState.JOINED, job.id)
        assert s.mend() == 0
        s.run("a", Event.FAIL)
        assert s.told("a") == ["joined"]
        assert s.mend() == 1
        assert s.told("a") == ["failed"]
        assert s.mend() == 0

    def test_a_joined_job_that_is_no_longer_kept_has_failed(self, s: Scheduling) -> None:
        s.store.submitted(function=b"a", unique=b"u")
        s.add("a", unique=b"u")
        s.fire()
        s.run("a")
        s.store.sweep(s.now_us + 1, s.now_us + 1)
        kept = s.store.list() != []  # an engine may keep it for longer
        assert s.mend() == 1
        assert s.told("a") == ["succeeded" if kept else "failed"]

    def test_a_unique_that_the_nodes_memory_has_is_waited_for(self, s: Scheduling) -> None:
        s.add("a", unique=b"u")
        s.noted.refused.add(b"u")
        s.fire()
        assert (s.told("a"), s.claim("a")) == (["waiting"], [])
        assert s.mend() == 1
        assert s.told("a") == ["waiting"]
        s.noted.refused.clear()
        assert s.mend() == 1
        s.run("a")
        assert s.told("a") == ["succeeded"]

    # ---- how runs end ----

    @pytest.mark.parametrize("event", ENDS)
    def test_the_row_says_how_a_run_ended(self, s: Scheduling, event: Event) -> None:
        s.add("a")
        s.fire()
        job = s.running("a")
        s.now_us += 5 * SECOND
        error = b"" if event is Event.SUCCEED else b'{"type":"E","message":"m"}'
        s.end(job, event, started_us=START + 1, error=error)
        (row,) = s.history("a")
        assert (row.node, row.worker, row.attempt, row.error) == ("n1", "w", 1, error)
        assert (row.started_us, row.ended_us) == (START + 1, s.now_us)
        assert row.outcome == {Event.SUCCEED: "succeeded", Event.FAIL: "failed", Event.CANCEL: "cancelled"}[event]

    def test_a_retry_is_no_end(self, s: Scheduling) -> None:
        s.add("a")
        s.fire()
        job = s.running("a")
        s.end(job, Event.RETRY, due_us=s.now_us, ended_us=0)
        assert s.told("a") == ["fired"]
        s.store.wake(s.now_us)
        again = s.running("a")
        assert again.options == job.options
        s.end(again)
        (row,) = s.history("a")
        assert (row.outcome, row.attempt) == ("succeeded", 2)

    def test_a_waiting_job_that_is_cancelled_or_expires_ends_its_run(self, s: Scheduling) -> None:
        s.add("a", expires=10.0)
        s.add("b")
        s.fire()
        (row,) = s.history("b")
        s.store.cancel(row.job, b"{}", s.now_us + 1)
        s.store.wake(s.now_us + 11 * SECOND)
        assert (s.told("a"), s.told("b")) == (["expired"], ["cancelled"])
        (row,) = s.history("b")
        assert (row.node, row.error, row.ended_us) == ("", b"{}", s.now_us + 1)

    def test_a_lost_node_ends_no_run(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.FORBID)
        s.fire()
        job = s.running("a")
        s.store.reopen("n2")
        s.attend()
        assert s.store.recover() == 1
        s.at(1)
        s.fire()
        assert s.told("a") == ["fired", "overlap"]
        assert s.store.settle(s.settlement(job)) == {job.id}
        assert s.told("a") == ["fired", "overlap"]
        s.run("a")
        assert s.told("a") == ["succeeded", "overlap"]
        assert s.history("a")[0].node == "n2"

    def test_several_runs_end_in_one_group(self, s: Scheduling) -> None:
        names = [f"s{number}" for number in range(20)]
        for name in names:
            s.add(name, function=b"f", overlap=Overlap.QUEUE)
            s.add(f"{name}-child", parents=(name,))
        s.at(1)
        s.fire()
        jobs = s.store.claim(b"f")
        s.store.settle(*(s.settlement(job) for job in jobs))
        assert [s.told(name)[-1] for name in names] == ["succeeded"] * 20
        assert [s.told(f"{name}-child")[-1] for name in names] == ["fired"] * 20

    def test_a_settlement_and_a_fire_time_of_one_group(self, s: Scheduling) -> None:
        """What ends in a group has ended for what fires in it."""
        s.add("a", overlap=Overlap.FORBID)
        s.fire()
        job = s.running("a")
        s.at(1)
        s.group(s.firing(), job_ops.Settle([s.settlement(job)], ignore, ignore))
        assert s.told("a") == ["succeeded", "fired"]

    # ---- overlap ----

    def test_runs_overlap_where_they_may(self, s: Scheduling) -> None:
        s.add("a")
        for minute in range(3):
            s.at(minute)
            s.fire()
        assert s.told("a") == ["fired"] * 3

    def test_overlap_is_forbidden(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.FORBID)
        for minute in range(3):
            s.at(minute)
            s.fire()
            if minute == 1:
                s.run("a")
        assert s.told("a") == ["succeeded", "overlap", "fired"]

    @pytest.mark.parametrize("event", ENDS)
    def test_runs_queue(self, s: Scheduling, event: Event) -> None:
        s.add("a", overlap=Overlap.QUEUE)
        for minute in range(3):
            s.at(minute)
            s.fire()
        assert s.told("a") == ["fired", "waiting", "waiting"]
        assert s.stored("a").state.queued == 2
        s.run("a", event)
        told = {Event.SUCCEED: "succeeded", Event.FAIL: "failed", Event.CANCEL: "cancelled"}[event]
        assert s.told("a") == [told, "fired", "waiting"]
        s.run("a")
        s.run("a")
        assert s.told("a") == [told, "succeeded", "succeeded"]
        assert s.stored("a").state.queued == 0

    def test_a_job_that_expires_lets_the_next_one_start(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.QUEUE, expires=90.0)
        s.fire()
        s.at(1)
        s.fire()
        s.store.wake(START + 100 * SECOND)
        assert s.told("a") == ["expired", "fired"]

    def test_a_run_replaces_the_one_before(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.REPLACE)
        s.fire()
        job = s.running("a")
        s.at(1)
        s.fire()
        assert s.told("a") == ["fired", "waiting"]
        assert s.noted.stopped == [job.id]
        s.at(2)
        s.fire()
        assert s.told("a") == ["fired", "overlap", "waiting"]
        assert s.mend() == 0
        assert s.noted.stopped == [job.id] * 3
        assert s.claim("a") == []
        s.end(job, Event.CANCEL)
        assert s.told("a") == ["cancelled", "overlap", "fired"]
        s.run("a")

    def test_overlap_is_changed_while_rows_wait(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.QUEUE)
        s.fire()
        s.at(1)
        s.fire()
        s.put(_named(s.stored("a").schedule, "a", overlap=Overlap.ALLOW))
        s.run("a")
        assert s.mend() == 1
        s.run("a")
        assert s.told("a") == ["succeeded", "succeeded"]

    # ---- pauses, calendars, triggers by hand, removal ----

    def test_fire_times_of_a_pause_are_skipped(self, s: Scheduling) -> None:
        s.add("a")
        s.fire()
        s.now_us += 1
        s.change("pause", "a")
        before = s.stored("a")
        assert before.state.paused
        assert s.change("pause", "a").schedules["a"] == before
        s.at(1)
        s.fire()
        s.change("resume", "a")
        s.at(2)
        s.fire()
        assert s.told("a") == ["fired", "paused", "fired"]

    def test_a_schedule_is_run_by_hand(self, s: Scheduling) -> None:
        s.add("a", exclude=("2023-11-14",))
        s.add("b", parents=("a",))
        s.change("pause", "a")
        row = s.trigger("a")
        assert row is not None
        (stored,) = s.history("a")
        assert row == stored
        assert (row.state, row.cause, row.root, row.fire_us) == (FireState.FIRED, Cause.MANUAL, "a", START + 1)
        again = s.trigger("a")
        assert again is not None
        assert again.fire_us == START + 2
        assert s.trigger("unknown") is None
        s.store.wake(START + 2)
        for job in s.claim("a"):
            s.end(job)
        assert s.told("b") == ["fired", "fired"]
        assert [row.root for row in s.history("b")] == ["a", "a"]

    def test_an_edit_decides_first_what_was_due(self, s: Scheduling) -> None:
        s.add("a", misfire="all")
        s.at(2)
        s.put(_named(s.stored("a").schedule, "a", trigger=at(7)))
        assert s.told("a") == ["fired"] * 3
        assert s.stored("a").state.next_us == START + 7 * MINUTE

    def test_a_removed_schedule_keeps_its_history(self, s: Scheduling) -> None:
        schedule = s.add("a", overlap=Overlap.QUEUE)
        s.fire()
        s.at(1)
        s.fire()
        assert s.change("remove", "a").error is None
        assert s.read() == []
        assert s.told("a") == ["fired", "removed"]
        assert s.due(START + 9 * MINUTE) == ops.Upcoming([], None)
        s.run("a")
        assert s.told("a") == ["succeeded", "removed"]
        s.put(schedule)
        assert s.stored("a").state.next_us == START + MINUTE
        s.fire()
        # That time has its row already: nothing is decided twice.
        assert s.told("a") == ["succeeded", "removed"]
        assert s.stored("a").state.next_us == START + 2 * MINUTE
        s.at(2)
        s.fire()
        assert s.told("a") == ["succeeded", "removed", "fired"]

    def test_a_one_off_time_that_is_added_again_does_not_run_again(self, s: Scheduling) -> None:
        once = s.add("a", trigger=at(0), overlap=Overlap.QUEUE)
        s.fire()
        s.run("a")
        s.change("remove", "a")
        s.put(once)
        s.fire()
        assert s.told("a") == ["succeeded"]
        assert s.claim("a") == []

    def test_history_has_pages(self, s: Scheduling) -> None:
        s.add("a", misfire="all")
        s.at(9)
        s.fire()
        times = [START + minute * MINUTE for minute in range(10)]
        assert [row.fire_us for row in s.history("a")] == times
        assert [row.fire_us for row in s.history("a", limit=3)] == times[-3:]
        assert [row.fire_us for row in s.history("a", limit=3, before_us=times[5])] == times[2:5]
        assert s.history("unknown") == []

    # ---- parents ----

    def test_a_child_runs_when_its_parent_has_succeeded(self, s: Scheduling) -> None:
        s.add("a")
        s.add("b", parents=("a",), args=b"child")
        s.add("c", parents=("b",))
        s.fire()
        assert s.told("b") == []
        s.now_us += SECOND
        s.run("a")
        (row,) = s.history("b")
        assert (row.fire_us, row.cause, row.parent, row.root) == (START, Cause.PARENT, "a", "")
        job = s.running("b")
        assert job.payload == b"child"
        assert job.options is not None
        assert job.options.fire_us == START
        assert job.id in s.noted.committed
        s.end(job)
        s.run("c")
        assert s.told("c") == ["succeeded"]

    @pytest.mark.parametrize("event", [Event.FAIL, Event.CANCEL])
    def test_a_failed_parent_stops_its_children(self, s: Scheduling, event: Event) -> None:
        s.add("a")
        s.add("x")
        s.add("b", parents=("a", "x"))
        s.add("c", parents=("b",))
        s.fire()
        s.run("a", event)
        assert (s.told("b"), s.told("c")) == (["parent"], ["parent"])
        assert [row.parent for row in (*s.history("b"), *s.history("c"))] == ["a", "b"]
        s.run("x")
        assert (s.told("b"), s.told("c")) == (["parent"], ["parent"])
        assert s.claim("b") == []

    def test_a_skipped_fire_time_stops_the_children(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.FORBID)
        s.add("b", parents=("a",))
        s.at(1)
        s.fire()
        assert (s.told("a"), s.told("b")) == (["misfire", "fired"], ["parent"])

    def test_a_child_waits_for_all_its_parents(self, s: Scheduling) -> None:
        s.add("a")
        s.add("x")
        s.add("b", parents=("a", "x"))
        s.fire()
        s.run("a")
        assert s.told("b") == []
        s.run("x")
        assert [row.parent for row in s.history("b")] == ["x"]
        assert s.told("b") == ["fired"]

    def test_two_parents_that_end_in_one_group_start_their_child_once(self, s: Scheduling) -> None:
        s.add("a")
        s.add("x")
        s.add("b", parents=("a", "x"))
        s.fire()
        ends = [s.settlement(s.running(name)) for name in ("a", "x")]
        s.group(*(job_ops.Settle([end], ignore, ignore) for end in ends))
        assert s.told("b") == ["fired"]
        assert len(s.claim("b")) == 1

    def test_occasions_do_not_mix(self, s: Scheduling) -> None:
        s.add("a")
        s.add("x")
        s.add("b", parents=("a", "x"))
        for minute in range(2):
            s.at(minute)
            s.fire()
        first, second = s.claim("a")
        s.end(first)
        s.end(second)
        assert s.told("b") == []
        first, second = s.claim("x")
        s.end(second)
        assert [row.fire_us for row in s.history("b")] == [START + MINUTE]
        s.end(first)
        assert [row.fire_us for row in s.history("b")] == [START, START + MINUTE]

    def test_occasions_by_hand_do_not_mix_with_those_of_relatives(self, s: Scheduling) -> None:
        s.add("a")
        s.add("b", parents=("a",))
        s.add("c", parents=("b",))
        rows = [s.trigger(name) for name in ("b", "a", "c", "b")]  # at a fire time of a
        assert len({START, *(row.fire_us for row in rows if row is not None)}) == 5
        s.fire()
        s.now_us += 10
        s.store.wake(s.now_us)
        for name in ("a", "b", "c"):
            for job in s.claim(name):
                s.end(job)
        assert [len(s.history(name)) for name in ("a", "b", "c")] == [2, 4, 5]

    def test_a_child_has_its_own_overlap(self, s: Scheduling) -> None:
        s.add("a")
        s.add("b", parents=("a",), overlap=Overlap.QUEUE)
        s.add("c", parents=("a",), overlap=Overlap.FORBID)
        s.add("d", parents=("c",))
        for minute in range(2):
            s.at(minute)
            s.fire()
            s.run("a")
        assert (s.told("b"), s.told("c"), s.told("d")) == (["fired", "waiting"], ["fired", "overlap"], ["parent"])
        s.run("b")
        assert s.told("b") == ["succeeded", "fired"]

    def test_a_paused_child_is_skipped(self, s: Scheduling) -> None:
        s.add("a")
        s.add("b", parents=("a",))
        s.change("pause", "b")
        s.fire()
        s.run("a")
        assert s.told("b") == ["paused"]

    def test_a_run_is_finished_when_its_children_are(self, s: Scheduling) -> None:
        s.add("a", wait_for_children=True, overlap=Overlap.QUEUE)
        s.add("b", parents=("a",), wait_for_children=True)
        s.add("c", parents=("b",))
        s.add("d", parents=("a",))
        for minute in range(2):
            s.at(minute)
            s.fire()
        s.run("a")
        assert s.told("a") == ["succeeded, 2 left", "waiting"]
        s.run("d")
        s.run("b")
        assert (s.told("a")[0], s.told("b")) == ("succeeded, 1 left", ["succeeded, 1 left"])
        s.run("c")
        assert (s.told("a"), s.told("b")) == (["succeeded", "fired"], ["succeeded"])

    def test_children_that_were_stopped_are_finished(self, s: Scheduling) -> None:
        s.add("a", wait_for_children=True, overlap=Overlap.QUEUE)
        s.add("b", parents=("a",))
        for minute in range(2):
            s.at(minute)
            s.fire()
        s.run("a", Event.FAIL)
        assert (s.told("a"), s.told("b")) == (["failed", "fired"], ["parent"])

    def test_a_child_that_another_parent_stopped_before_is_not_waited_for(self, s: Scheduling) -> None:
        s.add("x", overlap=Overlap.FORBID)
        s.fire("x")
        s.add("a", wait_for_children=True, trigger=at(1))
        s.add("b", parents=("a", "x"))
        s.at(1)
        s.fire("x")
        assert s.told("b") == ["parent"]
        s.fire()
        s.run("a")
        assert s.told("a") == ["succeeded"]

    def test_a_child_that_is_removed_is_not_waited_for(self, s: Scheduling) -> None:
        s.add("a", wait_for_children=True, overlap=Overlap.QUEUE)
        s.add("b", parents=("a",))
        for minute in range(2):
            s.at(minute)
            s.fire()
        s.run("a")
        s.change("remove", "b")
        assert s.told("a") == ["succeeded, 1 left", "waiting"]
        assert s.mend() == 1
        assert s.told("a") == ["succeeded", "fired"]

    # ---- declarations ----

    def test_the_first_and_the_last_time_of_a_declaration_are_kept(self, s: Scheduling) -> None:
        def told(known: list[ops.Declared]) -> list[tuple[str, bytes, int, int]]:
            return [
                (one.deployment.app, one.deployment.digest, one.deployment.first_seen_us, one.last_seen_us)
                for one in known
            ]

        assert told(s.declare("app", b"1")) == [("app", b"1", START, START)]
        s.declare("other", b"1")
        s.at(1)
        s.declare("app", b"2")
        s.at(2)
        assert told(s.declare("app", b"1")) == [
            ("app", b"1", START, START + 2 * MINUTE),
            ("app", b"2", START + MINUTE, START + MINUTE),
        ]

    def test_what_code_declared_stays_when_somebody_edits(self, s: Scheduling) -> None:
        schedule = _named(s.add("x"), "a")
        s.save(ops.Change("put", "a", 0, schedule, Origin.CODE, "app", b"digest"))
        s.put(_named(schedule, "a", jitter=1.0))
        state = s.stored("a").state
        assert (state.origin, state.app, state.declared) == (Origin.CODE, "app", b"digest")
        s.save(ops.Change("put", "a", state.version, schedule, Origin.CODE, "app", b"new"))
        assert s.stored("a").state.declared == b"new"

    def test_many_schedules_fire_in_one_group(self, s: Scheduling) -> None:
        schedule = s.add("s0")
        s.save(*(ops.Change("put", f"s{n}", 0, _named(schedule, f"s{n}", function=b"s0")) for n in range(1, 300)))
        s.at(0)
        (fired,) = s.group(s.firing())
        assert len(fired) == 300
        assert all(one.won for one in fired.values())
        assert len(s.store.claim(b"s0", EVERYTHING)) == 300


def _named(schedule: Schedule, name: str, **fields: Any) -> Schedule:
    return replace(schedule, name=name, **fields)
