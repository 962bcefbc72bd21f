from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from mainspring.faces.gearman.peer_io import Outstanding

if TYPE_CHECKING:
    from random import Random

waiting = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 1200)), max_size=30)


@given(waiting, st.randoms(use_true_random=False))
def test_pressure_lasts_from_above_a_limit_until_at_most_half_of_both_is_left(
    waiting: list[tuple[int, int]], order: Random
) -> None:
    """Compare the counter with a plain description, for requests in any order."""
    signals: list[bool] = []
    outstanding = Outstanding(10, 1000, signals.append)
    there: list[tuple[int, int]] = []
    presses = False
    for arriving in [*waiting, *[None] * len(waiting)]:
        come = arriving is not None and (not there or order.random() < 0.7)
        if come:
            assert arriving is not None
            there.append(arriving)
            outstanding.add(*arriving)
        elif there:
            outstanding.remove(*there.pop(0))
        number, size = sum(number for number, _ in there), sum(size for _, size in there)
        if number > 10 or size > 1000:
            presses = presses or come
        elif number <= 5 and size <= 500:
            presses = False
        assert (signals or [False])[-1] is presses
    assert signals == [number % 2 == 0 for number in range(len(signals))], "each change is signalled once"


def test_pressure_begins_only_above_the_limits() -> None:
    signals: list[bool] = []
    outstanding = Outstanding(2, 100, signals.append)
    outstanding.add(2, 100)
    assert signals == []
    outstanding.add(0, 1)
    assert signals == [True]
    outstanding.remove(1, 50)
    assert signals == [True]
    outstanding.remove(0, 1)
    assert signals == [True, False]
    outstanding.add(2, 0)
    assert signals == [True, False, True]
