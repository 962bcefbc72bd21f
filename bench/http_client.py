"""A client of the HTTP API on several kept connections; run by `http_api.py`.

    python http_client.py MODE SECONDS CONNECTIONS [NUMBER]      (HTTP_ADDRESS and HTTP_TOKEN are in the environment)

The modes are ``submit`` (one job a request), ``batch`` (NUMBER jobs a request), ``get`` (a job, every NUMBER milliseconds on
each connection), ``list`` (the queries in the other arguments in turn, each search continued until a page has a job), ``pages``
(the paths in the other arguments in turn), ``drain`` (NUMBER no-op jobs until they are done) and ``paced`` (NUMBER no-op jobs a
second). It prints one line of JSON: requests, jobs, the rate in jobs or requests per second, and percentiles of the time to the
answer, of lists also for each query. Of pages, the times are those to the first byte, and it also prints the bytes of each.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

JOBS = "/api/v1/namespaces/default/jobs"
FUNCTIONS = "/api/v1/namespaces/default/functions"
MOST_ANSWERS = 20
"""Answers to one of several queries, so that a long search does not take the whole time."""
PACE = 0.01
"""Seconds between two batches of a paced load."""


class Connection:
    """One kept connection: a request at a time, with the smallest parser that serves these answers."""

    def __init__(self) -> None:
        self._head = f"Host: {os.environ['HTTP_ADDRESS']}\r\nAuthorization: Bearer {os.environ['HTTP_TOKEN']}\r\n"

    async def open(self) -> None:
        host, _, port = os.environ["HTTP_ADDRESS"].rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port), limit=1 << 24)

    async def request(self, method: str, path: str, body: bytes = b"", more: str = "") -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{method} {path} HTTP/1.1\r\n{self._head}{kind}{more}\r\n".encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        self.answered_at = asyncio.get_running_loop().time()
        place = head.index(b"content-length: ") + 16
        length = int(head[place : head.index(b"\r", place)])
        return int(head[9:12]), await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


class Load:
    """The requests of all connections, until the time is over."""

    def __init__(self, seconds: float, connections: int) -> None:
        self._seconds = seconds
        self._connections = connections
        self.times: list[float] = []
        self.jobs = 0
        self.searches = 0
        self.queries: dict[str, list[float]] = {}
        self.weights: dict[str, int] = {}

    async def run(self, mode: str, arguments: list[str]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        connections = [Connection() for _ in range(self._connections)]
        for connection in connections:
            await connection.open()
        began = loop.time()
        self._until = began + self._seconds
        await asyncio.gather(*(getattr(self, f"_{mode}")(one, at, *arguments) for at, one in enumerate(connections)))
        seconds = loop.time() - began
        for connection in connections:
            connection.close()
        return {
            **_percentiles(self.times),
            "jobs": self.jobs,
            "rate": (self.jobs or len(self.times)) / seconds,
            "searches": self.searches,
            "queries": {query: _percentiles(times) for query, times in self.queries.items()},
            "weights": self.weights,
        }

    async def _timed(self, one: Connection, *request: Any) -> bytes:
        now = asyncio.get_running_loop().time
        sent = now()
        status, body = await one.request(*request)
        self.times.append(now() - sent)
        if status >= 300:
            raise SystemExit(f"{status}: {body.decode()}")
        return body

    def _is_over(self) -> bool:
        return asyncio.get_running_loop().time() >= self._until

    async def _submit(self, one: Connection, number: int) -> None:
        body = json.dumps({"function": "f", "args": [number, "12 bytes"]}).encode()
        while not self._is_over():
            await self._timed(one, "POST", JOBS, body)
            self.jobs += 1

    async def _batch(self, one: Connection, number: int, size: str) -> None:
        body = json.dumps([{"function": "f", "args": [number, at]} for at in range(int(size))]).encode()
        while not self._is_over():
            await self._timed(one, "POST", JOBS + "/batch", body)
            self.jobs += int(size)

    async def _get(self, one: Connection, number: int, interval_ms: str) -> None:
        del number
        status, body = await one.request("GET", f"{JOBS}?limit=100")
        assert status == 200, body
        handles = [job["handle"] for job in json.loads(body)["items"]]
        while not self._is_over():
            await self._timed(one, "GET", f"{JOBS}/{handles[len(self.times) % len(handles)]}")
            await asyncio.sleep(int(interval_ms) / 1000)

    async def _drain(self, one: Connection, _: int, jobs: str) -> None:
        for _ in range(int(jobs) // 1000):
            await self._post(one, "noop", 1000)
        while True:
            shown = json.loads((await one.request("GET", f"{FUNCTIONS}/noop"))[1])
            if not shown["waiting"] + shown["running"]:
                return
            await asyncio.sleep(0.02)

    async def _paced(self, one: Connection, _: int, rate: str) -> None:
        following = asyncio.get_running_loop().time()
        while not self._is_over():
            await self._post(one, "noop", max(int(float(rate) * PACE), 1))
            following += PACE
            await asyncio.sleep(max(following - asyncio.get_running_loop().time(), 0))

    async def _post(self, one: Connection, function: str, size: int) -> None:
        await self._timed(
            one, "POST", JOBS + "/batch", json.dumps([{"function": function, "args": []}] * size).encode()
        )
        self.jobs += size

    async def _list(self, one: Connection, number: int, interval_ms: str, *queries: str) -> None:
        at, answers, cursor = number, 0, ""
        while not self._is_over():
            query = queries[at % len(queries)]
            page = json.loads(await self._timed(one, "GET", f"{JOBS}?{query}{cursor}"))
            self.queries.setdefault(query, []).append(self.times[-1])
            answers += 1
            goes_on = page["next"] and not page["items"] and (len(queries) == 1 or answers < MOST_ANSWERS)
            cursor = f"&cursor={page['next']}" if goes_on else ""
            if not goes_on:
                answers = 0
                at += 1
                self.searches += 1
            await asyncio.sleep(int(interval_ms) / 1000)

    async def _pages(self, one: Connection, number: int, interval_ms: str, *paths: str) -> None:
        at = number
        while not self._is_over():
            path = paths[at % len(paths)]
            sent = asyncio.get_running_loop().time()
            status, body = await one.request("GET", path)
            if status != 200:
                raise SystemExit(f"{path}: {status}: {body.decode()[:500]}")
            self.times.append(one.answered_at - sent)
            self.queries.setdefault(path, []).append(self.times[-1])
            self.weights[path] = max(self.weights.get(path, 0), len(body))
            at += 1
            await asyncio.sleep(int(interval_ms) / 1000)


def _percentiles(times: list[float]) -> dict[str, Any]:
    ranked = sorted(times)
    found = {f"p{n}_ms": round(1000 * ranked[min(len(ranked) * n // 100, len(ranked) - 1)], 2) for n in (50, 99)}
    return {"requests": len(ranked), **found, "slowest_ms": round(1000 * ranked[-1], 2)}


if __name__ == "__main__":
    mode, seconds, connections, *arguments = sys.argv[1:]
    print(json.dumps(asyncio.run(Load(float(seconds), int(connections)).run(mode, arguments))))
