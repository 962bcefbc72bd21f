"""Ten thousand schedules on a fleet, and the delay until workers receive their jobs."""

from __future__ import annotations

import base64
import select
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from generator import LoadError, load
from measure import Run, Scale
from streaming import Caller, LatenessRecorder, peers

if TYPE_CHECKING:
    from postgres_fleet import Fleet

SCHEDULES = 10_000
LEAD = 8.0
"""Seconds before the first fire time at which all schedules must be stored: longer than nodes fetch ahead."""
DECLARE_TIMEOUT = 12.0
"""Seconds for the declaration."""
LATENESS_LIMIT = 20.0
"""Seconds by which the last job may be late before it counts as missed."""

wall = time.time


@dataclass(frozen=True)
class Lateness:
    """The 99th percentile of the milliseconds from a fire time until a worker has its job.

    Each schedule fires every ``interval`` seconds; the fire times are spread evenly, or are all the same. A fire time without a
    job, or with two, is an error.
    """

    interval: int
    spread: bool
    seconds: int
    quick: int

    def __call__(self, fleet: Fleet, scale: Scale) -> Run:
        seconds = scale.count(self.seconds, self.quick)
        expected = SCHEDULES * (seconds // self.interval)
        load(fleet, "e2e", jobs=300, workers=3)  # the function has run before, as in production
        with peers(fleet.ports, lambda port: LatenessRecorder(port, "bench", 2_000, wall)) as workers:
            first = self._declare(fleet, seconds)
            cpu_before = fleet.database.cpu_seconds()
            _run_until(workers, first + seconds)
            deadline = wall() + LATENESS_LIMIT
            while sum(len(worker.seen) for worker in workers) < expected and wall() < deadline:
                _run_until(workers, wall() + 0.5)
            cpu = fleet.database.cpu_seconds() - cpu_before
        seen = [one for worker in workers for one in worker.seen]
        times = Counter((payload, fire_time) for payload, fire_time, _ in seen)
        if len(times) != len(seen) or len(times) != expected:
            raise LoadError(f"{expected} fire times made {len(seen)} jobs, {len(times)} different ones")
        late = sorted(lateness for _, _, lateness in seen)
        details = {
            "fires": len(seen),
            "fires_per_s": len(seen) / seconds,
            "p50_ms": late[len(late) // 2] * 1e3,
            "p99_ms": late[len(late) * 99 // 100] * 1e3,
            "max_ms": late[-1] * 1e3,
            "min_ms": late[0] * 1e3,
            "by_node": [len(worker.seen) for worker in workers],
            "database_cpu_s": cpu,
        }
        return Run(details["p99_ms"], details)

    def _declare(self, fleet: Fleet, seconds: int) -> float:
        """Declare the schedules at the first node, and return the first fire time. Raises LoadError if that took too long."""
        first = float(int(wall() + LEAD + DECLARE_TIMEOUT))
        schedules = [
            {
                "name": f"schedule-{number}",
                "function": "bench",
                "payload": base64.b64encode(b"%d" % number).decode(),
                "every": self.interval,
                "start": (start := first + (number * self.interval / SCHEDULES if self.spread else 0)),
                "end": start + seconds - self.interval / 2,
                "misfire": "all",
            }
            for number in range(SCHEDULES)
        ]
        caller = Caller(fleet.ports[0])
        caller.call("schedules.declare", app="bench", schedules=schedules)
        caller.close()
        if wall() > first - LEAD:
            raise LoadError("the schedules were not stored in time")
        return first


def _run_until(workers: list[LatenessRecorder], until: float) -> None:
    while (left := until - wall()) > 0:
        for worker in select.select(workers, [], [], left)[0]:
            worker.receive()
