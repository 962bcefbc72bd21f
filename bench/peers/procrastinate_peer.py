"""Procrastinate's no-op task: `worker` runs it, `client JOBS` submits it and prints one line of JSON, `schema` creates tables.

The database is in BENCH_DSN. Runs in the environment of requirements.txt.
"""

from __future__ import annotations

import asyncio
import os
import sys

import procrastinate
from peer import TIMEOUT, run, run_timed
from procrastinate.jobs import Status

CONCURRENCY = 32
"""It has little effect: one loop fetches jobs one by one."""
BATCH = 1_000

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_DSN"], min_size=4, max_size=CONCURRENCY + 4)
)


@app.task(name="noop")
async def noop() -> None:
    """Do nothing."""


async def schema() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def worker() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY)


async def client(jobs: int) -> None:
    async with app.open_async():
        await submit(1)
        await await_completion()  # the worker is running
        await run_timed(jobs, submit, await_completion)
        done = await app.job_manager.list_jobs_async(status=Status.SUCCEEDED.value)
        assert len([*done]) == jobs + 1, "a job is missing"


async def submit(jobs: int) -> None:
    while jobs > 0:
        await noop.batch_defer_async(*[{} for _ in range(min(jobs, BATCH))])
        jobs -= BATCH


async def await_completion() -> None:
    query = "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing')) AS unfinished"
    async with asyncio.timeout(TIMEOUT):
        while (await app.connector.execute_query_one_async(query))["unfinished"]:  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    run(sys.argv[1:], schema=schema, worker=worker, client=client)
