"""The cache of runs in a worker: its bounds, the order of eviction, and the deliveries of decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.worker.workflows import runs
from mainspring.worker.workflows.runs import Run, RunCache

if TYPE_CHECKING:
    from collections.abc import Sequence


class Code:
    """The part of an instance that the cache reads."""

    size = 100


LINK: Any = object()
KEY = (b"H:test:1", b"1.1.1")


def filled(cache: RunCache, number: int) -> list[Run]:
    runs = [Run(place, LINK, Code()) for place in range(number)]  # type: ignore[arg-type] # as much as it uses
    for run in runs:
        cache.add(run)
        cache.use(run)
    return runs


def evicted(cache: RunCache) -> Sequence[int]:
    numbers = []
    for run in cache.excess():
        numbers.append(run.id)
        cache.drop(run)
    return numbers


def test_the_least_recently_used_runs_are_evicted_until_the_rest_fits() -> None:
    cache = RunCache(250)
    runs = filled(cache, 4)
    cache.use(runs[0])
    assert evicted(cache) == [1, 2]
    assert [run.id for run in cache] == [3, 0]
    assert evicted(cache) == []


def test_a_run_that_grows_makes_others_leave() -> None:
    cache = RunCache(250)
    runs = filled(cache, 2)
    assert evicted(cache) == []
    runs[1].instance.size = 200
    cache.use(runs[1])
    assert evicted(cache) == [0]


def test_runs_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "CACHE_RUNS", 2)
    cache = RunCache(10_000)
    filled(cache, 3)
    assert evicted(cache) == [0]


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("key", KEY), ("reporting", True), ("settlements", [1]), ("ended", [1]), ("assigned", object())],
)
def test_a_run_in_use_stays(attribute: str, value: Any) -> None:
    cache = RunCache(0)
    runs = filled(cache, 2)
    setattr(runs[0], attribute, value)
    assert evicted(cache) == [1]


def test_dropped_runs_are_reported_once_for_each_connection() -> None:
    cache = RunCache(0)
    runs = filled(cache, 2)
    for run in (*runs, runs[0]):
        cache.drop(run)
    assert cache.take_dropped() == {LINK: [0, 1]}
    assert cache.take_dropped() == {}


def test_a_run_is_found_by_the_delivery_of_its_decision() -> None:
    cache = RunCache(10_000)
    first, second = filled(cache, 2)
    cache.hold(first, KEY)
    assert cache.decided(LINK, KEY) is first
    assert cache.decided(object(), KEY) is None  # type: ignore[arg-type] # another connection
    newer = (KEY[0], b"1.1.2")
    cache.hold(first, newer)
    assert (cache.decided(LINK, KEY), cache.decided(LINK, newer)) == (None, first)
    assert cache.release(first) == newer
    assert cache.decided(LINK, newer) is None
    assert cache.release(first) is None
    cache.hold(second, KEY)
    cache.drop(second)
    assert cache.decided(LINK, KEY) is None


def test_an_evicted_run_is_not_its_successor() -> None:
    cache = RunCache(10_000)
    (old,) = filled(cache, 1)
    cache.drop(old)
    (new,) = filled(cache, 1)
    assert old not in cache
    assert new in cache
    cache.drop(old)
    assert cache.get(LINK, 0) is new
