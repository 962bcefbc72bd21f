"""One loop that tells all servers that the worker lives, and looks after what only time changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.worker.link import Link

INTERVAL: Final = 5.0
"""Seconds between heartbeats, where no job asks for more."""

SHARE: Final = 3
"""Heartbeats that fit into the shortest time after which a job would be taken to be lost."""

FASTEST: Final = 0.05
TICK: Final = 0.5


class Heartbeats:
    """Sends the heartbeats of all links, and calls ``tick`` about twice a second."""

    def __init__(self, links: Sequence[Link], tick: Callable[[], None]) -> None:
        self._links = links
        self._tick = tick
        self._interval = INTERVAL
        self._sooner = asyncio.Event()

    def hasten(self, limit: float | None) -> None:
        """A job is taken to be lost after so many seconds of silence: be quicker than that."""
        if limit is not None and (interval := max(FASTEST, limit / SHARE)) < self._interval:
            self._interval = interval
            self._sooner.set()

    async def run(self) -> None:
        """Beat until cancelled."""
        loop = asyncio.get_running_loop()
        next_beat = loop.time() + self._interval
        while True:
            self._sooner.clear()
            try:
                async with asyncio.timeout(min(TICK, self._interval)):
                    await self._sooner.wait()
            except TimeoutError:
                self._tick()
            now = loop.time()
            if now >= min(next_beat, now + self._interval):
                self.beat()
                next_beat = now + self._interval
            next_beat = min(next_beat, now + self._interval)

    def beat(self) -> None:
        """Send one heartbeat to each server, and give up those that have been silent."""
        for link in self._links:
            link.session.heartbeat()
            link.flush()
            link.check()
        if not any(link.session.running for link in self._links):
            self._interval = INTERVAL
