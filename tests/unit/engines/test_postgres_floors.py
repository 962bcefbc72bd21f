"""The rule of floors: how they rise, and when a scan is a full one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainspring.engines.postgres.claiming import LOWEST, SCAN_SHARE, SLOW_SCAN, Floor, Scans, risen


def test_full_scans_take_a_share_of_the_time() -> None:
    scans = Scans()
    now, whole, all_of_it = 0.0, 0.0, 0.0
    for _ in range(1000):
        seconds = 0.1
        if scans.whole(now):
            scans.note_cost(now, seconds)
            whole += seconds
        now += seconds
        all_of_it += seconds
    assert 0.5 / SCAN_SHARE < whole / all_of_it < 1.5 / SCAN_SHARE


def test_while_scans_are_quick_all_are_full_ones() -> None:
    scans = Scans()
    for now in range(10):
        assert scans.whole(now)
        scans.note_cost(now, SLOW_SCAN / 2)
    assert not scans.slow


places = st.integers(0, 50)


@given(
    begin=st.lists(places, min_size=3, max_size=3),
    pending=st.sets(st.tuples(st.integers(0, 2), places), max_size=30),
    limit=st.integers(1, 40),
    settled=places,
)
def test_a_floor_never_rises_above_a_pending_job(
    begin: list[int], pending: set[tuple[int, int]], limit: int, settled: int
) -> None:
    """A claim takes the jobs above its floors, in order, up to its limit; the others are not below the new floors."""
    seen = sorted(one for one in pending if one[1] >= begin[one[0]])
    taken, left = seen[:limit], seen[limit:]
    after = risen(begin, taken, settled, full=len(taken) == limit)
    assert all(place >= after[priority] for priority, place in left)
    assert all(new >= old for new, old in zip(after, begin, strict=True))
    assert all(new <= max(old, settled) for new, old in zip(after, begin, strict=True))


def test_a_forgotten_floor_is_the_lowest() -> None:
    floor = Floor(3)
    floor.places = [5, 6, 7]
    floor.lower(3, 1)
    assert floor.places == [5, 3, 7]
    floor.forget()
    assert floor.places == [LOWEST] * 3
