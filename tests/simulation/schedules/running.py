"""Runs of seeds."""

from __future__ import annotations

from structlog.testing import capture_logs

from tests.simulation.stores import SimulationError

from .world import ScheduleWorld

STEPS = 500


def simulate_schedules(*seeds: int, steps: int = STEPS) -> int:
    """Run the seeds in order. Return the number of decided fire times. Raises SimulationError."""
    decided = 0
    for seed in seeds:
        with capture_logs():
            try:
                world = ScheduleWorld(seed)
                world.run(steps)
            except Exception as error:
                raise SimulationError(f"seed {seed} of the schedules: {error!r}") from error
            decided += sum(map(len, world.history.rows.rows.values()))
    return decided
