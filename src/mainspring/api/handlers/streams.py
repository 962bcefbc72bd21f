"""Calls about the streams of jobs and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.access.caller import Shares
from mainspring.api.handlers.pages import rfc3339
from mainspring.api.handlers.values import JobWait, has_ended, id_of
from mainspring.api.request import ApiError, Code
from mainspring.api.streams import FollowStream, ListStreams, ReadStream, StreamInfo, StreamItem, StreamList, StreamPage
from mainspring.callbacks import Callback, CallInProgress
from mainspring.streams.model import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.access.caller import Refusals
    from mainspring.api.handlers.registry import Call, Followers, Handlers
    from mainspring.api.request import Feed
    from mainspring.jobs.service import JobService
    from mainspring.streams.model import Block, Head
    from mainspring.streams.service import StreamService

MOST_WAITS: Final = 1000
"""Requests of a node that wait for items at the same time. Streams of events have places of their own."""
EVENT_INTERVAL: Final = 0.1
"""Seconds between two events of a stream, however many batches are written."""
ROOM_INTERVAL: Final = 1.0
"""Seconds between two looks whether a slow client has read its events."""

_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode


class StreamCalls:
    """Answers about streams. ``streams`` is None if the store keeps none; `Api` refuses the calls then.

    The rights of a caller are checked before the first item, and again whenever nothing has come.
    """

    def __init__(self, streams: StreamService | None, service: JobService, refusals: Refusals | None = None) -> None:
        self._streams = streams
        self._service = service
        self._waits = Shares(MOST_WAITS, "waits", refusals)
        self.handlers: Handlers = {ListStreams: self._list, ReadStream: self._read}
        self.followers: Followers = {FollowStream: self._follow}

    @property
    def streams(self) -> StreamService:
        """The streams of the node."""
        assert self._streams is not None
        return self._streams

    async def _list(self, request: ListStreams, call: Call) -> StreamList:
        job_id = id_of(self._service, request.handle, call)
        ended = await has_ended(self._service, job_id, call)  # before: those of a job that has ended are all stored
        return StreamList([_info(head) for head in await self.streams.heads(job_id)], ended)

    async def _read(self, request: ReadStream, call: Call) -> StreamPage:
        job_id = id_of(self._service, request.handle, call)
        check_name(request.name)
        found = await self._page(job_id, request.name, request.offset, call)
        if found.items or found.ended or not request.wait:
            return found
        if why := self._waits.take(call.caller, request.namespace):
            raise ApiError(Code.TOO_MANY_WAITS, why)
        try:
            return await self._wait(job_id, request, call)
        finally:  # also when its client has gone
            self._waits.free(call.caller, request.namespace)

    async def _wait(self, job_id: int, request: ReadStream, call: Call) -> StreamPage:
        until = self._service.clock.monotonic() + request.wait
        with JobWait(self.streams.waiters, self._service, job_id, request.wait) as waiter:
            while True:
                found = await self._page(job_id, request.name, request.offset, call)
                if found.items or found.ended or self._service.clock.monotonic() >= until:
                    return found
                await waiter.wait()

    async def _follow(self, request: FollowStream, call: Call, feed: Feed) -> Callable[[], None]:
        """Send items as they are stored. A slow client reads from the store where it is: nothing is kept for it."""
        job_id = id_of(self._service, request.handle, call)
        check_name(request.name)
        offset = request.offset if request.after is None else _offset_of(request.after)
        first = await self._page(job_id, request.name, offset, call)  # raises before the stream begins
        under_way = CallInProgress(
            self._send(job_id, first, request.name, call, feed),
            lambda _: feed.end(),
            lambda _: feed.end(),
            lambda _: feed.end(),
        )
        return under_way.end

    async def _send(self, job_id: int, found: StreamPage, name: str, call: Call, feed: Feed) -> None:
        with JobWait(self.streams.waiters, self._service, job_id) as waiter:
            while True:
                if found.items or found.ended:
                    feed.append("items", found, str(found.next))
                if found.ended:
                    return
                has_items = bool(found.items)
                await self._pause(EVENT_INTERVAL)
                while not feed.has_room:
                    await self._pause(ROOM_INTERVAL)
                if not has_items:
                    await waiter.wait()
                found = await self._next(job_id, name, found.next, call)

    async def _next(self, job_id: int, name: str, offset: int, call: Call) -> StreamPage:
        """Return the items behind those that a caller has got; it looks at the job if there are none."""
        blocks = await self.streams.blocks(job_id, name, offset)
        if blocks:
            return _page(blocks, offset, ended=False)
        return await self._page(job_id, name, offset, call)

    async def _page(self, job_id: int, name: str, offset: int, call: Call) -> StreamPage:
        """Return items from a number. Raises ApiError for a job that does not exist, or is not the caller's."""
        ended = await has_ended(self._service, job_id, call)  # before: the items of a job that has ended are all stored
        blocks = await self.streams.blocks(job_id, name, offset)
        if blocks and ended:
            following = await self.streams.blocks(job_id, name, blocks[-1].first + blocks[-1].length)
            ended = not following
        return _page(blocks, offset, ended=ended)

    async def _pause(self, seconds: float) -> None:
        await Callback[None](lambda done, _: self._service.later(seconds, lambda: done(None)))


def _offset_of(event_id: str) -> int:
    if not event_id.isascii() or not event_id.isdecimal() or len(event_id) > 18:
        raise ApiError(
            Code.INVALID, f"{event_id[:50]!r} is no id of an event of a stream: give the last one that has come"
        )
    return int(event_id)


def _page(blocks: Sequence[Block], offset: int, *, ended: bool) -> StreamPage:
    items: list[StreamItem] = []
    for block in blocks:
        at = rfc3339(block.at_us)
        for number, value in enumerate(_decode(block.items), block.first):
            if number >= offset:
                items.append(StreamItem(number, value, block.attempt, block.part, at))
    return StreamPage(items, items[-1].offset + 1 if items else offset, ended)


def _info(head: Head) -> StreamInfo:
    return StreamInfo(head.name, head.items, head.bytes, head.refused, rfc3339(head.at_us))
