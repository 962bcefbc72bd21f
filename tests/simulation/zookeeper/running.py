"""Runs of seeds."""

from __future__ import annotations

import asyncio
import zlib
from unittest.mock import patch

from structlog.testing import capture_logs

from mainspring.engines.zookeeper import paths
from tests.simulation.stores import SimulationError

from .loop import VirtualLoop
from .world import World

SECONDS = 12.0
BUCKETS = (4, 4, 4, len(paths.BUCKETS), 4, 4, 4, 4)
"""The buckets of successive seeds: mostly few, because a master lists all of them repeatedly, but more than one."""
REFUSED_GROUP_EVENT = "the store refused a group"
"""The log message of a node whose term ends while the outcome of a group is unknown."""


def simulate_zookeeper(*seeds: int, seconds: float = SECONDS, kind: type[World] = World) -> int:
    """Run the seeds in order. Return the number of ended jobs. Raises SimulationError."""
    settled = 0
    for seed in seeds:
        count = BUCKETS[seed % len(BUCKETS)]
        with (
            capture_logs() as logs,
            patch.object(paths, "BUCKETS", paths.BUCKETS[:count]),
            patch.object(paths, "bucket", lambda task, count=count: f"{zlib.crc32(task.encode()) % count:02x}"),
        ):
            try:
                settled += _run(seed, seconds, kind)
                for line in logs:
                    assert line["log_level"] not in {"error", "critical"} or line["event"] == REFUSED_GROUP_EVENT, line
            except Exception as error:
                raise SimulationError(f"seed {seed} of the fleet on ZooKeeper: {error!r}") from error
    return settled


def _run(seed: int, seconds: float, kind: type[World]) -> int:
    loop = VirtualLoop()
    loop.set_exception_handler(lambda _loop, what: world.failed(what.get("exception") or AssertionError(str(what))))
    world = kind(seed, loop)
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(world.run(seconds))
    finally:
        asyncio.set_event_loop(None)
        for node in world.nodes.values():
            if node is not None:
                node.kill()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()
    return world.history.settled
