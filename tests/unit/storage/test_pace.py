from __future__ import annotations

from mainspring.storage.agenda import LONGEST, PAUSES, SHARE, SHORTEST, Pace, Pause, Steps

STEPS = Steps(first=8, smallest=8, largest=1000, aim=3000)


def stepped(pace: Pace, number: int, extension: float, seconds: float, *, alone: bool = False) -> Pause:
    """Take a step of so many seconds. ``alone``: the node commits nothing else before it."""
    groups = pace.groups + (not alone)
    assert pace.begin(100.0, groups) is alone
    return pace.after(number, extension, 100.0 + seconds, groups + 1)


def test_short_steps_grow_and_long_steps_shrink() -> None:
    pace = Pace(STEPS)
    assert pace.size == STEPS.first
    for _ in range(100):
        stepped(pace, pace.size, SHORTEST / 2, SHORTEST)
    assert pace.size == STEPS.largest
    stepped(pace, pace.size, SHORTEST * 2, SHORTEST * 2)
    assert pace.size == STEPS.largest // 2
    for _ in range(100):
        stepped(pace, pace.size, 1.0, 1.0)
    assert pace.size == STEPS.smallest


def test_steps_are_longer_where_commits_are_slow() -> None:
    pace = Pace(STEPS)
    rest = 4 * SHORTEST / SHARE
    for _ in range(20):
        stepped(pace, pace.size, SHORTEST * 2, SHORTEST * 2 + rest)
    assert pace.size > STEPS.first
    for _ in range(1000):
        stepped(pace, pace.size, LONGEST * 1.5, 60.0)
    assert pace.size == STEPS.smallest


def test_one_fast_commit_among_slow_ones_shortens_no_step() -> None:
    pace = Pace(STEPS)
    rest = 4 * SHORTEST / SHARE
    for _ in range(20):
        stepped(pace, pace.size, SHORTEST * 2, SHORTEST * 2 + rest)
    size = pace.size
    stepped(pace, size, SHORTEST * 2, SHORTEST * 2)
    assert pace.size >= size


def test_steps_with_high_fixed_costs_keep_a_rate() -> None:
    pace = Pace(STEPS)
    for _ in range(100):
        extension = 0.003 + 0.00001 * pace.size
        pause = stepped(pace, pace.size, extension, extension + 0.003).shared
    assert pace.size / (pause + extension + 0.003) > 0.95 * STEPS.aim
    assert pace.size < 100


def test_steps_keep_the_rate_on_a_machine_that_holds_them_up() -> None:
    pace = Pace(STEPS._replace(first=2, smallest=1, aim=1000))
    number = seconds = 0.0
    for step in range(300):
        held_up = 0.04 if step % 10 == 0 else 0.0
        size = pace.size
        pause = stepped(pace, size, 0.0003 * size + held_up, 0.0003 * size + held_up + 0.007).shared
        if step >= 100:
            number += size
            seconds += 0.0003 * size + held_up + 0.007 + pause
    assert number / seconds > 500


def test_a_step_that_is_not_full_does_not_grow() -> None:
    pace = Pace(STEPS)
    stepped(pace, 1, 0.0001, 0.0002)
    assert pace.size == STEPS.first


def test_the_last_step_of_the_jobs_that_were_read_is_small() -> None:
    pace = Pace(STEPS)
    half = STEPS.first // 2
    for left in range(1, 5 * STEPS.first):
        steps: list[int] = []
        while (rest := left - sum(steps)) > 0:
            steps.append(pace.number(rest))
        assert steps[-1] <= half
        assert max(steps) <= STEPS.first
        assert len(steps) <= left // STEPS.first + 2
    assert Pace(STEPS, rate=3).number(4) == 3


def test_a_node_without_other_work_has_half_of_its_time_left() -> None:
    assert stepped(Pace(STEPS), 10, 0.02, 0.03, alone=True) == Pause(0.02, 0)


def test_most_of_the_time_belongs_to_other_work() -> None:
    assert stepped(Pace(STEPS), 1000, 0.001, 0.002).shared == PAUSES * 0.001


def test_pauses_beside_other_work_shrink_to_keep_a_rate() -> None:
    number = 100
    pause = stepped(Pace(STEPS), number, 0.01, 0.015).shared
    assert abs(number / (pause + 0.015) - STEPS.aim) < 0.01
    assert stepped(Pace(STEPS), number, 0.04, 0.05).shared == 0.04, "but not below the length of the step"


def test_a_rate_limits_steps_and_sets_pauses() -> None:
    pace = Pace(STEPS, rate=5)
    assert pace.size == 5
    assert stepped(pace, 5, 0.25, 0.25) == Pause(0.25, 0.75)
    assert Pace(STEPS, rate=0.5).size == 1
    assert stepped(Pace(STEPS, rate=0.5), 1, 0.0, 0.0).own == 2
