"""Retention of fire times: which rows are deleted, and that no deleted time is decided again."""

from __future__ import annotations

from mainspring.schedules import store as ops
from mainspring.schedules.model import FireState, Reason
from mainspring.schedules.unit import MIN_ROWS, NAMES_PER_STEP
from tests.conformance.suite.scheduling import MINUTE, START, ScheduleFixtures, Scheduling, at

MORE = 50
"""Rows of a schedule beyond those that always stay."""
ALL = MIN_ROWS + MORE


def forget(s: Scheduling, before: float, after: str = "", limit: int = 1000) -> ops.Forgotten:
    """Delete rows that ended before some minutes after the start."""
    before_us = START + round(before * MINUTE)
    (outcome,) = s.group(ops.ForgetFires(after, before_us, limit))
    assert isinstance(outcome, ops.Forgotten)
    return outcome


def minutes(s: Scheduling, name: str) -> list[float]:
    """Return the fire times of a schedule's rows, in minutes after the start."""
    return [(row.fire_us - START) / MINUTE for row in s.history(name)]


def skipping(s: Scheduling, *names: str) -> None:
    """Give schedules a skipped row for each minute."""
    for name in names:
        s.add(name, misfire="skip", misfire_after=0.0)
    for minute in (ALL // 2, ALL):  # more at once would share a row
        s.at(minute - 0.5)
        s.fire()


def running(s: Scheduling, name: str, *unfinished: int) -> None:
    """Run the jobs of a schedule, except those of some minutes."""
    for job in s.claim(name):
        assert job.options is not None
        if (job.options.fire_us - START) // MINUTE not in unfinished:
            s.end(job)


class RetentionSuite(ScheduleFixtures):
    """The contract of ``ForgetFires``."""

    # ---- rows that are deleted ----

    def test_old_rows_are_deleted_but_the_newest_of_each_schedule_stay(self, s: Scheduling) -> None:
        skipping(s, "a", "b")
        s.at(10_000)
        before, version = s.history("a"), s.stored("a").state.version
        assert forget(s, 9_000) == (2 * MORE, None)
        assert s.history("a") == before[MORE:]
        assert minutes(s, "b") == list(range(MORE, ALL))
        assert forget(s, 9_000) == (0, None)
        assert s.stored("a").state.version == version, "the nodes' caches stay valid"

    def test_rows_of_removed_schedules_are_deleted_too(self, s: Scheduling) -> None:
        skipping(s, "a")
        s.change("remove", "a")
        assert forget(s, 9_000) == (MORE, None)
        assert len(minutes(s, "a")) == MIN_ROWS

    def test_rows_that_ended_since_stay(self, s: Scheduling) -> None:
        s.add("a", misfire="all")
        s.at(20.5)
        s.fire()
        s.at(ALL - 0.5)
        running(s, "a")
        s.fire()
        assert forget(s, 10) == (0, None), "their fire times are old, but their ends are not"
        s.at(10_000)
        running(s, "a")
        assert forget(s, ALL) == (21, None)
        assert forget(s, 10_001) == (MORE - 21, None)

    def test_a_limited_number_is_deleted_at_a_time(self, s: Scheduling) -> None:
        skipping(s, "a", "b", "c")
        assert forget(s, -1, limit=30) == (0, None), "rows that are not old use up no limit"
        assert forget(s, 9_000, limit=30) == (30, "")
        assert forget(s, 9_000, limit=30) == (30, "a"), "20 of the first, and 10 of the second"
        assert [len(minutes(s, name)) for name in "abc"] == [MIN_ROWS, MIN_ROWS + MORE - 10, ALL]
        assert forget(s, 9_000, "a", limit=30) == (30, "a")
        assert forget(s, 9_000, "a", limit=30) == (30, "b")
        assert forget(s, 9_000, "b", limit=30) == (30, "b")
        assert forget(s, 9_000, "b", limit=30) == (0, None)

    def test_rows_that_stay_do_not_keep_those_of_others(self, s: Scheduling) -> None:
        s.add("a", misfire="all")
        skipping(s, "b")
        running(s, "a", 0)
        assert forget(s, 9_000, limit=30) == (0, "a")
        assert forget(s, 9_000, "a", limit=100) == (MORE, None)

    def test_all_schedules_are_visited(self, s: Scheduling) -> None:
        names = [f"{number:04}" for number in range(NAMES_PER_STEP + 5)]
        for name in names:
            s.add(name)
        s.fire()
        assert forget(s, 9_000) == (0, names[NAMES_PER_STEP - 1])
        assert forget(s, 9_000, names[NAMES_PER_STEP - 1]) == (0, None)

    # ---- rows that stay ----

    def test_rows_from_the_first_unfinished_one_on_stay(self, s: Scheduling) -> None:
        s.add("a", misfire="all")
        s.at(ALL - 0.5)
        s.fire()
        running(s, "a", 7)
        assert forget(s, 9_000) == (7, None)
        assert minutes(s, "a")[0] == 7

    def test_rows_stay_for_unfinished_runs_of_a_parent(self, s: Scheduling) -> None:
        s.add("a", misfire="all")
        s.add("b", parents=("a",))
        s.add("c", parents=("b",))
        s.at(ALL - 0.5)
        s.fire()
        jobs = s.claim("a")
        for job in jobs[:7] + jobs[8:]:
            s.end(job)
        running(s, "b")
        running(s, "c")
        assert forget(s, 9_000) == (3 * 7, None)
        s.end(jobs[7])
        s.run("b")
        s.run("c")
        assert len(s.history("c")) == ALL - 7
        assert minutes(s, "c")[0] == 7

    def test_rows_stay_for_due_times(self, s: Scheduling) -> None:
        skipping(s, "a")
        s.change("remove", "a")
        s.add("a", trigger=at(5))
        assert forget(s, 9_000) == (5, None)
        before = s.history("a")
        s.fire()
        assert s.history("a") == before

    # ---- no time is decided again ----

    def test_a_deleted_time_does_not_fire_again(self, s: Scheduling) -> None:
        skipping(s, "a")
        s.change("remove", "a")
        forget(s, 9_000)
        s.add("a", trigger=at(5))
        s.fire()
        row = s.history("a")[0]
        assert (row.fire_us, row.state, row.reason) == (START + 5 * MINUTE, FireState.SKIPPED, Reason.MISFIRE)
        assert s.claim("a") == []
        s.change("remove", "a")
        s.add("a", trigger=at(ALL))
        s.at(ALL)
        s.fire()
        assert s.outcomes("a")[-1] == "fired"

    def test_a_deleted_occasion_of_another_parent_does_not_fire_again(self, s: Scheduling) -> None:
        s.add("a", misfire="all")
        s.add("b", misfire="all")
        s.add("c", parents=("a",), misfire="skip")
        s.at(ALL - 0.5)
        s.fire()
        running(s, "a")
        running(s, "c")
        late = {job.options.fire_us: job for job in s.claim("b") if job.options is not None}
        assert forget(s, 9_000).number == 2 * MORE
        s.add("c", parents=("b",))
        s.end(late[START + 5 * MINUTE])
        s.end(late[START + (MORE + 1) * MINUTE])
        assert s.claim("c") == []
        row = s.history("c")[0]
        assert (row.fire_us, row.state, row.reason) == (START + 5 * MINUTE, FireState.SKIPPED, Reason.MISFIRE)
        assert minutes(s, "c") == [5, *range(MORE, ALL)]
