"""Scheduled and manual fire times: their rows and their jobs."""

from __future__ import annotations

from mainspring.features import Feature
from mainspring.jobs.model import Retry, State
from mainspring.jobs.rules import Event
from mainspring.schedules import store as ops
from mainspring.schedules.model import Cause, Every, FireState, Overlap, Reason
from tests.conformance.suite.driver import NO_LIMIT
from tests.conformance.suite.scheduling import MINUTE, SECOND, START, Scheduling, at, named


class Firing:
    """Tests of fire times and their jobs."""

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
        assert s.lifecycle.committed == [job.id] == [row.job]
        assert (job.payload, job.priority, job.input_size) == (b"payload", 0, 7)
        assert (job.due_us, job.created_us) == (row.fire_us, s.now_us)
        assert job.expires_us == row.fire_us + 30 * SECOND
        assert job.options is not None
        assert (job.options.retry, job.options.timeout) == (retry, 2.0)
        assert (job.options.schedule, job.options.fire_us) == ("a", START + MINUTE)
        s.end(job)
        assert s.outcomes("a") == ["misfire", "succeeded"]

    def test_the_second_group_decides_nothing(self, s: Scheduling) -> None:
        s.add("a")
        s.add("b")
        first, second = s.firing(), s.firing("a")
        won, lost = s.group(first, second)
        assert (won["a"].won, lost["a"].won) == (True, False)
        assert won["a"].stored == lost["a"].stored == s.stored("a")
        (released,) = s.group(s.firing(), ops.FindDue(s.now_us))[:1]
        assert released == {}
        (late,) = s.group(ops.FireSchedules(second.due, s.now_us + MINUTE))
        assert not late["a"].won
        assert (len(s.history("a")), len(s.history("b"))) == (1, 1)
        assert len(s.claim("a")) == 1

    def test_an_operation_notes_the_number_of_its_fires(self, s: Scheduling) -> None:
        s.add("a", misfire="all")
        s.add("b")
        s.at(2)
        before = 0
        for _ in range(2):
            operation = s.firing(limit=2)
            s.group(operation)
            rows = len(s.history("a")) + len(s.history("b"))
            assert operation.fires == rows - before > 0
            assert operation.seconds >= 0
            before = rows

    def test_a_schedule_named_twice_is_decided_once(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.QUEUE, misfire="all")
        s.at(1)
        operation = s.firing()
        operation.due *= 2
        (fired,) = s.group(operation)
        assert fired == {"a": ops.Fired(won=True, stored=s.stored("a"))}
        assert s.outcomes("a") == ["fired", "waiting"]
        assert s.stored("a").state.queued == 1

    def test_a_schedule_that_is_gone_fires_no_more(self, s: Scheduling) -> None:
        s.add("a")
        operation = s.firing()
        s.change("remove", "a")
        (fired,) = s.group(operation)
        assert fired == {"a": ops.Fired(won=False, stored=None)}
        assert s.history("a") == []

    def test_many_missed_times_share_a_row(self, s: Scheduling) -> None:
        s.add("a", misfire=2)
        s.add("b", parents=("a",))
        s.add("c", parents=("a", "b"))
        s.add("x", trigger=Every(MINUTE * 2), misfire="skip")
        s.add("both", parents=("c", "x"))
        s.add("lone", misfire="skip", trigger=Every(SECOND))
        s.at(300)
        s.fire("lone")
        (missed, *_), ranges = s.history("lone"), [row for row in s.history("lone") if row.until_us]
        assert ranges == [missed]
        assert (missed.fire_us, missed.state, missed.reason) == (START, FireState.SKIPPED, Reason.MISFIRE)
        assert missed.until_us == s.now_us - 2 * SECOND
        s.fire()
        assert len(s.history("a")) == 301, "a child waits for two roots: it needs each time"
        assert s.outcomes("both")[:149] == ["parent"] * 149
        s.change("remove", "both")
        s.at(600)
        s.fire()
        rows = [row for row in s.history("a") if row.until_us]
        assert [(row.fire_us, row.until_us) for row in rows] == [(START + 301 * MINUTE, START + 598 * MINUTE)]
        for name in ("b", "c"):
            (row,) = (one for one in s.history(name) if one.until_us)
            assert (row.fire_us, row.until_us, row.reason) == (rows[0].fire_us, rows[0].until_us, Reason.PARENT)
        assert s.outcomes("a")[-3:] == ["misfire", "fired", "fired"]
        assert s.due().due == []

    def test_due_schedules_are_found_in_order(self, s: Scheduling) -> None:
        for name, minute in (("a", 5), ("b", 1), ("c", 3)):
            s.add(name, trigger=at(minute))
        s.add("child", parents=("a",))

        assert s.due(START - 1) == ops.Upcoming([], START + MINUTE)
        assert s.due(START + 3 * MINUTE).next_us == START + 5 * MINUTE
        assert names(s.due(START + 3 * MINUTE)) == ["b", "c"]
        assert names(s.due(START + 9 * MINUTE)) == ["b", "c", "a"]
        assert s.due(START + 9 * MINUTE).next_us is None
        assert names(s.due(START + 9 * MINUTE, limit=1)) == ["b"]
        assert s.due(START + 9 * MINUTE, limit=1).next_us == START + 3 * MINUTE

    def test_many_due_schedules_of_a_namespace_hide_those_of_no_other(self, s: Scheduling) -> None:
        if Feature.NAMESPACES in s.store.engine.lacks:
            return  # there is one namespace
        for number in range(6):
            s.add(f"loud\x1f{number}", trigger=at(1))
        for name in ("late", "quiet\x1fa", "quiet\x1fb"):
            s.add(name, trigger=at(2))
        found = s.due(START + 4 * MINUTE, limit=4)
        assert names(found) == ["loud\x1f0", "loud\x1f1", "loud\x1f2", "loud\x1f3", "late"]
        assert found.next_us == START + MINUTE
        assert names(s.due(START + 4 * MINUTE, limit=8))[-2:] == ["quiet\x1fa", "quiet\x1fb"]

    def test_a_long_gap_is_worked_off_in_steps(self, s: Scheduling) -> None:
        s.add("a", misfire=3)
        s.at(10)
        steps = 0
        while (operation := s.firing("a", limit=4)).due:
            (fired,) = s.group(operation)
            steps += 1
            assert fired["a"].more == (steps < 3)
        assert steps == 3
        assert s.outcomes("a") == ["misfire"] * 8 + ["fired"] * 3
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
        assert s.outcomes("a") == ["succeeded", "succeeded"]
        assert s.history("a")[1].ended_us == s.now_us

    def test_a_job_of_no_schedule_is_joined_and_its_end_found(self, s: Scheduling) -> None:
        job = s.store.submitted(function=b"a", unique=b"u")
        s.add("a", unique=b"u")
        s.fire()
        (row,) = s.history("a")
        assert (row.state, row.job) == (FireState.JOINED, job.id)
        assert s.repair() == 0
        s.run("a", Event.FAIL)
        assert s.outcomes("a") == ["joined"]
        assert s.repair() == 1
        assert s.outcomes("a") == ["failed"]
        assert s.repair() == 0

    def test_a_joined_job_that_is_no_longer_kept_has_failed(self, s: Scheduling) -> None:
        s.store.submitted(function=b"a", unique=b"u")
        s.add("a", unique=b"u")
        s.fire()
        s.run("a")
        s.store.sweep(s.now_us + 1, s.now_us + 1)
        kept = s.store.list() != []  # an engine may keep it for longer
        assert s.repair() == 1
        assert s.outcomes("a") == ["succeeded" if kept else "failed"]

    def test_a_unique_that_a_job_in_memory_has_is_waited_for(self, s: Scheduling) -> None:
        s.add("a", unique=b"u")
        s.lifecycle.refused.add(b"u")
        s.fire()
        assert (s.outcomes("a"), s.claim("a")) == (["waiting"], [])
        assert s.repair() == 1
        assert s.outcomes("a") == ["waiting"]
        s.lifecycle.refused.clear()
        assert s.repair() == 1
        s.run("a")
        assert s.outcomes("a") == ["succeeded"]

    def test_a_schedule_is_run_by_hand(self, s: Scheduling) -> None:
        s.add("a", exclude=("2023-11-14",))
        s.add("b", parents=("a",))
        s.change("pause", "a")
        row = s.trigger("a")
        assert row is not None
        (stored,) = s.history("a")
        assert row == stored
        assert (row.state, row.cause, row.root, row.fire_us) == (FireState.FIRED, Cause.MANUAL, "a", START + 1)
        released = s.trigger("a")
        assert released is not None
        assert released.fire_us == START + 2
        assert s.trigger("unknown") is None
        s.store.wake(START + 2)
        for job in s.claim("a"):
            s.end(job)
        assert s.outcomes("b") == ["fired", "fired"]
        assert [row.root for row in s.history("b")] == ["a", "a"]

    def test_history_has_pages(self, s: Scheduling) -> None:
        s.add("a", misfire="all")
        s.at(9)
        s.fire()
        times = [START + minute * MINUTE for minute in range(10)]
        assert [row.fire_us for row in s.history("a")] == times
        assert [row.fire_us for row in s.history("a", limit=3)] == times[-3:]
        assert [row.fire_us for row in s.history("a", limit=3, after=times[5])] == times[2:5]
        assert s.history("unknown") == []

    def test_many_schedules_fire_in_one_group(self, s: Scheduling) -> None:
        schedule = s.add("s0")
        s.save(*(ops.Change("put", f"s{n}", 0, named(schedule, f"s{n}", function=b"s0")) for n in range(1, 300)))
        s.at(0)
        (fired,) = s.group(s.firing())
        assert len(fired) == 300
        assert all(one.won for one in fired.values())
        assert len(s.store.claim(b"s0", NO_LIMIT)) == 300


def names(upcoming: ops.Upcoming) -> list[str]:
    """Return the names of schedules that were found."""
    return [one.name for one, _ in upcoming.due]
