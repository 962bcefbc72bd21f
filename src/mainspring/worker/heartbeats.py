"""The loop that sends the worker's heartbeats to all servers, and calls its periodic checks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.worker.link import Link

INTERVAL: Final = 5.0
"""Seconds between heartbeats, unless a job requires a shorter interval."""

BEATS_PER_LIMIT: Final = 3
"""Heartbeats within the shortest silence after which a server counts a job as lost."""

MIN_INTERVAL: Final = 0.05
"""Seconds of the shortest interval."""

TICK_INTERVAL: Final = 0.5
"""Seconds between the periodic checks, at most."""


class Heartbeats:
    """Sends the heartbeats of all links, and calls ``tick`` about twice a second."""

    def __init__(self, links: Sequence[Link], tick: Callable[[], None]) -> None:
        self._links = links
        self._tick = tick
        self._interval = INTERVAL
        self._shortened = asyncio.Event()

    def shorten(self, limit: float | None) -> None:
        """Send heartbeats often enough for a job that is lost after ``limit`` seconds of silence; None: no limit."""
        if limit is not None and (interval := max(MIN_INTERVAL, limit / BEATS_PER_LIMIT)) < self._interval:
            self._interval = interval
            self._shortened.set()

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        loop = asyncio.get_running_loop()
        next_beat = loop.time() + self._interval
        while True:
            self._shortened.clear()
            try:
                async with asyncio.timeout(min(TICK_INTERVAL, self._interval)):
                    await self._shortened.wait()
            except TimeoutError:
                self._tick()
            now = loop.time()
            if now >= min(next_beat, now + self._interval):
                self.beat()
                next_beat = now + self._interval
            next_beat = min(next_beat, now + self._interval)

    def beat(self) -> None:
        """Send one heartbeat to each server, and drop the connections to silent servers."""
        for link in self._links:
            link.session.heartbeat()
            link.flush()
            link.check()
        if not any(link.session.running for link in self._links):
            self._interval = INTERVAL
