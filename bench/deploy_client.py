"""A client program that starts runs at a steady rate, and prints how long they took as one line of JSON.

    python deploy_client.py RATE      (the server is in MAINSPRING_SERVER)

Each line of the input begins a phase with this name, and the end of the input ends the last one. A run counts in the phase in
which it was started. The rate does not depend on how long runs take.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import threading
import time
from collections import defaultdict
from typing import Any

from deployed_app import app, deployed

TIMEOUT = 60.0


async def main(rate: float) -> None:
    phase = "start"
    over = False
    took_ms: dict[str, list[float]] = defaultdict(list)

    def read() -> None:
        nonlocal phase, over
        for line in sys.stdin:
            phase = line.strip()
        over = True

    async def run(name: str) -> None:
        started_at = time.perf_counter()
        job = await deployed.asubmit()
        assert await job.aresult(timeout=TIMEOUT) == 1
        took_ms[name].append(1000 * (time.perf_counter() - started_at))

    threading.Thread(target=read, daemon=True).start()
    due = time.perf_counter()
    async with asyncio.TaskGroup() as runs:
        while not over:
            runs.create_task(run(phase))
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
    print(json.dumps({name: figures(sorted(values)) for name, values in took_ms.items()}))
    await app.aclose()


def figures(ordered: list[float]) -> dict[str, Any]:
    return {
        "runs": len(ordered),
        "p50_ms": statistics.median(ordered),
        "p99_ms": ordered[int(len(ordered) * 0.99)],
        "max_ms": ordered[-1],
    }


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
