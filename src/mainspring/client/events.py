"""Events for programs: an iterator of typed events, blocking and for asyncio, that goes on where the program was.

The place of a named cursor is in the store. It moves to an event when the loop asks for the next one, so an event whose loop body
has failed, or whose program has died, comes once more. To spare requests it moves at most once a second, and before each wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.client.event import Event
from mainspring.client.session import delays
from mainspring.errors import ConnectionLostError, MainspringError, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterator

    from mainspring.client.connections import Connections

WAIT: Final = 30.0
"""Seconds for which a server waits for an event before it answers."""
PAGE: Final = 200
"""Events of one request."""
MOVE_INTERVAL: Final = 1.0
"""Seconds between two moves of a cursor while events come."""


class EventsMissedError(MainspringError):
    """Events were deleted before the program read them. Its cursor has moved behind them: the next loop goes on there."""


class _Sleep:
    """A pause, in seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


_Call = tuple[str, dict[str, Any]]
"""A method and its params."""


class EventReader:
    """The events of a filter: iterate over it with ``for`` or ``async for``. Each loop begins at the cursor, or now."""

    def __init__(self, connections: Connections, filtered: dict[str, Any], cursor: str | None) -> None:
        self._connections = connections
        self._filter = filtered
        self._cursor = cursor

    def __iter__(self) -> Iterator[Event]:
        """Yield events without end, whatever server answers.

        Raises EventsMissedError; and at the begin UsageError, ForbiddenError, and ConnectionLostError if there is no server.
        """
        reading = _Reading(self._filter, self._cursor)
        call = self._connections.blocking().call
        steps = reading.steps()
        step = next(steps)
        try:
            while True:
                if isinstance(step, Event):
                    yield step
                    step = steps.send(None)
                elif isinstance(step, _Sleep):
                    time.sleep(step.seconds)
                    step = steps.send(None)
                else:
                    try:
                        answer = call(*step)
                    except MainspringError as error:
                        step = steps.throw(error)
                    else:
                        step = steps.send(answer)
        finally:
            last = reading.unmoved()
            if last is not None:
                with contextlib.suppress(MainspringError):  # the events come once more
                    call(*last)

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        """Yield events as a plain loop does. Close it with `contextlib.aclosing` to move the cursor as the loop ends."""
        reading = _Reading(self._filter, self._cursor)
        call = self._connections.aio().call
        steps = reading.steps()
        step = next(steps)
        try:
            while True:
                if isinstance(step, Event):
                    yield step
                    step = steps.send(None)
                elif isinstance(step, _Sleep):
                    await asyncio.sleep(step.seconds)
                    step = steps.send(None)
                else:
                    try:
                        answer = await call(*step)
                    except MainspringError as error:
                        step = steps.throw(error)
                    else:
                        step = steps.send(answer)
        finally:
            last = reading.unmoved()
            if last is not None:
                with contextlib.suppress(MainspringError):
                    await call(*last)


class _Reading:
    """One loop: the requests that it sends, and the events that it yields. It does no input or output itself."""

    def __init__(self, filtered: dict[str, Any], cursor: str | None) -> None:
        self._filter = filtered
        self._cursor = cursor
        self._done = self._moved = ""
        """The last event that the loop has handled, and the place of the cursor."""

    def unmoved(self) -> _Call | None:
        """Return the call that moves the cursor, if the loop has handled events since the last move."""
        if self._cursor is None or self._done == self._moved:
            return None
        self._moved = self._done
        return "events.move_cursor", {"name": self._cursor, "to": self._done}

    def steps(self) -> Generator[_Call | _Sleep | Event, Any, None]:
        """Yield calls, whose answers or errors are sent and thrown in, pauses, and events."""
        if self._cursor is None:
            answer = yield "events.list", {**self._filter, "after": "end"}
            place = answer["last"]
        else:
            saved = yield "events.save_cursor", {**self._filter, "name": self._cursor}
            place = saved["place"]
        self._done = self._moved = place
        moved_at = time.monotonic()
        while True:
            answer = yield from self._read(place)
            for row in answer["items"]:
                yield msgspec.convert(row, Event)
                self._done = row["id"]
                if time.monotonic() - moved_at >= MOVE_INTERVAL:
                    yield from self._move()
                    moved_at = time.monotonic()
            place = self._done = answer["last"]
            yield from self._move()
            moved_at = time.monotonic()

    def _move(self) -> Generator[_Call | _Sleep | Event, Any, None]:
        call = self.unmoved()
        if call is not None:
            yield from _repeated(call)

    def _read(self, place: str) -> Generator[_Call | _Sleep | Event, Any, Any]:
        try:
            params = {**self._filter, "after": place, "wait": WAIT, "limit": PAGE}
            return (yield from _repeated(("events.list", params)))
        except NotFoundError as error:
            first = yield from _repeated(("events.list", {**self._filter, "order": "oldest", "limit": 1}))
            rows = first["items"]
            self._done = str(int(rows[0]["id"]) - 1) if rows else first["last"]
            yield from self._move()
            raise EventsMissedError(str(error)) from None


def _repeated(call: _Call) -> Generator[_Call | _Sleep | Event, Any, Any]:
    """Send a call until a server answers."""
    pauses = delays()
    while True:
        try:
            return (yield call)
        except ConnectionLostError:
            yield _Sleep(next(pauses))


def checked_filter(types: tuple[str, ...], function: str | None, tag: str | None) -> dict[str, Any]:
    """Return the params of a filter. Raises UsageError for a wrong one."""
    for one in types:
        if not isinstance(one, str):
            raise UsageError(
                f"{one!r} is no type of events: give names such as 'job.failed', or patterns such as 'job.*'"
            )
    given = {"type": [*types] or None, "function": function, "tag": tag}
    return {name: value for name, value in given.items() if value is not None}
