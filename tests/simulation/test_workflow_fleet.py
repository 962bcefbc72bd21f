"""Random but reproducible runs of a fleet with workflows: `simulate_flow_fleet([seed])` repeats a seed.

Nodes share a store in memory. They are killed, frozen, cut off from the store and removed, and each goes on with the runs of the
others; workers and clients connect to any of them. At the end of each seed every run must have ended with the result that its
recorded results give.
"""

from __future__ import annotations

import pytest

from .workflows.fleet import ChainFleetWorld, ChildFleetWorld, FlowFleetWorld
from .workflows.fleet_running import simulate_flow_fleet

KINDS = [FlowFleetWorld, ChainFleetWorld, ChildFleetWorld]


@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_a_fleet_end_as_they_must(kind: type[FlowFleetWorld]) -> None:
    assert simulate_flow_fleet(range(8), kind=kind) > 60


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(1000, 1200, 100))
def test_runs_of_a_fleet_end_as_they_must_in_many_seeds(kind: type[FlowFleetWorld], first: int) -> None:
    simulate_flow_fleet(range(first, first + 100), kind=kind)
