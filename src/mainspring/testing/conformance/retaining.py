"""How long the histories of schedules stay: what goes, and that nothing of it ever comes again."""

# ruff: noqa: D102 - the tests' names say it
from __future__ import annotations

from mainspring.schedules import store as ops
from mainspring.schedules.model import FireState, Reason
from mainspring.schedules.retention import MIN_ROWS, NAMES_PER_STEP
from mainspring.testing.conformance.scheduling import MINUTE, START, OfSchedules, Scheduling, at

MORE = 50
"""So many rows a schedule has beyond those that stay in any case."""
ALL = MIN_ROWS + MORE


def forget(s: Scheduling, before: float, after: str = "", limit: int = 1000) -> ops.Forgotten:
    """Drop what ended before some minutes after the start."""
    before_us = START + round(before * MINUTE)
    (outcome,) = s.group(ops.ForgetFires(after, before_us, limit))
    assert isinstance(outcome, ops.Forgotten)
    return outcome


def minutes(s: Scheduling, name: str) -> list[float]:
    """Return the fire times of which a schedule has rows, in minutes after the start."""
    return [(row.fire_us - START) / MINUTE for row in s.history(name)]


def skipping(s: Scheduling, *names: str) -> None:
    """Let schedules have a row for each minute: none has run."""
    for name in names:
        s.add(name, misfire="skip", misfire_after=0.0)
    s.at(ALL - 0.5)
    s.fire()


def running(s: Scheduling, name: str, *unfinished: int) -> None:
    """Let the jobs of a schedule run, all but those of some minutes."""
    for job in s.claim(name):
        assert job.options is not None
        if (job.options.fire_us - START) // MINUTE not in unfinished:
            s.end(job)


class RetentionSuite(OfSchedules):
    """The contract of ``ForgetFires``."""

    # ---- what goes ----

    def test_old_rows_go_and_the_newest_of_each_schedule_stay(self, s: Scheduling) -> None:
        skipping(s, "a", "b")
        s.at(10_000)
        before = s.history("a")
        assert forget(s, 9_000) == (2 * MORE, None)
        assert s.history("a") == before[MORE:]
        assert minutes(s, "b") == list(range(MORE, ALL))
        assert forget(s, 9_000) == (0, None)
        assert s.stored("a").state.version == 2, "what nodes know of it is right"

    def test_rows_of_removed_schedules_go_too(self, s: Scheduling) -> None:
        skipping(s, "a")
        s.change("remove", "a")
        assert forget(s, 9_000) == (MORE, None)
        assert len(minutes(s, "a")) == MIN_ROWS

    def test_what_has_ended_since_stays(self, s: Scheduling) -> None:
        s.add("a", misfire="all")
        s.at(20.5)
        s.fire()
        s.at(ALL - 0.5)
        running(s, "a")
        s.fire()
        assert forget(s, 10) == (0, None), "their times have come, and they have ended later"
        s.at(10_000)
        running(s, "a")
        assert forget(s, ALL) == (21, None)
        assert forget(s, 10_001) == (MORE - 21, None)

    def test_some_go_at_a_time(self, s: Scheduling) -> None:
        skipping(s, "a", "b", "c")
        assert forget(s, -1, limit=30) == (0, None), "what is not old takes nobody's turn"
        assert forget(s, 9_000, limit=30) == (30, "")
        assert forget(s, 9_000, limit=30) == (30, "a"), "20 of the first, and 10 of the second"
        assert [len(minutes(s, name)) for name in "abc"] == [MIN_ROWS, MIN_ROWS + MORE - 10, ALL]
        assert forget(s, 9_000, "a", limit=30) == (30, "a")
        assert forget(s, 9_000, "a", limit=30) == (30, "b")
        assert forget(s, 9_000, "b", limit=30) == (30, "b")
        assert forget(s, 9_000, "b", limit=30) == (0, None)

    def test_what_has_to_stay_does_not_keep_the_others(self, s: Scheduling) -> None:
        s.add("a", misfire="all")
        skipping(s, "b")
        running(s, "a", 0)
        assert forget(s, 9_000, limit=30) == (0, "a")
        assert forget(s, 9_000, "a", limit=100) == (MORE, None)

    def test_all_schedules_are_gone_through(self, s: Scheduling) -> None:
        names = [f"{number:04}" for number in range(NAMES_PER_STEP + 5)]
        for name in names:
            s.add(name)
        s.fire()
        assert forget(s, 9_000) == (0, names[NAMES_PER_STEP - 1])
        assert forget(s, 9_000, names[NAMES_PER_STEP - 1]) == (0, None)

    # ---- what stays ----

    def test_rows_from_the_first_unfinished_one_on_stay(self, s: Scheduling) -> None:
        s.add("a", misfire="all")
        s.at(ALL - 0.5)
        s.fire()
        running(s, "a", 7)
        assert forget(s, 9_000) == (7, None)
        assert minutes(s, "a")[0] == 7

    def test_rows_stay_for_what_a_parent_has_not_finished(self, s: Scheduling) -> None:
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

    def test_rows_stay_for_what_is_due(self, s: Scheduling) -> None:
        skipping(s, "a")
        s.change("remove", "a")
        s.add("a", trigger=at(5))
        assert forget(s, 9_000) == (5, None)
        before = s.history("a")
        s.fire()
        assert s.history("a") == before

    # ---- nothing comes again ----

    def test_a_time_that_was_forgotten_does_not_come_again(self, s: Scheduling) -> None:
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
        assert s.told("a")[-1] == "fired"

    def test_neither_does_an_occasion_that_another_parent_brings(self, s: Scheduling) -> None:
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
