"""An App with work that runs elsewhere and never ends, and the client that measures the worker that watches it.

    python elsewhere_app.py JOBS SECONDS      (the server is in MAINSPRING_SERVER, the worker's process in WORKER)

The client submits the jobs, waits until all are watched, lets one period and SECONDS pass, and prints the figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from array import array
from collections import Counter
from typing import Any

import processor_time

from mainspring import App, Done, Running

app = App(name="elsewhere")  # the server is in MAINSPRING_SERVER
EVERY = 30.0
LOOK_SECONDS = 0.05
"""The time that the other system takes to answer."""
STRETCH = 3.0
"""Seconds over which looks are counted: there are hundreds of them."""
TIMEOUT = 60.0
_looks = array("d")
_PAGE = 4096


@app.external(every=EVERY)
class watched:  # noqa: N801 - the name of a task
    """Work that goes on."""

    async def submit(self, args: int, key: str) -> str:
        """Submit it."""
        del args
        return key

    async def status(self, meta: str) -> Running | Done[int]:
        """Look at it."""
        del meta
        _looks.append(time.monotonic())
        await asyncio.sleep(LOOK_SECONDS)
        return Running()

    async def cancel(self, meta: str) -> None:
        """End it."""


@app.task
def memory() -> int:
    """Return the bytes of memory that the worker uses."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - of the kernel
        return int(file.read().split()[1]) * _PAGE


@app.task
def looks(since: float) -> list[float]:
    """Return the times of looks since a time."""
    return [one for one in _looks if one >= since]


def _watched() -> int:
    call = app.connections.blocking().call
    shown = [call("workers.show", {"worker": one["id"]}) for one in call("workers.list", {})["items"]]
    return sum(one["watches"]["jobs"] for one in shown if one["watches"] is not None)


def _unevenness(times: list[float], expected: float) -> float:
    """Return by how many percent a stretch has more or fewer looks than expected, at most."""
    first = min(times)
    counts = Counter(int((one - first) // STRETCH) for one in times)
    whole = [counts[number] for number in range(max(counts))]
    return max(abs(one / (expected * STRETCH) - 1) for one in whole) * 100


def main(jobs: int, seconds: float) -> dict[str, Any]:
    """Measure, and return the figures."""
    idle = memory.submit().result(TIMEOUT)
    began = time.monotonic()
    watched.submit_many(range(jobs))
    while _watched() < jobs:
        if time.monotonic() > began + TIMEOUT:
            raise TimeoutError(f"{_watched()} of {jobs} jobs are watched")
        time.sleep(0.2)
    all_after = time.monotonic() - began
    time.sleep(EVERY + STRETCH)
    since, worker = time.monotonic(), int(os.environ["WORKER"])
    used = processor_time.seconds(worker)
    time.sleep(seconds)
    share = (processor_time.seconds(worker) - used) / seconds
    more = (memory.submit().result(TIMEOUT) - idle) / 2**20
    uneven = _unevenness(looks.submit(since).result(TIMEOUT), jobs / EVERY)
    return {
        "memory_mib": round(more, 1),
        "uneven_percent": round(uneven, 1),
        "watched_after": round(all_after, 2),
        "processor_percent": round(share * 100, 2),
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), float(sys.argv[2]))))
