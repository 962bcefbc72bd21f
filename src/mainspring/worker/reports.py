"""What running jobs tell, on its way from any thread to the connections."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mainspring.client.awaited_jobs import Awaited
    from mainspring.worker.current import CurrentJob
    from mainspring.worker.link import Link
    from mainspring.worker.session import Key
    from mainspring.worker.waits import Waits


class Origin(NamedTuple):
    """Where a job came from."""

    link: Link
    key: Key


class Reports:
    """The reporter of a worker's jobs: of each job's progress only the newest is sent, at most once a turn of the loop."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._progress: dict[Origin, tuple[int, int]] = {}
        self._told: deque[tuple[Origin, bytes, bool]] = deque()
        self._scheduled = False

    def attach(self) -> None:
        """Use the running loop."""
        self._loop = asyncio.get_running_loop()

    def progress(self, job: CurrentJob, done: int, total: int) -> None:
        """Take the newest progress."""
        self._progress[job.origin] = (done, total)
        self._schedule()

    def send_data(self, job: CurrentJob, data: bytes, *, warning: bool) -> None:
        """Take data or a warning."""
        self._told.append((job.origin, data, warning))
        self._schedule()

    def waits(self, job: CurrentJob, awaited: Awaited) -> None:
        """Note that a job waits for another one."""
        self._waits.begin(job, awaited)

    def continues(self, job: CurrentJob, awaited: Awaited) -> None:  # noqa: ARG002 - the wait is known
        """Note that such a wait is over."""
        self._waits.end(awaited)

    def _schedule(self) -> None:
        if not self._scheduled and self._loop is not None:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self.send)
            except RuntimeError:
                pass  # the loop is closed: nobody is left to be told

    def send(self) -> None:
        """Hand over what has come; called on the loop, and before a settlement, which ends a job's right to tell."""
        if not self._scheduled:
            return
        self._scheduled = False  # before looking: what comes from now on schedules again
        while self._told:
            origin, data, warning = self._told.popleft()
            origin.link.session.tell(origin.key, data, warning=warning)
            origin.link.flush()
        while self._progress:
            origin, (done, total) = self._progress.popitem()
            origin.link.session.progress(origin.key, done, total)
            origin.link.flush()
