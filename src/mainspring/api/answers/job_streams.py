"""The stream of one job: its state at each change, and its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.api.answers.job_info import info_of
from mainspring.api.answers.job_lookup import JobLookup
from mainspring.api.job_data import Follow, Progress
from mainspring.jobs.model import Job, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Caller
    from mainspring.api.answers.registry import Followers
    from mainspring.api.feeds import Feed
    from mainspring.jobs.service import JobService


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
        watcher = _Watcher(self._service, job, feed)
        watcher.send(job)
        if State(job.state).ended:
            return watcher.end
        self._service.watch(watcher.changed)
        # It also looks the job up: it may have ended since.
        self._service.wait(job.id, watcher, watcher.gone_from_store, namespace=request.namespace)
        return watcher.end


class _Watcher:
    """Passes the changes of one job to a feed: a `jobs.listeners.Listener` of the job."""

    def __init__(self, service: JobService, job: Job, feed: Feed) -> None:
        self.gone = False
        self._service = service
        self._job = job
        self._feed = feed

    def send(self, job: Job) -> None:
        """Send the state of the job; after the last one, end the stream."""
        self._feed.replace("job", info_of(self._service, job))
        if State(job.state).ended:
            self._feed.end()

    def changed(self, job: Job) -> None:
        """Send a change that this node has made."""
        if job.id == self._job.id:
            self._job = job
            self.send(job)

    def gone_from_store(self) -> None:
        """End the stream of a job that was deleted."""
        self._feed.end()

    def end(self) -> None:
        """Send no more: the client has left."""
        self._service.unwatch(self.changed)
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
