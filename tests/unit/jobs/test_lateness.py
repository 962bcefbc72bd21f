"""When jobs are overdue, and how their times change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.jobs.lateness import DueRow, Kind, base_us, is_dated, moved, overdue_since, redated, rows_of, timed
from mainspring.jobs.model import RUNS, UNREADABLE_OPTIONS, Job, Options, State
from mainspring.jobs.rules import WORKER_LOST

DATED = Options(start_us=50, deadline_us=90)


def job(options: Options | None = DATED, **values: Any) -> Job:
    return Job(1, b"f", b"", created_us=10, options=options, **values)


@pytest.mark.parametrize(
    ("values", "since"),
    [
        ({"state": State.PENDING}, 50),
        ({"state": State.SCHEDULED}, 50),
        ({"state": State.LEASED}, 50),
        ({"state": State.RUNNING}, 90),
        ({"state": State.PENDING, "attempt": 1}, 90),
        ({"state": State.PENDING, "started_us": 20}, 90),
        ({"state": State.PENDING, "suspects": WORKER_LOST}, 90),
        ({"state": State.PENDING, "suspects": 1}, 50),
        ({"state": State.RUNNING, "term": RUNS}, 90),
        ({"state": State.SUCCEEDED}, 0),
        ({"state": State.FAILED}, 0),
    ],
)
def test_a_job_is_overdue_since_its_first_time_that_counts(values: dict[str, Any], since: int) -> None:
    assert overdue_since(job(**values), 100) == since
    assert overdue_since(job(**values), 49) == 0


def test_a_root_job_has_begun_with_the_first_decision_of_its_run() -> None:
    root = job(state=State.RUNNING, term=RUNS)
    assert overdue_since(root, 100, has_run=False) == 50
    assert overdue_since(root, 100, has_run=True) == 90


def test_jobs_without_times_have_no_rows() -> None:
    assert not is_dated(job(None))
    assert not is_dated(job(Options(tags=("a",))))
    assert rows_of([job(None), job(Options(timeout=3.0)), job()]) == [
        DueRow(1, Kind.START, 50),
        DueRow(1, Kind.END, 90),
    ]
    assert overdue_since(job(None), 100) == 0


def test_options_that_cannot_be_read_are_not_written() -> None:
    assert redated(job(UNREADABLE_OPTIONS), deadline_us=7) is None


def test_a_change_of_one_time_leaves_the_other() -> None:
    change = redated(job(), deadline_us=95)
    assert change is not None
    assert change == (Options(start_us=50, deadline_us=95), [DueRow(1, Kind.END, 95)], [])
    change = redated(job(), start_us=0)
    assert change == (Options(deadline_us=90), [], [Kind.START])
    assert redated(job(), start_us=50, deadline_us=90) is None
    assert redated(job(None)) is None


@given(by_us=st.integers(-40, 10**15), now_us=st.integers(0, 10**15))
def test_a_move_keeps_the_distance_between_both_times(by_us: int, now_us: int) -> None:
    change = moved(job(), by_us, now_us)
    if change is None:
        assert by_us == 0
        return
    options = change.options
    assert (options.start_us - 50, options.deadline_us - 90) == (by_us, by_us)
    assert {row.kind for row in change.rows} == {
        kind for kind, at in ((Kind.START, 50), (Kind.END, 90)) if at > now_us or at + by_us > now_us
    }


def test_the_start_of_a_job_that_has_begun_does_not_move() -> None:
    change = moved(job(attempt=1), 5, 0)
    assert change is not None
    assert change.options == Options(start_us=50, deadline_us=95)


def test_given_times_are_in_place_of_moved_ones() -> None:
    change = moved(job(), 5, 1000, deadline_us=70)
    assert change is not None
    assert change == (Options(start_us=55, deadline_us=70), [DueRow(1, Kind.END, 70)], [])
    change = moved(job(), 5, 0, start_us=0, deadline_us=90)
    assert change is not None
    assert change == (Options(deadline_us=90), [], [Kind.START])
    assert moved(job(None), 5, 0) is None
    change = moved(job(None), 0, 0, start_us=7)
    assert change is not None
    assert change.rows == [DueRow(1, Kind.START, 7)]


def test_times_count_from_the_due_time() -> None:
    assert base_us(job()) == 10
    assert base_us(job(due_us=30)) == 30


def test_durations_become_times() -> None:
    assert timed(Options(timeout=3.0, start_within=0.5, deadline=2.0), 100) == Options(
        timeout=3.0, start_us=500_100, deadline_us=2_000_100
    )
    assert timed(Options(deadline=2.0), 100) == Options(deadline_us=2_000_100)
    same = Options(timeout=3.0)
    assert timed(same, 100) is same
