"""Readers of streams: the items of a job or a run, from a number on, live or later."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from mainspring.client.session import RECONNECT_TIMEOUT, delays
from mainspring.errors import ConnectionLostError, UsageError
from mainspring.streams.model import check_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator

    from mainspring.client.connections import Connections
    from mainspring.codecs import Codecs

CALL: Final = "jobs.stream"
WAIT: Final = 20.0
"""Seconds for which a server waits for items before it answers."""
ANSWER_WITHIN: Final = 5.0
"""Seconds beyond the server's own wait after which a request is sent again."""


@dataclass(frozen=True, slots=True)
class StreamItem:
    """An item of a stream."""

    value: Any
    offset: int
    """Its number in the stream; the first is 0."""
    attempt: int
    """The attempt that has written it; the first is 1."""
    part: int
    """The number of the writer: where it grows, the attempt before was given up, and another one begins."""
    at: datetime | None
    """When it was written, by the server's clock."""


class StreamCursor:
    """A reader's place in a stream: the parameters of its next request."""

    def __init__(self, name: str, offset: int, *, follow: bool) -> None:
        if type(offset) is not int or offset < 0:
            raise UsageError(f"the offset of a stream is a whole number from 0; this is {offset!r}")
        self._name = check_name(name)
        self._follow = follow
        self.offset = offset
        self.ended = False
        """Whether no more items follow."""
        self._failed_at: float | None = None
        self._delays = delays()

    def params(self, handle: str) -> dict[str, Any]:
        """Return the parameters of a request."""
        return {"handle": handle, "name": self._name, "offset": self.offset, "wait": WAIT if self._follow else 0.0}

    def take(self, answer: dict[str, Any], codecs: Codecs) -> Iterator[StreamItem]:
        """Yield the items of an answer, and go on behind each. Raises CodecError."""
        for one in answer["items"]:
            value = codecs.decode_json(one["value"], "value", self._name) if codecs else one["value"]
            at = None if one["at"] is None else datetime.fromisoformat(one["at"])
            self.offset = one["offset"] + 1
            yield StreamItem(value, one["offset"], one["attempt"], one["part"], at)
        self.passed(answer)

    def passed(self, answer: dict[str, Any]) -> None:
        """Go on behind all items of an answer."""
        self._failed_at = None
        self._delays = delays()
        self.offset = answer["next"]
        self.ended = answer["ended"] or (not self._follow and not answer["items"])

    def lost(self, error: ConnectionLostError, now: float) -> float:
        """Return the seconds after which the request is sent again, to any node, because it was not answered.

        Raises the error if no server has answered for as long as waits for jobs go on without one.
        """
        if self._failed_at is None:
            self._failed_at = now
        elif now - self._failed_at > RECONNECT_TIMEOUT:
            raise error
        return next(self._delays)


class StreamReader:
    """The items of a stream, for ``for`` and ``async for``. Each loop begins at the same number.

    If a connection ends, a loop goes on at any server behind the last item. Raises NotFoundError if the server does not have the
    job, and ConnectionLostError if no server answers for a minute.
    """

    def __init__(
        self,
        connections: Connections,
        handle: Callable[[], str],
        ahandle: Callable[[], Awaitable[str]],
        name: str,
        offset: int,
        *,
        follow: bool,
    ) -> None:
        self._connections = connections
        self._handle = handle
        self._ahandle = ahandle
        self._place = name, offset, follow
        self._cursor()  # raises UsageError at the call

    def _cursor(self) -> StreamCursor:
        name, offset, follow = self._place
        return StreamCursor(name, offset, follow=follow)

    def __iter__(self) -> Generator[StreamItem]:
        cursor, handle = self._cursor(), self._handle()
        client = self._connections.blocking()
        while not cursor.ended:
            try:
                answer = client.call(CALL, cursor.params(handle), ANSWER_WITHIN)
            except ConnectionLostError as error:
                time.sleep(cursor.lost(error, time.monotonic()))
            else:
                yield from cursor.take(answer, self._connections.codecs)

    async def __aiter__(self) -> AsyncGenerator[StreamItem]:
        cursor, handle = self._cursor(), await self._ahandle()
        client = self._connections.aio()
        while not cursor.ended:
            try:
                answer = await client.call(CALL, cursor.params(handle), ANSWER_WITHIN)
            except ConnectionLostError as error:
                await asyncio.sleep(cursor.lost(error, time.monotonic()))
            else:
                for item in cursor.take(answer, self._connections.codecs):
                    yield item
