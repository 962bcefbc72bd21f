"""The engines of simulated nodes, and runs of seeds."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.errors import StoreError
from mainspring.jobs import claiming
from tests.postgres.server import memory_directory

from .world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mainspring.storage.engine import Engine

STEPS = 600
INLINE = 10**9
"""Rows of a group below which SQLite commits before it returns, because the simulation itself delays commits."""


@contextmanager
def memory() -> Iterator[Callable[[], Engine]]:
    """Yield a function that returns one engine for all lives of a node, as if its content were durable."""
    engine = MemoryEngine()
    yield lambda: engine


@contextmanager
def sqlite() -> Iterator[Callable[[], Engine]]:
    """Yield a function that returns a new engine on the same file for each life."""
    engines: list[SqliteEngine] = []

    def make() -> Engine:
        engines.append(SqliteEngine(Path(directory) / "jobs.db", synchronous="normal", thread_rows=INLINE))
        return engines[-1]

    with tempfile.TemporaryDirectory(prefix="mainspring-", dir=memory_directory()) as directory:
        try:
            yield make
        finally:
            for engine in engines[-1:]:
                with suppress(StoreError):
                    asyncio.run(engine.close())


STORES = {"memory": memory, "sqlite": sqlite}


class SimulationError(AssertionError):
    """A run violated an invariant; its seed reproduces the run."""


def simulate(store: str, seeds: Iterable[int], *, steps: int = STEPS) -> int:
    """Run the seeds in order, every second one with a window so small that most jobs stay in the store.

    Return the number of settled jobs. Raises SimulationError.
    """
    settled = 0
    for seed in seeds:
        with STORES[store]() as make, patch.object(claiming, "MIN_WINDOW", 3 if seed % 2 else claiming.MIN_WINDOW):
            try:
                world = World(seed, make)
                world.run(steps)
            except Exception as error:
                raise SimulationError(f"seed {seed} on {store}: {error!r}") from error
            settled += world.history.settled
    return settled
