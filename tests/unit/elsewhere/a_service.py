"""A small HTTP service on a loopback port, which renders, and fails as a test says."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


class Asked(NamedTuple):
    """A request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def answer(status: int, value: Any = None, **headers: str) -> bytes:
    """Return the bytes of an answer with JSON."""
    body = json.dumps(value).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Service:
    """Takes each key once. ``fault`` may answer in its place, after the service has done its work."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[Asked] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.ids: dict[str, str] = {}
        """By keys."""
        self.fault: Callable[[Asked, asyncio.StreamWriter], Awaitable[bool]] | None = None
        """Returns whether it has answered."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def do(self, asked: Asked) -> bytes:
        """Do a request, and return the answer."""
        if asked.method == "POST" and asked.path == "/api/jobs":
            key = asked.headers["idempotency-key"]
            number = self.ids.setdefault(key, f"job/{len(self.ids) + 1}")
            self.jobs.setdefault(number, {"id": number, "state": "queued", "args": json.loads(asked.body)})
            return answer(201, {"id": number})
        number = asked.path.removeprefix("/api/jobs/").replace("%2F", "/")
        if number not in self.jobs:
            return answer(404, {"error": "no such job"})
        if asked.method == "DELETE":
            self.jobs[number]["state"] = "cancelled"
        return answer(200, self.jobs[number])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
            method, path, _ = lines[0].split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
            asked = Asked(method, path, headers, await reader.readexactly(int(headers["content-length"])))
            self.asked.append(asked)
            done = self.do(asked)
            if self.fault is None or not await self.fault(asked, writer):
                writer.write(done)
                await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.transport.abort() if writer.transport.is_closing() else writer.close()


@asynccontextmanager
async def serving() -> AsyncIterator[Service]:
    service = Service()
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    async with server:
        yield service


def says(*answers: bytes) -> Callable[[Asked, asyncio.StreamWriter], Awaitable[bool]]:
    """Return a fault that gives these answers, one for each request; then none."""
    left = list(answers)

    async def fault(_: Asked, writer: asyncio.StreamWriter) -> bool:
        if not left:
            return False
        writer.write(left.pop(0))
        await writer.drain()
        return True

    return fault
