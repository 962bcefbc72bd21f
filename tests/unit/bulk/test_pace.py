from __future__ import annotations

from mainspring.bulk.model import LARGEST_STEP
from mainspring.bulk.pace import FIRST_SIZE, LONGEST, SHARE, SHORTEST, SMALLEST_SIZE, Pace, Pause


def test_short_steps_grow_and_long_steps_shrink() -> None:
    pace = Pace()
    assert pace.size == FIRST_SIZE
    for _ in range(100):
        pace.after(pace.size, SHORTEST / 2, SHORTEST)
    assert pace.size == LARGEST_STEP
    pace.after(pace.size, SHORTEST * 2, SHORTEST * 2)
    assert pace.size == LARGEST_STEP // 2
    for _ in range(100):
        pace.after(pace.size, 1.0, 1.0)
    assert pace.size == SMALLEST_SIZE


def test_steps_are_longer_where_commits_are_slow() -> None:
    pace = Pace()
    rest = 4 * SHORTEST
    extension = rest * SHARE
    pace.after(pace.size, extension, extension + rest)
    assert pace.size > FIRST_SIZE
    for _ in range(100):
        pace.after(pace.size, LONGEST * 1.01, 60.0)
    assert pace.size == SMALLEST_SIZE


def test_a_step_that_is_not_full_does_not_grow() -> None:
    pace = Pace()
    pace.after(1, 0.0001, 0.0002)
    assert pace.size == FIRST_SIZE


def test_half_of_the_time_belongs_to_other_work() -> None:
    assert Pace().after(10, 0.02, 0.03) == Pause(0.02, 0)


def test_a_rate_limits_steps_and_sets_pauses() -> None:
    pace = Pace(rate=5)
    assert pace.size == 5
    assert pace.after(5, 0.25, 0.25) == Pause(0.25, 0.75)
    assert Pace(rate=0.5).size == 1
    assert Pace(rate=0.5).after(1, 0.0, 0.0).own == 2
