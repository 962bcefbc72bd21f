"""Signals as typed channels."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mainspring.client.json_types import encode_json, problem_of
from mainspring.client.options import Duration, check_text, seconds
from mainspring.client.payload import EMPTY, is_raw, result_decoder
from mainspring.errors import PayloadError, UsageError, WorkflowUsageError
from mainspring.jobs.model import is_users
from mainspring.workflow_code.api import current
from mainspring.workflow_code.handlers import HandlerKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mainspring.workflow_code.api import Calls, Signals

T = TypeVar("T")


class Channel(Generic[T]):
    """The signals of one name, with values of one type. Each run has its own; they queue in the order of their arrival.

    Raises UsageError for a name or a type that cannot be right. Names in the type's fields may be defined later: then
    ``unresolved`` returns why they still cannot be resolved, or empty text.
    """

    def __init__(self, name: str, kind: Any = Any) -> None:
        if not check_text(name, "a signal's name"):
            raise UsageError("a signal's name must not be empty")
        self.name = name
        self._kind = kind
        self._place = ""
        self._decoder: Callable[[bytes], Any] | None = None
        self.unresolved: Callable[[], str] | None = None
        if self._problem():
            self._place = _line_of_caller()
            if problem := self._problem(is_loading=True):
                raise UsageError(problem)
            self.unresolved = self._problem

    def _problem(self, *, is_loading: bool = False) -> str:
        """Return why no value can be read as its type; empty if some can. ``is_loading``: its module still loads."""
        found = "" if is_raw(self._kind) else problem_of(self._kind, is_loading=is_loading)
        return f"signal {self.name}: its value: {found}{self._place}" if found else ""

    def _decode(self, data: bytes) -> Any:
        if self._decoder is None:
            self._decoder = result_decoder(self._kind, f"signal {self.name}: its value")
        return self._decoder(data)

    def __repr__(self) -> str:
        return f"Channel({self.name!r})"

    def encode(self, value: T) -> bytes:
        """Encode a value for the wire. Raises PayloadError if JSON cannot represent it, or its type is wrong."""
        if isinstance(value, (bytes, bytearray, memoryview)):
            data = bytes(value)
        else:
            data = b"" if value is None else encode_json(value, f"the value of signal {self.name}")
        if self._decode(data) is None and not data and value is not None:
            raise PayloadError(f"the value of signal {self.name} is empty bytes, {EMPTY}")
        return data

    def decode(self, data: bytes) -> T:
        """Decode a value. Raises PayloadError."""
        try:
            value: T = self._decode(data)
        except PayloadError as error:
            error.received = True
            raise
        return value

    async def receive(self, timeout: Duration | None = None) -> T:  # noqa: ASYNC109 - a durable timer
        """Return the next value, in order of arrival. A signal is received once.

        Raises TimeoutError if none arrives in time, and PayloadError if the value does not have the channel's type: that signal
        has been received.
        """
        calls = self._calls("receive")
        if calls.handlers is not None and calls.handlers.find(HandlerKind.SIGNAL, self.name) is not None:
            raise WorkflowUsageError(
                f"signal {self.name} has a handler, which gets all of its values: do not receive it"
            )
        queue = calls.signals(self.name)
        if timeout is None or not queue.empty():
            return self.decode(await self._next(calls, queue))
        limit = seconds(timeout, "timeout")
        calls.loop.guarded = f"signal {self.name}"
        async with asyncio.timeout(limit):
            calls.loop.guarded = ""  # a timeout of 0 has no timer
            data = await self._next(calls, queue)
        return self.decode(data)

    async def _next(self, calls: Calls, queue: Signals) -> bytes:
        calls.begin_receive()
        waiting = calls.receivers
        waiting[self.name] = waiting.get(self.name, 0) + 1
        try:
            while True:
                signal = await queue.get()
                if not calls.ends_anew():
                    calls.note_received(signal[0])
                    return signal[1]
                queue.put_back(signal)  # the next run gets it, unless this one goes on
                await calls.hold()
        finally:
            waiting[self.name] -= 1

    def pending(self) -> int:
        """Return the number of values that have arrived and were not received."""
        return self._calls("pending").signals(self.name).qsize()

    async def __aiter__(self) -> AsyncIterator[T]:
        while True:
            yield await self.receive()

    def _calls(self, method: str) -> Calls:
        calls = current()
        if calls is None:
            raise WorkflowUsageError(
                f"signal {self.name}: {method} works only inside of a workflow; to send a signal to a run, write run.signal(…)"
            )
        return calls


def _line_of_caller() -> str:
    """Return the innermost line of users' code, `` (FILE:LINE)``; empty if there is none."""
    frame = inspect.currentframe()
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f" ({frame.f_code.co_filename}:{frame.f_lineno})"
