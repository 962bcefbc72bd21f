from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainspring.worker.places import Need, Places


def test_nothing_is_needed_while_a_place_is_free() -> None:
    assert Places(4, 64, running=3).need(3) is Need.NONE


def test_nothing_is_needed_while_a_task_does_not_wait() -> None:
    assert Places(4, 64, running=4).need(3) is Need.NONE
    assert Places(4, 64, running=4, extra=1).need(4) is Need.NONE


def test_one_more_place_is_needed_if_all_tasks_wait() -> None:
    assert Places(1, 64, running=1).need(1) is Need.ANOTHER
    assert Places(4, 64, running=4, extra=63).need(67) is Need.ANOTHER


def test_the_limit_is_reported() -> None:
    assert Places(4, 64, running=4, extra=64).need(68) is Need.TOO_MANY
    assert Places(4, 0, running=4).need(4) is Need.TOO_MANY


def test_no_place_opens_while_the_worker_ends() -> None:
    assert Places(1, 64, running=1, closed=True).need(1) is Need.NONE


@given(concurrency=st.integers(1, 5), most_extra=st.integers(0, 5), depth=st.integers(0, 12))
def test_nested_waits_open_places_one_by_one_up_to_the_limit(concurrency: int, most_extra: int, depth: int) -> None:
    """Each task that starts waits for the next one."""
    places = Places(concurrency, most_extra)
    started = 0
    while started < depth:
        if places.free:
            places.running += 1
        elif places.need(started) is Need.ANOTHER:
            places.extra += 1
        else:
            break
        started += 1
    assert started == min(depth, concurrency + most_extra)
    assert places.extra == max(0, started - concurrency)
