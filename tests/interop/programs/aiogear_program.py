# ruff: noqa: T201 - it prints its answers
"""The library `aiogear`: see README.md. It supports only text."""

from __future__ import annotations

import asyncio
import sys
import uuid
from typing import Any

import aiogear  # type: ignore[import-not-found, unused-ignore]


async def client(port: int, mode: str, jobs: list[str]) -> None:
    loop = asyncio.get_running_loop()
    for text in jobs:
        # the library matches results to jobs only by their order: one connection per job
        function, data = text.split("=")
        _, client = await loop.create_connection(aiogear.Client, "127.0.0.1", port)
        # the library would choose random bytes, which other libraries' workers refuse as invalid text
        unique = uuid.uuid4().hex
        if mode == "background":
            await client.submit_job_bg(function, bytes.fromhex(data), uuid=unique)
            print(function, "created", flush=True)
        else:
            await client.option_req("exceptions")
            created = await client.submit_job(function, bytes.fromhex(data), uuid=unique)
            outcome = await asyncio.wait_for(client.wait_job(created.handle), 20)
            match type(outcome).__name__:
                case "WorkComplete":
                    print(function, "complete", outcome.result.encode().hex(), flush=True)
                case "WorkException":
                    print(function, "exception", outcome.exception.encode().hex(), flush=True)
                case _:
                    print(function, "failed", flush=True)
        client.transport.close()


async def worker(port: int, prefix: str) -> None:
    def upper(job: Any) -> str:
        text: str = job.workload
        return text.upper()

    def boom(job: Any) -> str:
        raise ValueError("boom")

    functions = [(upper, f"{prefix}-upper"), (boom, f"{prefix}-raise")]
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: aiogear.Worker(*functions, loop=loop), "127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[2] == "worker":
        asyncio.run(worker(int(sys.argv[1]), sys.argv[3]))
    else:
        asyncio.run(client(int(sys.argv[1]), sys.argv[3], sys.argv[4:]))
