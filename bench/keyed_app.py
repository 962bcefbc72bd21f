"""An App whose tasks of one key run one at a time: ``python keyed_app.py JOBS KEYS`` submits jobs and awaits their results.

It prints its figures as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from mainspring import App

app = App()  # the servers are in MAINSPRING_SERVER
TIMEOUT = 120.0
SECONDS = 0.1


@app.task(concurrency_per_key=1)
async def nap(number: int) -> int:
    """Run for a tenth of a second."""
    await asyncio.sleep(SECONDS)
    return number


def main(jobs: int, keys: int) -> None:
    """Submit the jobs with the keys in turn, and print the seconds until all results are there."""
    # Jobs of another key come first, so that connections and processes are ready.
    warm_up = nap.options(concurrency_key="warm-up").submit_many(range(2))
    assert sum(1 for _ in app.results(warm_up, timeout=TIMEOUT)) == 2
    begun = time.perf_counter()
    numbers = iter(range(jobs))
    submitted = nap.options(concurrency_key=lambda _: f"k{next(numbers) % keys}").submit_many(range(jobs))
    assert sum(1 for _ in app.results(submitted, timeout=TIMEOUT)) == jobs
    seconds = time.perf_counter() - begun
    print(json.dumps({"jobs": jobs, "keys": keys, "seconds": seconds, "least_seconds": -(-jobs // keys) * SECONDS}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
