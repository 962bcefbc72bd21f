"""Twenty receivers of webhooks beside one that never answers: how late their messages are."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from generator import LoadError
from http_api import Http
from measure import Cell, Run, Scale, Side

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Contestant, Server

LIVING = 20
EVENTS = 200
RATE = 10.0
"""Events a second; each is a message to all receivers."""
LIMIT = 60.0
"""Seconds after the last event by which all messages must have come."""
API = "/api/v1/namespaces/default"


def cell(
    key: str, store: str, contestant: Contestant, wrapped: Callable[[Any], Any] = lambda scenario: scenario
) -> Cell:
    """Return the cell for a store; ``wrapped`` adapts the scenario to its server."""
    served = replace(contestant, command=f"{contestant.command} --http 127.0.0.1:0 --webhook-allow 127.0.0.1")
    return Cell(
        key=key,
        measure=f"20 webhooks on {store} beside one whose receiver never answers: the latest message",
        required="1 s",
        unit="ms",
        sides=(
            Side("beside a dead one", served, wrapped(Delay(dead=1))),
            Side("alone", served, wrapped(Delay(dead=0))),
        ),
        under=1000.0,
    )


class Receivers:
    """Receivers in a thread with a loop of its own. A dead one reads, and never answers."""

    def __init__(self, living: int, dead: int) -> None:
        self.late: list[float] = []
        """Milliseconds from the time of each event to the arrival of its message, at the living ones."""
        self.held = 0
        """Messages that the dead one has had."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.ports = [self._run(self._listen(self._living)) for _ in range(living)]
        self.ports += [self._run(self._listen(self._dead)) for _ in range(dead)]

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self, handler: Any) -> int:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    async def _body(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        )
        body: dict[str, Any] = json.loads(await reader.readexactly(size))
        return body

    async def _living(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await self._body(reader)
        self.late.append((time.time() - datetime.fromisoformat(body["timestamp"]).timestamp()) * 1e3)
        writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        writer.close()

    async def _dead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._body(reader)
        self.held += 1
        await reader.read()
        writer.close()

    def close(self) -> None:
        """End the loop."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Delay:
    """The latest message to the living receivers, in milliseconds from its event, beside a number of dead ones."""

    def __init__(self, dead: int) -> None:
        self._dead = dead

    def __call__(self, server: Server, scale: Scale) -> Run:
        http, receivers = Http(server), Receivers(LIVING, self._dead)
        try:
            return self._measure(http, receivers, scale.count(EVENTS, 50))
        finally:
            receivers.close()

    def _measure(self, http: Http, receivers: Receivers, events: int) -> Run:
        for number, port in enumerate(receivers.ports):
            webhook = {"name": f"w{number}", "url": f"http://127.0.0.1:{port}/", "types": ["job.cancelled"]}
            http.fetch(f"{API}/webhooks", webhook)
        jobs = [{"function": "nobody"}] * events
        handles = [one["handle"] for one in json.loads(http.fetch(f"{API}/jobs/batch", jobs))["items"]]
        begun = time.monotonic()
        for number, handle in enumerate(handles):
            time.sleep(max(0.0, begun + number / RATE - time.monotonic()))
            http.fetch(f"{API}/jobs/{handle}/cancel", {})
        until = time.monotonic() + LIMIT
        while len(receivers.late) < LIVING * events:
            if time.monotonic() > until:
                raise LoadError(f"{len(receivers.late)} of {LIVING * events} messages have come")
            time.sleep(0.05)
        late = sorted(receivers.late)
        details = {
            "messages": len(late),
            "held_by_dead": receivers.held,
            "p50_ms": late[len(late) // 2],
            "p99_ms": late[len(late) * 99 // 100],
            "max_ms": late[-1],
        }
        return Run(details["max_ms"], details)
