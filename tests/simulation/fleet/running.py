"""Runs of seeds."""

from __future__ import annotations

from unittest.mock import patch

from structlog.testing import capture_logs

from mainspring.jobs import claiming
from tests.simulation.stores import SimulationError

from .world import FleetWorld

STEPS = 700


def simulate_fleet(*seeds: int, steps: int = STEPS, kind: type[FleetWorld] = FleetWorld) -> int:
    """Run the seeds in order, every second one with a window so small that most jobs stay in the store.

    Return the number of settled jobs. Raises SimulationError.
    """
    settled = 0
    for seed in seeds:
        with capture_logs(), patch.object(claiming, "MIN_WINDOW", 3 if seed % 2 else claiming.MIN_WINDOW):
            try:
                world = kind(seed)
                world.run(steps)
            except Exception as error:
                raise SimulationError(f"seed {seed} of the fleet: {error!r}") from error
            settled += world.history.settled
    return settled
