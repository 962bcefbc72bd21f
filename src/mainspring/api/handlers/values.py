"""Calls about the published values of jobs and runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.access.caller import Shares
from mainspring.api.handlers.pages import rfc3339
from mainspring.api.request import ApiError, Code
from mainspring.api.values import FollowValues, ListValues, PublishedValue, PublishedValues, ShowValue
from mainspring.callbacks import Callback, CallInProgress
from mainspring.jobs.model import State
from mainspring.namespaces import split
from mainspring.values.model import check_name
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Refusals
    from mainspring.api.handlers.registry import Call, Followers, Handlers
    from mainspring.api.request import Feed
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService
    from mainspring.turns_of_loop import Timer
    from mainspring.values.model import StoredValue
    from mainspring.values.service import ValueService, Waiter, Waiters

MOST_WAITS: Final = 1000
"""Requests of a node that wait for values at the same time. Streams have places of their own."""
EVENT_INTERVAL: Final = 1.0
"""Seconds between two events of a stream, however many values are published: pages load their part again for each."""


class ValueCalls:
    """Answers about published values. ``values`` is None if the store keeps none; `Api` refuses the calls then."""

    def __init__(self, values: ValueService | None, service: JobService, refusals: Refusals | None = None) -> None:
        self._values = values
        self._service = service
        self._waits = Shares(MOST_WAITS, "waits", refusals)
        self.handlers: Handlers = {ListValues: self._list, ShowValue: self._show}
        self.followers: Followers = {FollowValues: self._follow}

    async def _list(self, request: ListValues, call: Call) -> PublishedValues:
        return await self._read_or_wait(request, call)

    async def _show(self, request: ShowValue, call: Call) -> PublishedValue:
        found = await self._read_or_wait(request, call)
        if found.items:
            return found.items[0]
        newer = f" after its change {request.after}" if request.after else ""
        raise ApiError(
            Code.VALUE_NOT_FOUND,
            f"{request.handle} has published no value {request.name!r}{newer}: mainspring jobs values shows those there are",
        )

    async def _read_or_wait(self, request: ListValues | ShowValue, call: Call) -> PublishedValues:
        if not request.wait:
            return await self._wait(request, call)
        if why := self._waits.take(call.caller, request.namespace):
            raise ApiError(Code.TOO_MANY_WAITS, why)
        try:
            return await self._wait(request, call)
        finally:  # also when its client has gone
            self._waits.free(call.caller, request.namespace)

    async def _wait(self, request: ListValues | ShowValue, call: Call) -> PublishedValues:
        job_id = id_of(self._service, request.handle, call)
        if request.name is not None:
            check_name(request.name)
        if not request.wait:
            return await self._newer(job_id, request.name, request.after, call)
        until = self._service.clock.monotonic() + request.wait
        with self._awaiting(job_id, request.wait) as waiter:
            while True:
                found = await self._newer(job_id, request.name, request.after, call)
                if found.items or found.ended or self._service.clock.monotonic() >= until:
                    return found
                await waiter.wait()

    async def _follow(self, request: FollowValues, call: Call, feed: Feed) -> Callable[[], None]:
        """Send values as they are stored. A slow client gets the last ones when it has read the others."""
        job_id = id_of(self._service, request.handle, call)
        first = await self._newer(job_id, None, 0, call)  # raises before the stream begins
        under_way = CallInProgress(
            self._send(job_id, first, call, feed), lambda _: feed.end(), lambda _: feed.end(), lambda _: feed.end()
        )
        return under_way.end

    async def _send(self, job_id: int, found: PublishedValues, call: Call, feed: Feed) -> None:
        after = 0
        with self._awaiting(job_id) as waiter:
            while True:
                if found.items or found.ended:
                    feed.append("values", found)
                if found.ended:
                    return
                after = max((one.number for one in found.items), default=after)
                await self._pause()
                while not feed.has_room:
                    await self._pause()
                await waiter.wait()
                found = await self._newer(job_id, None, after, call)

    async def _pause(self) -> None:
        await Callback[None](lambda done, _: self._service.later(EVENT_INTERVAL, lambda: done(None)))

    def _awaiting(self, job_id: int, seconds: float | None = None) -> JobWait:
        assert self._values is not None
        return JobWait(self._values.waiters, self._service, job_id, seconds)

    async def _newer(self, job_id: int, name: str | None, after: int, call: Call) -> PublishedValues:
        """Return the values after a change. Raises ApiError for a job that does not exist, or is not the caller's."""
        assert self._values is not None
        # Before the values are read: those of a job that has ended are all stored.
        ended = await has_ended(self._service, job_id, call)
        rows = await self._values.read(job_id, name)
        return PublishedValues([_shown(row) for row in rows if row.number > after], ended)


def id_of(service: JobService, handle: str, call: Call) -> int:
    """Return the job of a handle. Raises ApiError."""
    job_id = service.handles.parse(handle.encode())
    if job_id is None:
        raise call.not_found()
    return job_id


async def has_ended(service: JobService, job_id: int, call: Call) -> bool:
    """Return whether a job has ended. Raises ApiError for a job that does not exist, or is not the caller's."""
    held = service.table.find(job_id)
    job: Job | None = held.job if held is not None else None
    if job is None:
        job = await Callback(partial(service.clients.find, job_id, namespace=call.request.namespace))
    if job is None:
        raise call.not_found()
    namespace, function = split(job.function)
    if namespace != call.request.namespace:
        raise call.not_found()
    call.check(function_text(function))
    return State(job.state).ended


class JobWait:
    """A waiter for what a job publishes or writes, and for its end at this node, as long as the block lasts."""

    def __init__(self, waiters: Waiters, service: JobService, job_id: int, seconds: float | None = None) -> None:
        self._waiters = waiters
        self._service = service
        self._job_id = job_id
        self._seconds = seconds
        self._timer: Timer | None = None

    def __enter__(self) -> Waiter:
        self._waiter = waiter = self._waiters.add(self._job_id)
        self._service.hub.subscribe(self._changed, self._job_id)
        if self._seconds is not None:
            self._timer = self._service.timers.at(self._service.clock.monotonic() + self._seconds, waiter.wake)
        return waiter

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._service.timers.cancel(self._timer)
        self._service.hub.unsubscribe(self._changed, self._job_id)
        self._waiters.remove(self._job_id, self._waiter)

    def _changed(self, job: Job) -> None:
        if State(job.state).ended:
            self._waiter.wake()


def _shown(row: StoredValue) -> PublishedValue:
    return PublishedValue(row.name, msgspec.Raw(row.value), rfc3339(row.at_us), row.attempt, row.number)
