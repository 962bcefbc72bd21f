"""DBOS: `python dbos_peer.py STEPS RUNS CLIENTS` runs workflows and prints one line of JSON.

A workflow has STEPS steps, each of which DBOS records before the next one begins. The clients are threads of the process that
also runs the workflows, which is DBOS's usual deployment: no request crosses a process. Its coroutines were slower than its
threads. The database is in BENCH_DSN. Runs in the environment of requirements.txt.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS
from peer import print_figures

WARM_UP_RUNS = 20

DBOS(
    config={
        "name": "bench",
        "system_database_url": os.environ["BENCH_DSN"],
        "log_level": "ERROR",
        "console_log_level": "ERROR",
        "max_executor_threads": 64,
        "enable_otlp": False,
    }
)


@DBOS.step()
def step() -> int:
    return 1


@DBOS.workflow()
def workflow(steps: int) -> int:
    return sum(step() for _ in range(steps))


def run_all(steps: int, runs: int, clients: int) -> float:
    """Run workflows, at most one per client at a time, and return the seconds."""
    numbers = itertools.count()

    def client(_: int) -> None:
        while next(numbers) < runs:
            assert workflow(steps) == steps, "a workflow has a wrong result"

    with ThreadPoolExecutor(clients) as threads:
        started_at = time.perf_counter()
        list(threads.map(client, range(clients)))
        return time.perf_counter() - started_at


def main() -> None:
    steps, runs, clients = map(int, sys.argv[1:])
    DBOS.launch()
    run_all(steps, WARM_UP_RUNS, clients)
    print_figures(runs, run_all(steps, runs, clients))
    sys.stdout.flush()
    os._exit(0)  # DBOS waits for its threads, up to a minute


if __name__ == "__main__":
    main()
