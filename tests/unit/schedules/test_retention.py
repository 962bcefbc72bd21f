from __future__ import annotations

from mainspring.schedules.model import Fire, FireState
from mainspring.schedules.unit import ripe

OLD, YOUNG = 10, 20


def row(schedule: str, fire_us: int, *, outcome: str = "succeeded", ended_us: int = OLD, left: int = 0) -> Fire:
    return Fire(
        schedule=schedule,
        fire_us=fire_us,
        state=FireState.FIRED,
        decided_us=fire_us,
        outcome=outcome,
        ended_us=ended_us,
        children_left=left,
    )


def test_rows_are_ripe_up_to_the_first_that_is_not_old() -> None:
    rows = [
        *(row("a", 1), row("a", 2), row("a", 3, ended_us=YOUNG), row("a", 4)),
        *(row("b", 1), row("b", 2, outcome="", ended_us=0), row("b", 3)),
        *(row("c", 1), row("c", 2, left=1), row("c", 3)),
        *(row("d", 1, ended_us=YOUNG), row("d", 2)),
        *(row("e", 1), row("e", YOUNG, ended_us=0), row("e", YOUNG + 1)),
    ]
    assert ripe(rows, YOUNG) == {"a": [1, 2], "b": [1], "c": [1], "e": [1]}


def test_skipped_rows_are_ripe_when_they_are_old() -> None:
    skipped = [Fire(schedule="a", fire_us=at, state=FireState.SKIPPED, decided_us=at + 5) for at in range(1, 20)]
    assert ripe(skipped, YOUNG) == {"a": list(range(1, 15))}


def test_rows_of_a_clock_that_was_ahead_keep_no_others() -> None:
    ahead = Fire(schedule="a", fire_us=1, until_us=900, state=FireState.SKIPPED, decided_us=1000)
    assert ripe([ahead, row("a", 2)], YOUNG) == {}
    assert ripe([ahead, row("a", 2)], YOUNG, now_us=YOUNG + 5) == {"a": [1, 2]}
