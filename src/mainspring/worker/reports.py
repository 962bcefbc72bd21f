"""Reports of running jobs, passed from any thread to the connections."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from mainspring.worker.log_batches import LogBatches
from mainspring.worker.origin import Origin

if TYPE_CHECKING:
    from mainspring.client.awaited_jobs import Awaited
    from mainspring.worker.current import CurrentJob
    from mainspring.worker.job_log import LogLine
    from mainspring.worker.link import Link
    from mainspring.worker.session import Key
    from mainspring.worker.waits import Waits


PROGRESS_INTERVAL: Final = 0.2
"""Seconds between two progress reports of a job."""


class Reports:
    """The reporter of a worker's jobs. Of each job's progress it sends the newest, at most once in `PROGRESS_INTERVAL`."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._progress: dict[Origin, tuple[int, int, str]] = {}
        self._next_progress: dict[Origin, float] = {}
        """The times from which the next progress of a job may be sent."""
        self._timer: asyncio.TimerHandle | None = None
        self._logs = LogBatches()
        self._data: deque[tuple[Origin, bytes, bool]] = deque()
        self._scheduled = False

    def attach(self) -> None:
        """Use the running loop."""
        self._loop = asyncio.get_running_loop()
        self._logs.attach()

    def progress(self, job: CurrentJob, done: int, total: int, text: str) -> None:
        """Queue the newest progress for sending."""
        self._progress[job.origin] = (done, total, text)
        self._schedule()

    def send_data(self, job: CurrentJob, data: bytes, *, warning: bool) -> None:
        """Queue data or a warning for sending."""
        self._data.append((job.origin, data, warning))
        self._schedule()

    def write_log(self, job: CurrentJob, line: LogLine) -> None:
        """Queue a line for sending."""
        if job.origin is not None:
            self._logs.add(job.origin, line)

    @property
    def has_logs(self) -> bool:
        """Whether any delivery has logged lines: most jobs log none, and then their ends need no call."""
        return bool(self._logs)

    def ended(self, link: Link, key: Key) -> None:
        """Forget a delivery that has ended."""
        if self._next_progress or self._progress or self._logs.has_lines:
            origin = Origin(link, key)
            self._logs.ended(origin)
            self._next_progress.pop(origin, None)
            self._progress.pop(origin, None)

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
        """Send queued reports, without progress that came too soon; called on the loop, and before settlements."""
        self._logs.send()
        if not self._scheduled:
            return
        self._scheduled = False  # first, so that later reports schedule another call
        while self._data:
            origin, data, warning = self._data.popleft()
            origin.link.session.send_data(origin.key, data, warning=warning)
            origin.link.flush()
        if self._progress:
            self._send_due_progress()

    def _send_due_progress(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        later = now + PROGRESS_INTERVAL
        for origin in list(self._progress):
            due = self._next_progress.get(origin, now)
            if due <= now:
                self._next_progress[origin] = now + PROGRESS_INTERVAL
                self._send_progress(origin)
            else:
                later = min(later, due)
        if self._progress and self._timer is None:
            self._timer = self._loop.call_at(later, self._resume)

    def _resume(self) -> None:
        """Send the progress that came too soon."""
        self._timer = None
        self._send_due_progress()

    @property
    def progress_waits(self) -> bool:
        """Whether progress waits that came too soon."""
        return bool(self._progress)

    def send_last(self, link: Link, key: Key) -> None:
        """Send the last progress of a delivery, before its settlement: after that, its job must not report."""
        self._send_progress(Origin(link, key))

    def _send_progress(self, origin: Origin) -> None:
        newest = self._progress.pop(origin, None)
        if newest is not None:
            origin.link.session.progress(origin.key, *newest)
            origin.link.flush()
