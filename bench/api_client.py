"""A client program of the Python API that prints its figures as one line of JSON.

    python api_client.py bulk|e2e|keys|results|latency JOBS      (the server is in MAINSPRING_SERVER)

`bulk`: submit_many until all jobs are acknowledged. `e2e`: the same with a worker, until the server has no job left. `keys`: the
same with one of KEYS keys for each job. `results`: as `e2e`, until every result has been fetched. `latency`: from submit to
result, one job after another.
"""

from __future__ import annotations

import itertools
import json
import resource
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from admin import connect, counts
from noop_app import app, noop

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT = 60.0
KEYS = 1000


def bulk(jobs: int) -> dict[str, Any]:
    started_at = time.perf_counter()
    accepted = len(noop.submit_many(() for _ in range(jobs)))
    seconds = time.perf_counter() - started_at
    assert accepted == jobs, f"{accepted} of {jobs} jobs were accepted"
    return {"seconds": seconds, "rate": jobs / seconds}


def e2e(jobs: int, task: Any = noop) -> dict[str, Any]:
    with connect() as server:
        started_at = time.perf_counter()
        submitted = task.submit_many(() for _ in range(jobs))
        submit_seconds = time.perf_counter() - started_at
        while counts(server, "noop").jobs:
            if time.perf_counter() - started_at > TIMEOUT:
                raise TimeoutError(f"after {TIMEOUT:.0f} s jobs are left")
            time.sleep(0.005)
        seconds = time.perf_counter() - started_at
    for job in submitted[:: max(1, jobs // 100)]:
        assert job.result(timeout=TIMEOUT) is None, "a job has no result of its own"
    return {"seconds": seconds, "rate": jobs / seconds, "submit_rate": jobs / submit_seconds}


def keys(jobs: int) -> dict[str, Any]:
    numbers = itertools.count()
    return e2e(jobs, noop.options(concurrency_key=lambda: f"k{next(numbers) % KEYS}"))


def results(jobs: int) -> dict[str, Any]:
    started_at = time.perf_counter()
    submitted = noop.submit_many(() for _ in range(jobs))
    fetched = sum(result is None for result in app.results(submitted, timeout=TIMEOUT))
    seconds = time.perf_counter() - started_at
    assert fetched == jobs, f"{fetched} of {jobs} results arrived"
    return {"seconds": seconds, "rate": jobs / seconds}


def latency(jobs: int) -> dict[str, Any]:
    for _ in range(20):
        noop.submit().result(timeout=TIMEOUT)  # connect and warm up before the clock starts
    times = []
    for _ in range(jobs):
        started_at = time.perf_counter()
        noop.submit().result(timeout=TIMEOUT)
        times.append((time.perf_counter() - started_at) * 1e3)
    percentiles = statistics.quantiles(times, n=100)
    return {"p50_ms": statistics.median(times), "p99_ms": percentiles[98], "max_ms": max(times)}


def main() -> None:
    mode, jobs = sys.argv[1], int(sys.argv[2])
    modes: dict[str, Callable[[int], dict[str, Any]]]
    modes = {"bulk": bulk, "e2e": e2e, "keys": keys, "results": results, "latency": latency}
    figures = modes[mode](jobs)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"mode": mode, "jobs": jobs, **figures, "client_cpu_s": used.ru_utime + used.ru_stime}))


if __name__ == "__main__":
    main()
