"""A client program of workflows that prints its figures as one line of JSON.

    python workflow_client.py runs WORKFLOW RUNS CLIENTS      (the server is in MAINSPRING_SERVER)
    python workflow_client.py signals RUNS SECONDS
    python workflow_client.py sleepers RUNS
    python workflow_client.py timers RUNS SPREAD AWAIT
    python workflow_client.py long STEPS SECONDS
    python workflow_client.py map ITEMS
    python workflow_client.py originals RUNS
    python workflow_client.py rerun STEPS
    python workflow_client.py starts RUNS
    python workflow_client.py lists CLIENTS SECONDS INTERVAL

`runs`: concurrent clients start runs, and each awaits a result before it starts the next run. `signals`: many requests under way
send numbers to the runs in turns; then each run must return how many it has received. `sleepers`: runs that sleep for days.
`timers`: runs that sleep until times spread over SPREAD seconds, the first after all of them sleep; AWAIT is 1 to await their
ends. `long`: one run with a long history; prints a line with its handle when it sleeps.
`rerun`: a run takes a step for each of its inputs, and is rerun with one of them changed; prints the seconds from the request
to the result, and the steps that the rerun has executed.
`map`: one run maps an activity over many items. `starts`: runs that sleep for days, whose decisions are not awaited.
`originals`: runs of each kind that `workflow_fill` copies.
`lists`: clients read pages of lists with each filter, one after another, each at most every INTERVAL seconds. A list continues
where its last answer ended. With SECONDS 0, they end with the input.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import resource
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import workflow_app
from admin import connect, counts, decisions
from workflow_app import (
    FAN_OUT,
    LINKS,
    STEPS,
    app,
    broken,
    empty,
    listener,
    long,
    mapped,
    numbers,
    refused,
    sleep_long,
    sleep_until,
    totals,
)

from mainspring.client.aio import AsyncClient
from mainspring.client.environment import parse_servers

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterable, Sequence

RESULTS = {
    "empty": 0,
    "steps": STEPS,
    "steps_together": STEPS,
    "activities": STEPS,
    "fan_out": FAN_OUT,
    "chain": LINKS,
    "family": FAN_OUT,
}
WARM_UP_RUNS = 32
TIMEOUT = 120.0
REQUESTS = 256
"""Signals under way."""
SIGNALS_PER_RUN = 15_000
"""Signals that one history has room for."""
CHUNK = 5_000
"""Runs that start before the client awaits their decisions."""
SAFETY = 2.0
"""Runs may start this many times slower than in a sample, before timers are due."""
A_WEEK = 7 * 86_400.0
MARGIN = 10.0
"""Seconds between the last start of a run and the first timer, at least."""


async def runs(name: str, count: int, clients: int) -> dict[str, Any]:
    await run_all(name, WARM_UP_RUNS, clients)
    seconds = await run_all(name, count, clients)
    return {"seconds": seconds, "rate": count / seconds}


async def run_all(name: str, count: int, clients: int) -> float:
    workflow, expected = getattr(workflow_app, name), RESULTS[name]

    async def run(_: int) -> None:
        job = await workflow.asubmit()
        result = await job.aresult(timeout=TIMEOUT)
        assert result == expected, f"{job.handle} returned {result} instead of {expected}"

    started_at = time.perf_counter()
    await concurrently(run, range(count), clients)
    return time.perf_counter() - started_at


async def concurrently(call: Callable[[int], Awaitable[None]], items: Iterable[int], limit: int) -> None:
    """Await the call of each item, at most `limit` at a time."""
    left = iter(items)

    async def one() -> None:
        for item in left:
            await call(item)

    await asyncio.gather(*(one() for _ in range(limit)))


async def signals(count: int, seconds: float) -> dict[str, Any]:
    jobs = await listener.asubmit_many(() for _ in range(count))
    targets = itertools.cycle([listener.get(job.handle) for job in jobs])
    sent = 0
    started_at = time.perf_counter()
    until = started_at + seconds

    async def send(number: int) -> None:
        nonlocal sent
        await next(targets).asignal(numbers, number)
        sent += 1

    numbered = itertools.takewhile(lambda _: time.perf_counter() < until, range(count * SIGNALS_PER_RUN))
    await concurrently(send, numbered, REQUESTS)
    took = time.perf_counter() - started_at
    await concurrently(lambda index: listener.get(jobs[index].handle).asignal(numbers, -1), range(count), REQUESTS)
    received = 0
    async for result in app.aresults(jobs):
        received += result
    assert received == sent, f"{received} of {sent} signals were received"
    return {"signals": sent, "seconds": took, "rate": sent / took, "until_received_s": time.perf_counter() - started_at}


async def sleepers(count: int) -> dict[str, Any]:
    started_at = time.perf_counter()
    await start_in_chunks(sleep_long, [()] * count)
    seconds = time.perf_counter() - started_at
    return {"seconds": seconds, "rate": count / seconds}


async def start_in_chunks(workflow: Any, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Start runs and await their first decisions."""
    jobs = []
    with connect() as server:
        for first in range(0, len(calls), CHUNK):
            jobs += await workflow.asubmit_many(calls[first : first + CHUNK])
            await no_decisions(server, workflow.name)
    return jobs


async def no_decisions(server: socket.socket, name: str) -> None:
    """Wait until all runs of a workflow have decided."""
    while counts(server, decisions(name)).jobs:  # noqa: ASYNC110 - another process changes it
        await asyncio.sleep(0.005)


async def timers(count: int, spread: float, awaits: int) -> dict[str, Any]:
    sample = min(count, CHUNK)
    rate = (await sleepers(sample))["rate"] / SAFETY
    first = time.time() + count / rate + MARGIN
    jobs = await start_in_chunks(sleep_until, [(first + spread * number / count,) for number in range(count)])
    ready_at = time.time()
    assert ready_at < first, f"the last run sleeps {ready_at - first:.1f} s after the first timer"
    if awaits:
        async for result in app.aresults(jobs):
            assert result is None
    return {"first": first, "last": first + spread, "ready_at": ready_at}


async def long_run(steps: int, seconds: float) -> dict[str, Any]:
    job = await long.asubmit(steps, seconds)
    with connect() as server:
        await no_decisions(server, long.name)
    print(json.dumps({"handle": job.handle}), flush=True)
    assert await job.aresult(timeout=TIMEOUT) == steps
    return {"ended_at": time.time()}


async def map_items(count: int) -> dict[str, Any]:
    await (await mapped.asubmit(100)).aresult(timeout=TIMEOUT)
    started_at = time.perf_counter()
    job = await mapped.asubmit(count)
    assert await job.aresult(timeout=TIMEOUT) == count
    seconds = time.perf_counter() - started_at
    return {"seconds": seconds, "rate": count / seconds}


async def rerun(steps: int) -> dict[str, Any]:
    inputs = list(range(steps))
    job = await totals.asubmit(inputs)
    assert await job.aresult(timeout=TIMEOUT) == sum(inputs)
    inputs[steps // 2] += 1
    started_at = time.perf_counter()
    forked = await totals.get(job.handle).arerun(args=[inputs])
    assert forked.handle is not None
    assert await totals.get(forked.handle).aresult(timeout=TIMEOUT) == sum(inputs)
    seconds = time.perf_counter() - started_at
    client = AsyncClient(parse_servers(os.environ["MAINSPRING_SERVER"]))
    names: list[str] = []
    params: dict[str, Any] = {"key": forked.handle, "limit": 1000, "kinds": ["MarkerRecorded"]}
    while True:
        page = await client.call("workflows.history", params)
        names += [event["markerRecordedEventAttributes"]["markerName"] for event in page["items"]]
        if page["next"] is None:
            break
        params["cursor"] = page["next"]
    await client.close()
    return {"seconds": seconds, "executed": names.count("step"), "carried": names.count("carried-step")}


async def starts(count: int) -> dict[str, Any]:
    for first in range(0, count, CHUNK):
        await sleep_long.asubmit_many([()] * min(CHUNK, count - first))
    return {}


async def originals(count: int) -> dict[str, Any]:
    for workflow in (sleep_long, listener, broken):
        await start_in_chunks(workflow, [()] * count)
    await start_in_chunks(sleep_until, [(time.time() + A_WEEK,)] * count)
    await start_in_chunks(empty, [()] * count)
    await start_in_chunks(refused, [()] * count)
    return {}


FILTERS: dict[str, dict[str, Any]] = {
    "all": {},
    "open": {"open": True},
    "closed": {"closed": True},
    "type": {"type": "sleep_long"},
    "a rare type": {"type": "sleep_until"},
    "open, a rare type": {"type": "sleep_until", "open": True},
    "failed": {"status": "failed"},
    "timed out (none)": {"status": "timed_out"},
    "parked": {"parked": True},
    "stranded": {"stranded": True},
}


async def lists(clients: int, seconds: float, interval: float) -> dict[str, Any]:
    over = asyncio.Event()
    now = asyncio.get_running_loop().time
    pages: dict[str, list[float]] = {name: [] for name in FILTERS}
    found = dict.fromkeys(FILTERS, 0)
    whole = dict.fromkeys(FILTERS, 0)

    async def read(names: Sequence[str]) -> None:
        client = AsyncClient(parse_servers(os.environ["MAINSPRING_SERVER"]))
        cursors: dict[str, dict[str, str]] = {}
        for name in itertools.cycle(names):
            if over.is_set():
                break
            sent = now()
            answer = await client.call("workflows.list", FILTERS[name] | cursors.pop(name, {}))
            pages[name].append((now() - sent) * 1e3)
            found[name] += len(answer["items"])
            if answer["next"] is None:
                whole[name] += 1
            else:
                cursors[name] = {"cursor": answer["next"]}
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), max(sent + interval - now(), 0))
        await client.close()

    names = [*FILTERS]
    reading = asyncio.gather(*(read(names[number % len(names) :: clients]) for number in range(clients)))
    await (asyncio.sleep(seconds) if seconds else asyncio.to_thread(sys.stdin.read))
    over.set()
    await reading
    return {
        "lists": {
            name: {
                "pages": len(times),
                "p50_ms": statistics.median(times),
                "p99_ms": sorted(times)[len(times) * 99 // 100],
                "max_ms": max(times),
                "runs": found[name],
                "whole_lists": whole[name],
            }
            for name, times in pages.items()
            if times
        }
    }


async def main() -> None:
    mode, *arguments = sys.argv[1:]
    modes: dict[str, Callable[..., Awaitable[dict[str, Any]]]]
    modes = {
        "runs": runs,
        "signals": signals,
        "sleepers": sleepers,
        "timers": timers,
        "long": long_run,
        "map": map_items,
        "rerun": rerun,
        "starts": starts,
        "originals": originals,
        "lists": lists,
    }
    figures = await modes[mode](*map(_value, arguments))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"mode": sys.argv[1:], **figures, "client_cpu_s": used.ru_utime + used.ru_stime}))
    await app.aclose()


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    asyncio.run(main())
