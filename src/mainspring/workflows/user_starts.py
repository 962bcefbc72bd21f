"""Starts of runs in users' own transactions: a node takes them over as jobs up to a second after their commit.

Right after the commit no request for the run may be answered that there is none. So a request with a workflow id that
reaches no run is repeated once these starts are jobs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mainspring.callbacks import Callback
from mainspring.workflows.store import ShowSubmitted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mainspring.callbacks import Done, Failed
    from mainspring.jobs.service import JobService
    from mainspring.jobs.sharing import Sharing
    from mainspring.storage.reads import Reads
    from mainspring.workflows.model import Key

LIMIT: Final = 2.0
"""Seconds after which the answer no longer waits for starts: so many are before them, or the store is so slow."""
LOOK_DELAY: Final = 0.02
"""Seconds between two looks, while another node takes them over."""


class UserStarts:
    """The starts that are committed and are no jobs yet. ``jobs`` knows whether the store takes any."""

    def __init__(self, jobs: JobService, reads: Reads) -> None:
        self._jobs = jobs
        self._reads = reads

    async def repeated(self, key: Key, ask: Callable[[], Awaitable[Any]], is_unknown: Callable[[Any], bool]) -> Any:
        """Return an answer about the run of a key, repeated once if it is unknown and may be one of these starts."""
        answer = await ask()
        sharing = self._jobs.sharing
        if sharing is None or not key.workflow_id or not is_unknown(answer) or not await self._taken_over(sharing):
            return answer
        return await ask()

    async def _taken_over(self, sharing: Sharing) -> bool:
        """Wait until the starts of before the call are jobs; return whether there were any."""
        clock = self._jobs.clock
        until = clock.monotonic() + LIMIT
        first, last = await self._reads.read(ShowSubmitted())
        if not first:
            return False
        while 0 < first <= last and clock.monotonic() < until:
            await Callback(partial(_drained, sharing))
            first, _ = await self._reads.read(ShowSubmitted())
            if 0 < first <= last:
                await Callback(self._later)
        return True

    def _later(self, done: Done, failed: Failed) -> None:
        del failed
        self._jobs.later(LOOK_DELAY, partial(done, None))


def _drained(sharing: Sharing, done: Done, failed: Failed) -> None:
    del failed
    sharing.drain_inbox(partial(done, None))
