"""Reports of running jobs, passed from any thread to the connections: progress, data, warnings, waits, lines of logs and values.

Lines are sent in batches, after `LOG_INTERVAL` or when a batch has `BATCH_BYTES`. Of a job that logs faster than its lines can
be sent, the oldest ones are dropped; the numbers of the lines show how many. If the server keeps no lines, they go to the
worker's own log.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import structlog

from mainspring.codecs import NO_CODECS, Codecs
from mainspring.errors import ServerError, UsageError
from mainspring.streams.model import ITEM_BYTES
from mainspring.values.model import VALUE_BYTES
from mainspring.worker.delivery import Origin
from mainspring.worker.job_log import line_time_us
from mainspring.worker.stream_batches import StreamBatches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.client.inside import Awaited
    from mainspring.errors import MainspringError
    from mainspring.worker.current import CurrentJob, TokenRequest
    from mainspring.worker.job_log import LogLine
    from mainspring.worker.link import Link
    from mainspring.worker.places import Waits
    from mainspring.worker.session import Key

LOG_INTERVAL: Final = 0.2
"""Seconds after which lines are sent."""
BATCH_BYTES: Final = 16_384
SHORTEST: Final = 0.02
"""Seconds between two batches."""
DELIVERY_BYTES: Final = 128 * 1024
"""Bytes of one job's lines that may wait."""
TOTAL_BYTES: Final = 1024 * 1024
"""The same of all jobs."""

log = structlog.get_logger("mainspring.worker")
_encode = msgspec.msgpack.Encoder().encode


class _Waiting:
    """The lines of one delivery that were not sent."""

    __slots__ = ("bytes", "lines", "next")

    def __init__(self) -> None:
        self.next = 1
        """The number of the next line."""
        self.lines: deque[LogLine] = deque()
        self.bytes = 0


class LogBatches:
    """Collects lines in any thread, and sends them on the loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._deliveries: dict[Origin, _Waiting] = {}
        self._bytes = 0
        self._is_scheduled = self._is_hurried = False
        self._timer: asyncio.TimerHandle | None = None
        self._sent = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._deliveries)

    def attach(self) -> None:
        """Use the running loop."""
        self._loop = asyncio.get_running_loop()

    def add(self, origin: Origin, line: LogLine) -> None:
        """Add a line of a job."""
        size = line.size
        with self._lock:
            waiting = self._deliveries.get(origin)
            if waiting is None:
                waiting = self._deliveries[origin] = _Waiting()
            waiting.next += 1
            while waiting.lines and (waiting.bytes + size > DELIVERY_BYTES or self._bytes + size > TOTAL_BYTES):
                gone = waiting.lines.popleft().size
                waiting.bytes -= gone
                self._bytes -= gone
            waiting.lines.append(line)
            waiting.bytes += size
            self._bytes += size
            begins = not self._is_scheduled
            hurries = self._bytes >= BATCH_BYTES and not self._is_hurried
            self._is_scheduled = True
            self._is_hurried = self._is_hurried or hurries
        if (begins or hurries) and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._schedule)
            except RuntimeError:
                pass  # the loop is closed: the worker has ended

    def _schedule(self) -> None:
        """Set the timer, or set it earlier for a batch that is full."""
        assert self._loop is not None
        due = self._sent + SHORTEST if self._is_hurried else self._loop.time() + LOG_INTERVAL
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self.send)

    def send(self) -> None:
        """Send what has been collected; also called before settlements, which end their deliveries."""
        if not self._is_scheduled or self._loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sent = self._loop.time()
        packets: dict[Link, list[tuple[bytes, bytes, int, list[LogLine], int]]] = {}
        refused: list[tuple[bytes, LogLine]] = []
        with self._lock:
            self._is_scheduled = self._is_hurried = False
            self._bytes = 0
            for origin, waiting in list(self._deliveries.items()):
                session = origin.link.session
                if origin.key not in session.running:
                    del self._deliveries[origin]
                elif waiting.lines:
                    if session.takes_logs:
                        first = waiting.next - len(waiting.lines)
                        batch = (*origin.key, first, list(waiting.lines), line_time_us())
                        packets.setdefault(origin.link, []).append(batch)
                    else:
                        refused += [(origin.key[0], line) for line in waiting.lines if not line.logger]
                    waiting.lines.clear()
                    waiting.bytes = 0
        for link, batches in packets.items():
            link.session.send_logs(_encode(batches))
            link.flush()
        for handle, line in refused:
            contextvars.Context().run(_write_here, handle, line)  # this one may be that of another job

    @property
    def has_lines(self) -> bool:
        """Whether it knows any delivery."""
        return bool(self._deliveries)

    def ended(self, origin: Origin) -> None:
        """Forget a delivery that has ended."""
        with self._lock:
            self._deliveries.pop(origin, None)


def _write_here(handle: bytes, line: LogLine) -> None:
    """Write a line of ``current_job().log`` to the log of the worker, which has the records of `logging` already."""
    fields = {"fields": line.fields} if line.fields else {}
    log.log(10 * (line.level + 1), line.message, handle=handle.decode("utf-8", "replace"), **fields)


PROGRESS_INTERVAL: Final = 0.2
"""Seconds between two progress reports of a job."""


VALUE_INTERVAL: Final = 0.1
"""Seconds after which published values are sent: of each name, the last one in this time."""
PACKET_BYTES: Final = 2**20
"""Bytes of the values in one packet, or those of one job, if they are more: a server takes no packet of any size."""
WARN_INTERVAL: Final = 60.0
"""Seconds between two lines about values that no server keeps."""


_OfDelivery: TypeAlias = tuple[bytes, bytes, list[tuple[str, bytes]]]
"""A delivery, by its handle and its token, with names and values."""


class PublishedValues:
    """Collects values in any thread, and sends them on the loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._values: dict[Origin, dict[str, bytes]] = {}
        self._warned = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._values)

    def attach(self) -> None:
        """Use the running loop."""
        self._loop = asyncio.get_running_loop()

    def add(self, origin: Origin, name: str, value: bytes) -> None:
        """Send a value soon, unless a later one of the same name takes its place."""
        with self._lock:
            begins = not self._values
            self._values.setdefault(origin, {})[name] = value
        if begins and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._schedule)
            except RuntimeError:
                pass  # the loop is closed: the worker has ended

    def _schedule(self) -> None:
        assert self._loop is not None
        self._loop.call_later(VALUE_INTERVAL, self.send)

    def send(self) -> None:
        """Send what has been collected; also called before settlements, which end their deliveries."""
        with self._lock:
            values, self._values = self._values, {}
        links: dict[Link, list[_OfDelivery]] = {}
        for origin, named in values.items():
            session = origin.link.session
            if origin.key not in session.running:
                continue
            if session.takes_values:
                links.setdefault(origin.link, []).append((*origin.key, [*named.items()]))
            else:
                self.warn(origin.key[0])
        for link, published in links.items():
            for batch in _packets(published):
                link.session.send_values(_encode(batch))
            link.flush()

    def warn(self, handle: bytes) -> None:
        """Log that a value was dropped, from time to time."""
        assert self._loop is not None
        if self._loop.time() - self._warned >= WARN_INTERVAL:
            self._warned = self._loop.time()
            text = handle.decode("utf-8", "replace")
            log.warning("published values were dropped: the server keeps none", handle=text)


def _packets(published: list[_OfDelivery]) -> Iterator[list[_OfDelivery]]:
    """Divide what deliveries have published into packets."""
    packet: list[_OfDelivery] = []
    size = 0
    for one in published:
        more = sum(len(value) for _, value in one[2])
        if packet and size + more > PACKET_BYTES:
            yield packet
            packet, size = [], 0
        packet.append(one)
        size += more
    yield packet


def encoded_value(codecs: Codecs, name: str, value: bytes) -> bytes:
    """Return a published value as it is stored. Raises CodecError, and UsageError if it is too large then."""
    if not codecs:
        return value
    encoded = codecs.encode_json(value, "value", name)
    if len(encoded) > VALUE_BYTES:
        raise UsageError(
            f"the value {name!r} has {len(encoded):,} bytes when it is encoded, and a published value at most {VALUE_BYTES:,}:"
            " publish a summary, and return or store the rest"
        )
    return encoded


def encoded_item(codecs: Codecs, name: str, item: bytes) -> bytes:
    """Return an item of a stream as it is stored. Raises CodecError, and UsageError if it is too large then."""
    if not codecs:
        return item
    encoded = codecs.encode_json(item, "value", name)
    if len(encoded) > ITEM_BYTES:
        raise UsageError(
            f"the item for the stream {name!r} has {len(encoded):,} bytes when it is encoded, and an item at most {ITEM_BYTES:,}:"
            " write it in parts"
        )
    return encoded


class Reports:
    """The reporter of a worker's jobs. Of each job's progress it sends the newest, at most once in `PROGRESS_INTERVAL`."""

    def __init__(self, waits: Waits, codecs: Codecs = NO_CODECS) -> None:
        self._waits = waits
        self._codecs = codecs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._progress: dict[Origin, tuple[int, int, str]] = {}
        self._next_progress: dict[Origin, float] = {}
        """The times from which the next progress of a job may be sent."""
        self._timer: asyncio.TimerHandle | None = None
        self._logs = LogBatches()
        self._values = PublishedValues()
        self._streams = StreamBatches()
        self._data: deque[tuple[Origin, bytes, bool]] = deque()
        self._scheduled = False

    def attach(self) -> None:
        """Use the running loop."""
        self._loop = asyncio.get_running_loop()
        self._logs.attach()
        self._values.attach()
        self._streams.attach()

    def progress(self, job: CurrentJob, done: int, total: int, text: str) -> None:
        """Queue the newest progress for sending."""
        self._progress[job.origin] = (done, total, text)
        self._schedule()

    def send_data(self, job: CurrentJob, data: bytes, *, warning: bool) -> None:
        """Queue data or a warning for sending. Raises CodecError."""
        if not warning:
            data = self._codecs.encode(data, "data", job.function)
        self._data.append((job.origin, data, warning))
        self._schedule()

    def write_log(self, job: CurrentJob, line: LogLine) -> None:
        """Queue a line for sending."""
        if job.origin is not None:
            self._logs.add(job.origin, line)

    def publish(self, job: CurrentJob, name: str, value: bytes) -> None:
        """Queue a value for sending. Raises CodecError, and UsageError for a value that is too large when it is encoded."""
        if job.origin is not None:
            value = encoded_value(self._codecs, name, value)
            self._values.add(job.origin, name, value)

    @property
    def has_streams(self) -> bool:
        """Whether any delivery has written to streams: most jobs write none, and then their ends need no call."""
        return bool(self._streams)

    def close_streams(self, link: Link, key: Key) -> None:
        """Send the items of a delivery that were not stored, before its settlement."""
        self._streams.close(Origin(link, key))

    def write_item(self, job: CurrentJob, name: str, item: bytes) -> int:
        """Queue an item for sending, and return the bytes that wait. Raises CodecError, and UsageError for a full stream."""
        if job.origin is None:
            return 0
        return self._streams.add(job.origin, name, encoded_item(self._codecs, name, item))

    def flush_streams(self, job: CurrentJob, done: Callable[[MainspringError | None], None]) -> None:
        """Send the items of a job now; ``done`` is called, in any thread, once they are stored, or with an error."""
        if job.origin is None:
            done(None)
        else:
            self._streams.flush(job.origin, done)

    @property
    def has_logs(self) -> bool:
        """Whether any delivery has logged lines: most jobs log none, and then their ends need no call."""
        return bool(self._logs)

    def ended(self, link: Link, key: Key) -> None:
        """Forget a delivery that has ended."""
        if self._streams:
            self._streams.close(Origin(link, key))
        if self._next_progress or self._progress or self._logs.has_lines:
            origin = Origin(link, key)
            self._logs.ended(origin)
            self._next_progress.pop(origin, None)
            self._progress.pop(origin, None)

    def open_completion(
        self, job: CurrentJob, request: TokenRequest, done: Callable[[MainspringError | None], None]
    ) -> None:
        """Ask the job's server for a completion token."""
        origin = job.origin
        if origin is None or self._loop is None:
            done(UsageError("this job can have no completion token: its function does not run in a worker"))
            return

        def ask() -> None:
            origin.link.session.open_completion(origin.key, request, done)
            origin.link.flush()

        try:
            self._loop.call_soon_threadsafe(ask)
        except RuntimeError:
            done(ServerError("the worker has ended"))

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
        if self._values:
            self._values.send()
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
