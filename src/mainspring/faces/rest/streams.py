"""Server-sent events: one response that goes on while its client reads it.

A stream begins with the state of its subject, so that a client that connects again needs no earlier events. Streams have
places of their own: they never take those of other requests. A caller occupies only its share of the places, so that one token
cannot keep all others out.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from mainspring.access.caller import Shares
from mainspring.api.request import Shared, write
from mainspring.faces.rest.replies import HttpError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import Receive, Send

    from mainspring.access.caller import Caller
    from mainspring.api.request import Feed

LIMIT: Final = 300
"""Streams and long polls of a node at the same time."""
BEAT: Final = 15.0
"""Seconds of silence before a comment, so that proxies keep the connection."""
UNSENT_LIMIT: Final = 1 << 20
"""Bytes of events that a slow client may leave unread."""
UNSENT_TOTAL: Final = 32 << 20
"""Bytes of events that all clients of a node together may leave unread."""
LARGEST_SEND: Final = 1 << 16
"""Bytes after which the next event waits until the client has read: the server keeps a copy of all that it sends."""
RETRY: Final = (3000, 6000)
"""Milliseconds after which a client connects again: at random, so that the clients of a node that restarts spread."""
_BUSY_RETRY: Final = b"5"
HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),  # for nginx, which would collect events otherwise
)
_COMMENT: Final = b":\n\n"


class Streams:
    """The streams and long polls of a node. ``shares`` has their places."""

    def __init__(
        self,
        shares: Shares | None = None,
        *,
        beat: float = BEAT,
        unsent_total: int = UNSENT_TOTAL,
    ) -> None:
        self._space = Space(unsent_total)
        self._shares = Shares(LIMIT, "streams") if shares is None else shares
        self._beat = beat
        self._open: set[EventFeed] = set()
        self._is_ended = False

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._open)

    @property
    def feeds(self) -> frozenset[EventFeed]:
        """The open streams."""
        return frozenset(self._open)

    def open(self, caller: Caller, namespace: str) -> EventFeed:
        """Return a new feed for a caller in a namespace. Raises HttpError if there is no place for one."""
        if self._is_ended:
            raise _too_many("the node ends: try again")
        if why := self._shares.take(caller, namespace):
            raise _too_many(why)
        feed = EventFeed(self._beat, self._space, partial(self._closed, caller, namespace))
        self._open.add(feed)
        return feed

    def _closed(self, caller: Caller, namespace: str, feed: EventFeed) -> None:
        if feed in self._open:
            self._open.remove(feed)
            self._shares.free(caller, namespace)

    def end(self) -> None:
        """End all streams, and open no more: the node stops."""
        self._is_ended = True
        for feed in tuple(self._open):
            feed.end()


class Space:
    """The memory for the unsent events of all streams, in bytes."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class EventFeed:
    """One stream; see `mainspring.api.request.Feed`."""

    def __init__(self, beat: float, space: Space, closed: Callable[[EventFeed], object]) -> None:
        self._beat = beat
        self._space = space
        self._closed = closed
        self._newest: dict[str, bytes] = {}
        self._queue: deque[bytes] = deque()
        self._size = self._sending = 0
        """The bytes of the events of `append`, with those that are being sent."""
        self._is_ended = False
        self._wake = asyncio.Event()

    def replace(self, event: str, value: object) -> None:
        """Send the newest state of something."""
        if not self._is_ended:
            self._newest[event] = value.encoded(event, _frame) if isinstance(value, Shared) else _frame(event, value)
            self._wake.set()

    @property
    def has_room(self) -> bool:
        """Whether half of the space of this stream is free, and most of that of all; one without events always gets the next."""
        return not self._size or (self._size * 2 < UNSENT_LIMIT and self._space.used * 4 < self._space.limit)

    def append(self, event: str, value: object, place: str = "") -> None:
        """Send an event that may not be dropped."""
        if self._is_ended:
            return
        frame = (b"id: %s\n" % place.encode() if place else b"") + _frame(event, value)
        if self._size + len(frame) > UNSENT_LIMIT or self._space.used + len(frame) > self._space.limit:
            self._drop()
            self.end()
            return
        self._queue.append(frame)
        self._count(len(frame))
        self._wake.set()

    def end(self) -> None:
        """End the stream once all events are sent."""
        self._is_ended = True
        self._wake.set()

    async def changed(self, seconds: float) -> bool:
        """Wait for an event, drop all events, and return whether there was one. For long polls, which use no `serve`."""
        if not self._is_ended:
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                return False
        self._wake.clear()
        has_changed = bool(self._queue or self._newest)
        self._drop()
        self._newest.clear()
        return has_changed or not self._is_ended

    @property
    def unsent(self) -> int:
        """The bytes of events that wait for the client."""
        return self._size + sum(map(len, self._newest.values()))

    @property
    def is_ended(self) -> bool:
        """Whether no more events are sent."""
        return self._is_ended

    def close(self) -> None:
        """Free the place of the stream."""
        self.end()
        self._drop()
        self._closed(self)

    async def serve(self, receive: Receive, send: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Send events until the client disconnects or the stream has ended."""
        gone = asyncio.ensure_future(disconnected(receive))
        gone.add_done_callback(lambda _: self.end())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [*headers, *HEADERS]})
            retry = random.randint(*RETRY)  # noqa: S311 - no secret
            await send({"type": "http.response.body", "body": b"retry: %d\n\n" % retry, "more_body": True})
            while not gone.done():
                body = self._take()
                if body:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    self._sent()
                elif self._is_ended:
                    break
                else:
                    await self._wait(send)
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            self._sent()

    async def _wait(self, send: Send) -> None:
        try:
            async with asyncio.timeout(self._beat):
                await self._wake.wait()
        except TimeoutError:
            await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
        else:
            self._wake.clear()

    def _take(self) -> bytes:
        """Return the next events: those of `append` in their order, and then the newest states, one at a time."""
        taken: list[bytes] = []
        while self._queue and self._sending < LARGEST_SEND:
            taken.append(self._queue.popleft())
            self._sending += len(taken[-1])
        if not taken and self._newest:
            return self._newest.pop(next(iter(self._newest)))  # not joined with others: all clients share these bytes
        return b"".join(taken)

    def _count(self, size: int) -> None:
        self._size += size
        self._space.used += size

    def _sent(self) -> None:
        self._count(-self._sending)
        self._sending = 0

    def _drop(self) -> None:
        self._queue.clear()
        self._count(self._sending - self._size)


class Parts:
    """Several streams on one feed, which ends when all of them have ended, after the event ``complete``."""

    def __init__(self, feed: Feed, number: int) -> None:
        self._feed = feed
        self._open = number
        self.feeds = tuple(Part(feed, self._ended) for _ in range(number))
        """One for each stream."""

    def _ended(self) -> None:
        self._open -= 1
        if not self._open:
            self._feed.replace("complete", {})  # `append` would send it before the newest states
            self._feed.end()


class Part:
    """The feed of one of several streams; see `mainspring.api.request.Feed`."""

    def __init__(self, feed: Feed, ended: Callable[[], object]) -> None:
        self._feed = feed
        self._ended = ended
        self._is_ended = False
        self.replace = feed.replace
        self.append = feed.append

    @property
    def has_room(self) -> bool:
        """Whether the client has read enough to get more."""
        return self._feed.has_room

    def end(self) -> None:
        """End this stream. It sends no more."""
        if not self._is_ended:
            self._is_ended = True
            self._ended()


async def disconnected(receive: Receive) -> None:
    """Return when the client of a request has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_many(reason: str) -> HttpError:
    return HttpError("too_many_streams", reason, headers={b"retry-after": _BUSY_RETRY})


def _frame(event: str, value: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event.encode(), write(value))
