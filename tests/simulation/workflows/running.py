"""Runs of seeds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from unittest.mock import patch

from structlog.testing import capture_logs

from mainspring.worker.loop_watch import Watchdog
from mainspring.workflows import outbox, tables
from tests.simulation.stores import SimulationError

from .store import STORES
from .world import FlowWorld

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STEPS = 700


def simulate_flows(
    store: str, seeds: Iterable[int], *, steps: int = STEPS, chains: bool = False, kinds: Sequence[str] = ()
) -> int:
    """Run the seeds in order. Each chooses its kinds of workflows, if there are no ``kinds``.

    ``chains``: with the workflow that continues as new, and no other.

    Return the number of runs that have ended. Raises SimulationError.
    """
    ended = 0
    before = random.getstate()
    try:
        for seed in seeds:
            random.seed(seed)  # the backoff of steps
            with (
                STORES[store]() as make,
                capture_logs(),
                patch.object(Watchdog, "start", lambda _: None),
                patch.object(tables, "MIN_BYTES", 300),
                patch.object(outbox, "MOST", 2),
            ):
                try:
                    world = FlowWorld(seed, make, kinds, chains=chains)
                    world.run(steps)
                except Exception as error:
                    raise SimulationError(f"seed {seed} of the workflows on {store}: {error!r}") from error
                finally:
                    for host in world.hosts:
                        host.kill()
                ended += len(world.accounts.runs)
    finally:
        random.setstate(before)
    return ended
