"""Runs of seeds of fleets with workflows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from unittest.mock import patch

from structlog.testing import capture_logs

from mainspring.worker.loop_watch import Watchdog
from mainspring.workflows import outbox, tables
from tests.simulation.stores import SimulationError

from .fleet import FlowFleetWorld

if TYPE_CHECKING:
    from collections.abc import Iterable

STEPS = 700


def simulate_flow_fleet(
    seeds: Iterable[int], *, steps: int = STEPS, kind: type[FlowFleetWorld] = FlowFleetWorld
) -> int:
    """Run the seeds in order; return the number of runs that have ended. Raises SimulationError."""
    ended = 0
    before = random.getstate()
    try:
        for seed in seeds:
            random.seed(seed)  # the backoff of steps
            with (
                capture_logs(),
                patch.object(Watchdog, "start", lambda _: None),
                patch.object(tables, "MIN_BYTES", 300),
                patch.object(outbox, "MOST", 2),
            ):
                world = None
                try:
                    world = kind(seed)
                    world.run(steps)
                except Exception as error:
                    raise SimulationError(f"seed {seed} of the fleet with workflows: {error!r}") from error
                finally:
                    for host in () if world is None else world.hosts:
                        host.kill()
                ended += len(world.accounts.runs)
    finally:
        random.setstate(before)
    return ended
