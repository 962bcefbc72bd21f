"""Items that running jobs write to streams, passed from any thread to the connections in batches.

Invariant: a batch has all items of a stream that may not be stored, with the number of the first one among those of the
delivery. So it does not matter which of two batches is stored, or whether both are: the store leaves out what it has. A delivery
has one batch under way at most, but for the last one, which goes before the settlement and waits for no answer.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import structlog

from mainspring.errors import ConnectionLostError, MainspringError, ServerError, UsageError
from mainspring.streams.model import BATCH_BYTES, BATCH_ITEMS, full, size_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.worker.delivery import Origin

INTERVAL: Final = 0.1
"""Seconds after which items are sent."""
RETRY_PAUSE: Final = 1.0
"""Seconds after which a batch is sent again that the server could not store."""

log = structlog.get_logger("mainspring.worker")

Done: TypeAlias = "Callable[[MainspringError | None], None]"


class _Stream:
    """The items of a stream that may not be stored."""

    __slots__ = ("items", "position")

    def __init__(self) -> None:
        self.position = 0
        """The number of the first one among those of the delivery."""
        self.items: list[bytes] = []


class _Delivery:
    """The streams of a delivery."""

    __slots__ = ("bytes", "error", "flushes", "is_sending", "sent_at", "streams", "writer")

    def __init__(self) -> None:
        self.writer = secrets.randbits(62)
        self.streams: dict[str, _Stream] = {}
        self.bytes = 0
        """Bytes that wait, with `ITEM_COST`."""
        self.error: MainspringError | None = None
        """Why it can write no more."""
        self.flushes: list[tuple[dict[str, int], Done]] = []
        """Those who wait until the streams are stored up to some numbers."""
        self.is_sending = False

    @property
    def waits(self) -> bool:
        """Whether items wait."""
        return self.bytes > 0

    def batch(self) -> list[tuple[str, int, list[bytes]]]:
        """Return the items of one batch: names, numbers of the first items, and items."""
        found, room, most = list[tuple[str, int, list[bytes]]](), BATCH_BYTES, BATCH_ITEMS
        for name, stream in self.streams.items():
            taken = 0
            for item in stream.items:
                if (room < size_of(item) and (found or taken)) or not most:
                    break
                taken, room, most = taken + 1, room - size_of(item), most - 1
            if taken:
                found.append((name, stream.position, stream.items[:taken]))
        return found

    def stored(self, name: str, until: int) -> None:
        """Forget the items of a stream before a number."""
        stream = self.streams[name]
        number = max(until - stream.position, 0)
        self.bytes -= sum(map(size_of, stream.items[:number]))
        del stream.items[:number]
        stream.position += number

    def fail(self, error: MainspringError) -> list[tuple[Done, MainspringError | None]]:
        """Drop all items, because they cannot be stored; return those to call."""
        self.error = self.error or error
        for stream in self.streams.values():
            stream.items.clear()
        self.bytes = 0
        flushes, self.flushes = self.flushes, []
        return [(done, self.error) for _, done in flushes]

    def flushed(self) -> list[tuple[Done, MainspringError | None]]:
        """Return those to call whose items are stored."""
        ready = [one for one in self.flushes if all(self.streams[name].position >= at for name, at in one[0].items())]
        self.flushes = [one for one in self.flushes if one not in ready]
        return [(done, None) for _, done in ready]


class StreamBatches:
    """Collects items in any thread, and sends them on the loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._deliveries: dict[Origin, _Delivery] = {}
        self._is_scheduled = False

    def __bool__(self) -> bool:
        return bool(self._deliveries)

    def attach(self) -> None:
        """Use the running loop."""
        self._loop = asyncio.get_running_loop()

    def add(self, origin: Origin, name: str, item: bytes) -> int:
        """Add an item, and return the bytes of the delivery that wait. Raises the error for which it can write no more."""
        with self._lock:
            delivery = self._deliveries.get(origin)
            if delivery is None:
                delivery = self._deliveries[origin] = _Delivery()
            if delivery.error is not None:
                raise delivery.error
            stream = delivery.streams.get(name)
            if stream is None:
                stream = delivery.streams[name] = _Stream()
            stream.items.append(item)
            before, delivery.bytes = delivery.bytes, delivery.bytes + size_of(item)
            waiting = delivery.bytes
            begins, self._is_scheduled = not self._is_scheduled, True
        if begins:
            self._call(self._schedule)
        elif before < BATCH_BYTES <= waiting:
            self._call(lambda: self._send(origin))
        return waiting

    def flush(self, origin: Origin, done: Done) -> None:
        """Send the items of a delivery now; ``done`` is called, in any thread, once they are stored, or with an error."""
        with self._lock:
            delivery = self._deliveries.get(origin)
            error = None if delivery is None else delivery.error
            waits = delivery is not None and delivery.waits
            if delivery is not None and waits:
                until = {name: one.position + len(one.items) for name, one in delivery.streams.items()}
                delivery.flushes.append((until, done))
        if not waits:
            done(error)
        elif not self._call(lambda: self._send(origin)):
            done(ServerError("the worker has ended"))

    def close(self, origin: Origin) -> None:
        """Send all items of a delivery that may not be stored, and forget it: its settlement follows."""
        with self._lock:
            delivery = self._deliveries.pop(origin, None)
        if delivery is None:
            return
        session = origin.link.session
        if delivery.waits and origin.key in session.running and session.takes_streams:
            while batch := delivery.batch():
                session.write_items(_encoded(origin, delivery.writer, batch), _noting(origin))
                for name, position, items in batch:
                    delivery.stored(name, position + len(items))
            origin.link.flush()
        over = ServerError("the job has ended, or its worker has lost it")
        for done, error in delivery.fail(over):
            done(error)

    def _call(self, function: Callable[[], object]) -> bool:
        if self._loop is None:
            return False
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False  # the loop is closed: the worker has ended
        return True

    def _schedule(self) -> None:
        assert self._loop is not None
        self._loop.call_later(INTERVAL, self._send_all)

    def _send_all(self) -> None:
        with self._lock:
            self._is_scheduled = False
            origins = list(self._deliveries)
        for origin in origins:
            self._send(origin)

    def _send(self, origin: Origin) -> None:
        """Send a batch of a delivery, unless one is under way."""
        session = origin.link.session
        calls: list[tuple[Done, MainspringError | None]] = []
        with self._lock:
            delivery = self._deliveries.get(origin)
            if delivery is None or delivery.is_sending or not delivery.waits:
                return
            if origin.key not in session.running:
                del self._deliveries[origin]
                calls = delivery.fail(ServerError("the worker has lost this job, or its connection"))
            elif not session.takes_streams:
                calls = delivery.fail(UsageError("the server keeps no streams: use one on SQLite or PostgreSQL"))
                log.warning("items of streams were dropped: the server keeps none", handle=origin.key[0].decode())
            else:
                batch = delivery.batch()
                delivery.is_sending = True
        for done, error in calls:
            done(error)
        if not calls and delivery.is_sending:
            session.write_items(
                _encoded(origin, delivery.writer, batch), lambda answer: self._answered(origin, delivery, batch, answer)
            )
            origin.link.flush()

    def _answered(
        self,
        origin: Origin,
        delivery: _Delivery,
        batch: list[tuple[str, int, list[bytes]]],
        answer: list[str] | MainspringError,
    ) -> None:
        is_late = False
        with self._lock:
            delivery.is_sending = False
            if isinstance(answer, MainspringError):
                is_late = origin.key in origin.link.session.running and not isinstance(
                    answer, (UsageError, ConnectionLostError)
                )
                calls = [] if is_late else delivery.fail(answer)
            else:
                calls = []
                for (name, position, items), outcome in zip(batch, answer, strict=True):
                    if outcome == "stored":
                        delivery.stored(name, position + len(items))
                    elif outcome == "full":
                        calls += delivery.fail(UsageError(full(name)))
                    else:
                        calls += delivery.fail(
                            ServerError("another worker may have this job: its items are not stored")
                        )
                calls += delivery.flushed()
        for done, error in calls:
            done(error)
        assert self._loop is not None
        if is_late:
            self._loop.call_later(RETRY_PAUSE, self._send, origin)
        elif delivery.flushes or delivery.bytes >= BATCH_BYTES:
            self._send(origin)
        elif delivery.waits:
            self._loop.call_later(INTERVAL, self._send, origin)


def _encoded(origin: Origin, writer: int, batch: list[tuple[str, int, list[bytes]]]) -> list[dict[str, Any]]:
    handle, token = (part.decode() for part in origin.key)
    return [
        {
            "handle": handle,
            "token": token,
            "name": name,
            "writer": writer,
            "position": position,
            "items": [msgspec.Raw(item) for item in items],
        }
        for name, position, items in batch
    ]


def _noting(origin: Origin) -> Callable[[list[str] | MainspringError], None]:
    """Return a function that logs the items of an ended job that were not stored."""

    def done(answer: list[str] | MainspringError) -> None:
        if isinstance(answer, MainspringError) or set(answer) - {"stored"}:
            reason = str(answer) if isinstance(answer, MainspringError) else ", ".join(answer)
            log.warning("the last items of streams were not stored", handle=origin.key[0].decode(), reason=reason)

    return done
