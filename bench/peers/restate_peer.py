"""Restate: `service PORT` runs the handlers; `client PORT STEPS RUNS CLIENTS` calls one through the server at PORT.

A call has STEPS steps, each of which the server records before the next one begins. The client prints one line of JSON. It
writes HTTP by itself: a client library would use more processor time than the call. Runs in the environment of
requirements.txt.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time

from peer import print_figures, run

WARM_UP_RUNS = 20


async def service(port: int) -> None:
    import restate
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    handlers = restate.Service("bench")

    async def step() -> int:
        return 1

    async def workflow(context, steps: int) -> int:
        return sum([await context.run_typed("step", step) for _ in range(steps)])

    workflow.__annotations__["context"] = restate.Context
    handlers.handler("workflow")(workflow)
    logging.getLogger("hypercorn").setLevel(logging.WARNING)
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    await serve(restate.app([handlers]), config)


async def client(port: int, steps: int, runs: int, clients: int) -> None:
    await run_all(port, steps, WARM_UP_RUNS, clients)
    print_figures(runs, await run_all(port, steps, runs, clients))


async def run_all(port: int, steps: int, runs: int, clients: int) -> float:
    """Call the handler, at most once per client at a time, and return the seconds."""
    numbers = iter(range(runs))
    body = b"%d" % steps
    request = (
        b"POST /bench/workflow HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )

    async def one_client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in numbers:
            writer.write(request)
            assert await read_body(reader) == body, "a call has a wrong result"
        writer.close()

    started_at = time.perf_counter()
    await asyncio.gather(*(one_client() for _ in range(clients)))
    return time.perf_counter() - started_at


async def read_body(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert head.startswith(b"HTTP/1.1 200 "), head
    assert length, head
    return await reader.readexactly(int(length[1]))


if __name__ == "__main__":
    run(sys.argv[1:], service=service, client=client)
