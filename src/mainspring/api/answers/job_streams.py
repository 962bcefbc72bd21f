"""The stream of one job: its state at each change, and its progress."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from mainspring.api.answers.job_info import info_of, of_another_node
from mainspring.api.answers.job_lookup import JobLookup
from mainspring.api.job_data import Follow, Progress
from mainspring.jobs.model import Job, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Caller
    from mainspring.api.answers.registry import Followers
    from mainspring.api.feeds import Feed
    from mainspring.errors import StoreError
    from mainspring.jobs.service import JobService


DUE_MARGIN: Final = 0.1
"""Seconds between the time at which a job is due and its lookup: a node makes due jobs pending in a commit."""
LATE_INTERVAL: Final = 1.0
"""Seconds between further lookups of a job that no node has made pending in time."""
LONGEST_SLEEP: Final = 60.0
"""Seconds between lookups of a scheduled job: a timer keeps the watcher in memory, also after its client has left."""


class JobStreams:
    """Streams about single jobs."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._lookup = JobLookup(service)
        self.followers: Followers = {Follow: self._follow}

    async def _follow(self, request: Follow, caller: Caller, feed: Feed) -> Callable[[], None]:
        """Send the job now and at each change; the stream ends with the job.

        The node reports the changes that it makes itself, and, of a job at another node, its progress and its end.
        """
        job = await self._lookup.find(request.handle, request.namespace, caller, request.permission)
        watcher = _Watcher(self._service, job, feed, request.namespace)
        watcher.found(job)
        if State(job.state).ended:
            return watcher.end
        self._service.watch(watcher.send, job.id)
        # It also looks the job up: it may have ended since.
        self._service.wait(job.id, watcher, watcher.gone_from_store, namespace=request.namespace)
        return watcher.end


class _Watcher:
    """Passes the changes of one job to a feed: a `jobs.listeners.Listener` of the job."""

    def __init__(self, service: JobService, job: Job, feed: Feed, namespace: str) -> None:
        self.gone = False
        self._service = service
        self._job = job
        self._feed = feed
        self._namespace = namespace

    def send(self, job: Job) -> None:
        """Send the state of the job; after the last one, end the stream."""
        self._job = job
        self._feed.replace("job", info_of(self._service, job))
        if State(job.state).ended:
            self._feed.end()
        elif job.state == State.SCHEDULED:
            self._look_when_due(job)

    def found(self, job: Job) -> None:
        """Send the state of a job that was looked up."""
        self.send(job if self._service.find_held(job.id) is not None else of_another_node(job))

    def _look_when_due(self, job: Job) -> None:
        """Look the job up once it is due: the store makes all due jobs pending at once, and names none of them."""
        self._look_after(job, max(job.due_us / 1_000_000 - self._service.wall(), 0) + DUE_MARGIN)

    def _look_after(self, job: Job, seconds: float) -> None:
        self._service.later(min(seconds, LONGEST_SLEEP), partial(self._look, job))

    def _look(self, job: Job) -> None:
        def found(now: Job | None) -> None:
            if self.gone or self._job is not job:
                return
            if now is None:
                self._feed.end()
            elif now.state == State.SCHEDULED:
                self._job = now
                self._look_after(now, max(now.due_us / 1_000_000 - self._service.wall(), LATE_INTERVAL))
            else:
                self.found(now)

        def failed(error: StoreError) -> None:
            del error
            self._look_after(job, LATE_INTERVAL)

        if not self.gone and self._job is job:  # it has not changed since
            self._service.find(job.id, found, failed, overtakes=True, namespace=self._namespace)

    def gone_from_store(self) -> None:
        """End the stream of a job that was deleted."""
        self._feed.end()

    def end(self) -> None:
        """Send no more: the client has left."""
        self._service.unwatch(self.send, self._job.id)
        self._service.client_gone(self)

    def data(self, handle: bytes, data: bytes) -> None:
        """Ignore a part of the result."""

    def warning(self, handle: bytes, data: bytes) -> None:
        """Ignore a warning."""

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        """Send the progress."""
        del handle
        if numerator.isdigit() and denominator.isdigit() and len(numerator) < 19 > len(denominator):
            self._feed.replace("progress", Progress(int(numerator), int(denominator)))

    def unknown(self, handle: bytes) -> None:
        """Do nothing. It is never called, because `has_room` always returns True."""

    def has_room(self) -> bool:
        """Return True: results are dropped at once."""
        return True

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """Send the end of the job, without its result."""
        del handle, exception
        self.send(replace(job, result=b""))
