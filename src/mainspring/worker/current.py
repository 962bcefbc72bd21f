"""The job that is running: what its function can ask and tell."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, datetime
from operator import index
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from mainspring.client.options import Duration, seconds
from mainspring.errors import UsageError
from mainspring.ids import Handles
from mainspring.quantities import format_duration

if TYPE_CHECKING:
    from mainspring.client.waiting import Awaited
    from mainspring.ids import JobId


class Snooze(Exception):  # noqa: N818 - said by a task, no error
    """Raised by a task: run the job again after ``delay``, without counting this attempt."""

    def __init__(self, delay: Duration) -> None:
        self.delay = seconds(delay, "Snooze's delay")
        super().__init__(f"again in {format_duration(self.delay)}")


class JobStopped(BaseException):  # like CancelledError, it is to pass through ``except Exception``
    """Raised by ``heartbeat()`` in a job that is asked to stop."""


class JobRetry(msgspec.Struct, frozen=True):
    """The retry policy that a job was submitted with; durations in seconds."""

    max_attempts: int
    initial: float = 1.0
    factor: float = 2.0
    maximum: float = 3600.0
    jitter: float = 0.1


class Info(msgspec.Struct, frozen=True):
    """What the server says about a delivery; times are seconds since 1970 UTC, durations seconds."""

    attempt: int = 1
    term: int = 0
    submitted_at: float | None = None
    deadline: float | None = None
    timeout: float | None = None
    heartbeat: float | None = None
    max_attempts: int | None = None
    fire_time: float | None = None
    retry: JobRetry | None = None
    """Where the job has a policy of its own, in place of its function's."""


MAX_PROGRESS: Final = (1 << 63) - 1

decode_info: Final = msgspec.json.Decoder(Info).decode
NO_INFO: Final = Info()


class Reporter(Protocol):
    """Takes what a job tells while it runs, from any thread."""

    def progress(self, job: CurrentJob, done: int, total: int) -> None:
        """Take the newest progress."""

    def tell(self, job: CurrentJob, data: bytes, *, warning: bool) -> None:
        """Take data or a warning for those who wait."""

    def waits(self, job: CurrentJob, awaited: Awaited) -> None:
        """Note that the job waits for another one."""

    def continues(self, job: CurrentJob, awaited: Awaited) -> None:
        """Note that such a wait is over."""


class CurrentJob:
    """The job whose function is running."""

    __slots__ = ("_handle", "_info", "_raw_info", "_reporter", "_stop", "_unique", "function", "origin")

    def __init__(
        self, handle: bytes, unique: bytes, function: str, info: bytes, reporter: Reporter, origin: Any = None
    ) -> None:
        self._handle = handle
        self._unique = unique
        self._raw_info = info
        self._info: Info | None = None
        self._reporter = reporter
        self._stop: str | None = None
        self.function = function
        self.origin = origin  # the reporter's own: where the job came from

    @property
    def handle(self) -> str:
        """The job's public name."""
        return self._handle.decode()

    @property
    def id(self) -> JobId | None:
        """The number in the handle; None where another server's handles have none."""
        return Handles.parse(self._handle)

    @property
    def unique(self) -> str:
        """The name of the computation; empty where it has none."""
        return self._unique.decode()

    @property
    def info(self) -> Info:
        """All that the server says about this delivery."""
        if self._info is None:
            self._info = decode_info(self._raw_info) if self._raw_info else NO_INFO
        return self._info

    @property
    def attempt(self) -> int:
        """Which delivery this is; 1 is the first."""
        return self.info.attempt

    @property
    def term(self) -> int:
        """The number of the lease's holder, which fences an old one."""
        return self.info.term

    @property
    def deadline(self) -> datetime | None:
        """When this attempt's time is over."""
        return _time(self.info.deadline)

    @property
    def fire_time(self) -> datetime | None:
        """When a schedule fired the job; None for a job that no schedule fired."""
        return _time(self.info.fire_time)

    @property
    def cancel_requested(self) -> bool:
        """Whether the job is asked to stop: it was cancelled, its time is over, or its worker stops."""
        return self._stop is not None

    @property
    def stop_reason(self) -> str | None:
        """Why the job is asked to stop: cancelled, timeout, lost or drain; None while it is not."""
        return self._stop

    def ask_to_stop(self, reason: str) -> None:
        """Note that the job is to stop; the worker calls this."""
        if self._stop is None:
            self._stop = reason

    def waits(self, awaited: Awaited) -> None:
        """Note that the function waits for another job; a client calls this."""
        self._reporter.waits(self, awaited)

    def continues(self, awaited: Awaited) -> None:
        """Note that such a wait is over; a client calls this."""
        self._reporter.continues(self, awaited)

    def progress(self, done: int, total: int) -> None:
        """Tell how much of the job is done; of several in a short time the last one is sent.

        Raises UsageError for what is no whole number from 0 on: it fails here, where the mistake is, and not on its way.
        """
        try:
            done, total = index(done), index(total)
        except TypeError:
            raise UsageError(f"progress takes whole numbers; it was given {done!r} and {total!r}") from None
        if not (0 <= done <= MAX_PROGRESS and 0 <= total <= MAX_PROGRESS):
            raise UsageError(f"progress takes whole numbers from 0 to 2^63-1; it was given {done} and {total}")
        self._reporter.progress(self, done, total)

    def heartbeat(self) -> None:
        """Raise JobStopped where the job is asked to stop.

        (That the worker lives is told by the worker itself, for all of its jobs.)
        """
        if self._stop is not None:
            raise JobStopped(self._stop)

    def data(self, data: bytes) -> None:
        """Send a part of the result to those who wait.  Raises UsageError for what is no bytes."""
        self._reporter.tell(self, _bytes(data), warning=False)

    def warning(self, data: bytes) -> None:
        """Send a warning to those who wait.  Raises UsageError for what is no bytes."""
        self._reporter.tell(self, _bytes(data), warning=True)

    @property
    def raw(self) -> tuple[bytes, bytes, bytes]:
        """Handle, unique and info as they came."""
        return self._handle, self._unique, self._raw_info


running_job: Final[ContextVar[CurrentJob]] = ContextVar("mainspring_job")


def current_job() -> CurrentJob:
    """Return the job that is running here.  Raises UsageError outside a task that a worker runs."""
    try:
        return running_job.get()
    except LookupError:
        raise UsageError("current_job() has an answer only inside a task that a worker runs") from None


def _bytes(data: object) -> bytes:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise UsageError(f"data and warnings are bytes; this is {type(data).__name__}")
    return bytes(data)


def _time(value: float | None) -> datetime | None:
    return None if value is None else datetime.fromtimestamp(value, UTC)
