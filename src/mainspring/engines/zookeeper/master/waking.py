"""The wake-up of delayed tasks and the expiry of waiting ones, without polling.

The master watches the minutes up to the first that contains a task: a watch reports earlier entries.
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

STEP_PAUSE: Final = 0.05
"""The least seconds between steps: other nodes add tasks to the watched minutes."""
LIST_RATE: Final = 50_000.0
"""Names listed per second."""
MAX_PAUSE: Final = 30.0
"""The most seconds until the next step while a task has a time: clocks drift."""
BATCH: Final = 1000
"""Tasks woken at once."""


class Waker:
    """Wakes and expires tasks during one leadership."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._offset = 0.0
        """The ensemble's wall time minus the loop's time."""
        self._offset_read_at = float("-inf")
        self._listed = 0

    async def run(self) -> None:
        """Wake until cancelled. Raises SessionEndedError, StoreFencedError."""
        while True:
            try:
                wait = await self.step()
                await asyncio.sleep(max(STEP_PAUSE, self._listed / LIST_RATE))
            except StoreUnavailableError:
                continue
            await wait_or_timeout(self._changed, wait)

    async def step(self) -> float | None:
        """Wake the due tasks; return the seconds until the next step, None: when something has changed."""
        self._changed.clear()
        self._listed = 0
        times = [time_us for root in (paths.DELAYED, paths.EXPIRING) if (time_us := await self._first(root))]
        if not times:
            return None
        now_us = await self._now_us()
        wait = (min(times) - now_us) / 1_000_000
        if wait > 0:
            return min(wait, MAX_PAUSE)
        (woken,) = await timing.wake(self._session, [ops.Wake(now_us, BATCH)])
        return 0.0 if woken.due or woken.expired else MAX_PAUSE

    async def _first(self, root: str) -> int | None:
        """Return the first due time of a root's tasks, and watch for earlier ones."""
        for minute in paths.minutes_of(await self._session.children(root, self._changed.set)):
            parent = f"{root}/{minute}"
            names = await self._session.children(parent, self._changed.set)
            self._listed += len(names)
            times = [one.time_us for one in paths.timed_of(parent, names) if one.path not in self._session.late]
            if times:
                return min(times)
        return None

    async def _now_us(self) -> int:
        """Return the ensemble's wall time."""
        if self._loop.time() - self._offset_read_at > MAX_PAUSE:
            self._offset = await membership.now(self._session.tree, self._session.who) - self._loop.time()
            self._offset_read_at = self._loop.time()
        return round((self._offset + self._loop.time()) * 1_000_000)
