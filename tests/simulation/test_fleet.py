"""Random but reproducible runs of a fleet with faults of every kind: `simulate_fleet(seed)` repeats a failed seed.

The short form has more seeds than the detection of any fault of `test_fleet_planted` needs, except those that are marked as long
or begin with a later seed; ``--long`` has 20,000 more.
"""

from __future__ import annotations

import pytest

from mainspring.jobs import dispatch

from .fleet.running import simulate_fleet
from .fleet.sessions import SessionWorld
from .fleet.world import FleetWorld

CHUNK = 20


@pytest.mark.parametrize("first", range(0, 60, CHUNK))
def test_a_fleet_keeps_all_invariants(first: int) -> None:
    assert simulate_fleet(*range(first, first + CHUNK)) > CHUNK


def test_a_fleet_keeps_all_invariants_with_functions_as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_IDLE_FUNCTIONS", 0)
    assert simulate_fleet(*range(CHUNK // 2)) > CHUNK // 2


def test_a_fleet_whose_sessions_prove_deaths_keeps_all_invariants() -> None:
    before = SessionWorld.early, SessionWorld.alive
    assert simulate_fleet(*range(2 * CHUNK), kind=SessionWorld) > CHUNK
    assert SessionWorld.early - before[0] > CHUNK, "most deaths are found early"
    assert SessionWorld.alive - before[1] > CHUNK // 2, "also of nodes that are only cut off"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [FleetWorld, SessionWorld])
@pytest.mark.parametrize("first", range(1000, 21000, 1000))
def test_a_fleet_keeps_all_invariants_in_many_runs(first: int, kind: type[FleetWorld]) -> None:
    simulate_fleet(*range(first, first + 1000), kind=kind)
