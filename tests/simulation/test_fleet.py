"""A fleet under every kind of trouble, by chance but repeatably: `simulate_fleet(seed)` plays a failed seed again.

The short form has more seeds than any fault of `test_fleet_planted` takes to be found, but for those that are marked as long;
``--long`` has 20,000 more.
"""

from __future__ import annotations

import pytest

from mainspring.jobs import dispatch

from .fleet.running import simulate_fleet

CHUNK = 20


@pytest.mark.parametrize("first", range(0, 140, CHUNK))
def test_no_promise_is_broken_by_a_fleet(first: int) -> None:
    assert simulate_fleet(*range(first, first + CHUNK)) > CHUNK


def test_no_promise_is_broken_where_functions_without_workers_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MANY", 0)
    assert simulate_fleet(*range(CHUNK // 2)) > CHUNK // 2


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 21000, 1000))
def test_no_promise_is_broken_by_a_fleet_for_long(first: int) -> None:
    simulate_fleet(*range(first, first + 1000))
