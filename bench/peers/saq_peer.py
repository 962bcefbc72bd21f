"""SAQ's no-op task on PostgreSQL: `worker` runs it, `client JOBS` submits it and prints a line of JSON, `schema` creates tables.

The database is in BENCH_DSN. Runs in the environment of requirements.txt.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import saq
from peer import TIMEOUT, run, run_timed
from saq.queue.postgres import PostgresQueue

CONCURRENCY = 10
"""SAQ's default; 32 and 64 were slower."""
SUBMITTERS = 16
"""SAQ submits jobs one by one; this number of concurrent submitters gives the highest rate."""

queue = PostgresQueue.from_url(os.environ["BENCH_DSN"], min_size=4, max_size=CONCURRENCY + 4)


async def noop(_: dict[str, Any]) -> None:
    """Do nothing."""


async def schema() -> None:
    await queue.connect()
    await queue.disconnect()


async def worker() -> None:
    await queue.connect()
    await saq.Worker(queue, functions=[("noop", noop)], concurrency=CONCURRENCY).start()


async def client(jobs: int) -> None:
    await queue.connect()
    await submit(1)
    await await_completion()  # the worker is running
    await run_timed(jobs, submit, await_completion)
    async with queue.pool.connection() as connection:
        found = await (await connection.execute("SELECT count(*) FROM saq_jobs WHERE status = 'complete'")).fetchone()
    assert found == (jobs + 1,), "a job is missing"
    await queue.disconnect()


async def submit(jobs: int) -> None:
    left = iter(range(jobs))

    async def submit_one_by_one() -> None:
        for _ in left:
            await queue.enqueue("noop")

    await asyncio.gather(*(submit_one_by_one() for _ in range(SUBMITTERS)))


async def await_completion() -> None:
    query = "SELECT EXISTS (SELECT FROM saq_jobs WHERE status NOT IN ('complete', 'failed', 'aborted'))"
    async with asyncio.timeout(TIMEOUT), queue.pool.connection() as connection:
        while (await (await connection.execute(query)).fetchone()) == (True,):  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    run(sys.argv[1:], schema=schema, worker=worker, client=client)
