"""Reports of running jobs, passed from any thread to the connections."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from mainspring.worker.log_batches import LogBatches
from mainspring.worker.origin import Origin

if TYPE_CHECKING:
    from mainspring.client.awaited_jobs import Awaited
    from mainspring.worker.current import CurrentJob
    from mainspring.worker.job_log import LogLine
    from mainspring.worker.link import Link
    from mainspring.worker.session import Key
    from mainspring.worker.waits import Waits


class Reports:
    """The reporter of a worker's jobs. It sends only each job's newest progress, at most once per iteration of the loop."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._progress: dict[Origin, tuple[int, int]] = {}
        self._logs = LogBatches()
        self._data: deque[tuple[Origin, bytes, bool]] = deque()
        self._scheduled = False

    def attach(self) -> None:
        """Use the running loop."""
        self._loop = asyncio.get_running_loop()
        self._logs.attach()

    def progress(self, job: CurrentJob, done: int, total: int) -> None:
        """Queue the newest progress for sending."""
        self._progress[job.origin] = (done, total)
        self._schedule()

    def send_data(self, job: CurrentJob, data: bytes, *, warning: bool) -> None:
        """Queue data or a warning for sending."""
        self._data.append((job.origin, data, warning))
        self._schedule()

    def write_log(self, job: CurrentJob, line: LogLine) -> None:
        """Queue a line for sending."""
        if job.origin is not None:
            self._logs.add(job.origin, line)

    def ended(self, link: Link, key: Key) -> None:
        """Forget a delivery that has ended."""
        self._logs.ended(Origin(link, key))

    def waits(self, job: CurrentJob, awaited: Awaited) -> None:
        """Record that a job waits for another one."""
        self._waits.begin(job, awaited)

    def continues(self, job: CurrentJob, awaited: Awaited) -> None:  # noqa: ARG002 - ``Waits`` has the job
        """Record that such a wait is over."""
        self._waits.end(awaited)

    def _schedule(self) -> None:
        if not self._scheduled and self._loop is not None:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self.send)
            except RuntimeError:
                pass  # the loop is closed: the worker has ended

    def send(self) -> None:
        """Send queued reports; called on the loop, and before a settlement, after which a job must not report."""
        self._logs.send()
        if not self._scheduled:
            return
        self._scheduled = False  # first, so that later reports schedule another call
        while self._data:
            origin, data, warning = self._data.popleft()
            origin.link.session.send_data(origin.key, data, warning=warning)
            origin.link.flush()
        while self._progress:
            origin, (done, total) = self._progress.popitem()
            origin.link.session.progress(origin.key, done, total)
            origin.link.flush()
