"""Delayed tasks become pending in time, and waiting ones expire, without looking again and again where nothing is due.

The master watches the minutes from the first one on that contains anything: what comes before what it waits for, it hears of.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper import membership, paths, timing
from mainspring.engines.zookeeper.cancellation import wait_or_timeout
from mainspring.errors import StoreUnavailableError
from mainspring.jobs import store as ops

if TYPE_CHECKING:
    from mainspring.engines.zookeeper.session import Session

REST: Final = 0.05
"""Seconds between looks, at least: others put tasks where this one watches."""
RATE: Final = 50_000.0
"""Names that are looked at in a second."""
LONGEST: Final = 30.0
"""Seconds until a look, at most, while anything waits for a time: clocks drift."""
PORTION: Final = 1000


class Waker:
    """Wakes while one reign lasts."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._offset = 0.0
        """What the ensemble's wall time is before the loop's."""
        self._timed = float("-inf")
        self._looked = 0

    async def run(self) -> None:
        """Wake until cancelled. Raises SessionEndedError, StoreFencedError."""
        while True:
            try:
                wait = await self.step()
                await asyncio.sleep(max(REST, self._looked / RATE))
            except StoreUnavailableError:
                continue
            await wait_or_timeout(self._changed, wait)

    async def step(self) -> float | None:
        """Wake what is due; returns the seconds until more is, None: when something has changed."""
        self._changed.clear()
        self._looked = 0
        times = [time_us for root in (paths.DELAYED, paths.EXPIRING) if (time_us := await self._first(root))]
        if not times:
            return None
        now_us = await self._now_us()
        wait = (min(times) - now_us) / 1_000_000
        if wait > 0:
            return min(wait, LONGEST)
        (woken,) = await timing.wake(self._session, [ops.Wake(now_us, PORTION)])
        return 0.0 if woken.due or woken.expired else LONGEST

    async def _first(self, root: str) -> int | None:
        """Return the first time at which something of a root is due, and hear of earlier ones."""
        for minute in paths.minutes_of(await self._session.children(root, self._changed.set)):
            parent = f"{root}/{minute}"
            names = await self._session.children(parent, self._changed.set)
            self._looked += len(names)
            times = [one.time_us for one in paths.timed_of(parent, names) if one.path not in self._session.late]
            if times:
                return min(times)
        return None

    async def _now_us(self) -> int:
        """Return the ensemble's wall time."""
        if self._loop.time() - self._timed > LONGEST:
            self._offset = await membership.now(self._session.tree, self._session.who) - self._loop.time()
            self._timed = self._loop.time()
        return round((self._offset + self._loop.time()) * 1_000_000)
