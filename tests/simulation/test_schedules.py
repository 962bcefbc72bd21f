"""Random runs of a fleet's schedules with faults of every kind: `simulate_schedules(seed)` repeats a failed seed."""

from __future__ import annotations

import pytest

from .schedules.running import simulate_schedules

CHUNK = 10


@pytest.mark.parametrize("first", range(0, 30, CHUNK))
def test_each_fire_time_of_a_fleet_is_decided_once(first: int) -> None:
    assert simulate_schedules(*range(first, first + CHUNK)) > CHUNK


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 21000, 1000))
def test_each_fire_time_of_a_fleet_is_decided_once_in_many_runs(first: int) -> None:
    simulate_schedules(*range(first, first + 1000))
