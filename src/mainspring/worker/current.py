"""The running job, as its function sees it."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from mainspring.byte_names import name_text
from mainspring.client.options import Duration, seconds
from mainspring.client.validation import check_progress, check_progress_text
from mainspring.errors import UsageError
from mainspring.ids import Handles
from mainspring.quantities import format_duration
from mainspring.worker.job_log import JobLog

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from mainspring.client.awaited_jobs import Awaited
    from mainspring.ids import JobId
    from mainspring.worker.job_log import LogLine


class Snooze(Exception):  # noqa: N818 - a request of a task, not an error
    """A task raises it to run the job again after ``delay``, without counting this attempt."""

    def __init__(self, delay: Duration) -> None:
        self.delay = seconds(delay, "Snooze's delay")
        super().__init__(f"again in {format_duration(self.delay)}")


class JobStopped(BaseException):  # ``except Exception`` must not catch it, like CancelledError
    """Raised by ``heartbeat()`` in a job that has to stop."""


class JobRetry(msgspec.Struct, frozen=True):
    """The retry policy that a job was submitted with; durations in seconds."""

    max_attempts: int
    initial: float = 1.0
    factor: float = 2.0
    maximum: float = 3600.0
    jitter: float = 0.1


class Info(msgspec.Struct, frozen=True):
    """The server's information about a delivery; times are seconds since 1970 UTC, durations seconds."""

    attempt: int = 1
    term: int = 0
    submitted_at: float | None = None
    deadline: float | None = None
    timeout: float | None = None
    heartbeat: float | None = None
    max_attempts: int | None = None
    fire_time: float | None = None
    retry: JobRetry | None = None
    """The job's own policy, if it does not use its function's."""


decode_info: Final = msgspec.json.Decoder(Info).decode
NO_INFO: Final = Info()


class Reporter(Protocol):
    """The receiver of a running job's reports.  Called from any thread."""

    def progress(self, job: CurrentJob, done: int, total: int, text: str) -> None:
        """Send the newest progress."""

    def send_data(self, job: CurrentJob, data: bytes, *, warning: bool) -> None:
        """Send data or a warning to waiting clients."""

    def write_log(self, job: CurrentJob, line: LogLine) -> None:
        """Send a line of the job's log."""

    def waits(self, job: CurrentJob, awaited: Awaited) -> None:
        """Record that the job waits for another one."""

    def continues(self, job: CurrentJob, awaited: Awaited) -> None:
        """Record that such a wait is over."""


class CurrentJob:
    """The job whose function is running."""

    __slots__ = ("_handle", "_info", "_raw_info", "_reporter", "_stop", "_unique", "function", "loop", "origin")

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
        self.origin = origin  # for the reporter: the job's connection and delivery
        self.loop: AbstractEventLoop | None = None  # the event loop that runs its coroutine

    @property
    def handle(self) -> str:
        """The job's handle."""
        return self._handle.decode()

    @property
    def id(self) -> JobId | None:
        """The number in the handle; None if the server is not Mainspring."""
        return Handles.parse(self._handle)

    @property
    def unique(self) -> str:
        """The job's unique; empty if it has none."""
        return name_text(self._unique)

    @property
    def info(self) -> Info:
        """The server's information about this delivery."""
        if self._info is None:
            self._info = decode_info(self._raw_info) if self._raw_info else NO_INFO
        return self._info

    @property
    def attempt(self) -> int:
        """The number of this attempt; the first is 1."""
        return self.info.attempt

    @property
    def term(self) -> int:
        """The term of the node that holds the job's lease; a larger one fences older nodes."""
        return self.info.term

    @property
    def deadline(self) -> datetime | None:
        """The time at which this attempt times out; None without a limit."""
        return _time(self.info.deadline)

    @property
    def fire_time(self) -> datetime | None:
        """The fire time of the schedule that created the job; None for a job without a schedule."""
        return _time(self.info.fire_time)

    @property
    def cancel_requested(self) -> bool:
        """Whether the job has to stop: it was cancelled, it has timed out, or its worker stops."""
        return self._stop is not None

    @property
    def stop_reason(self) -> str | None:
        """The reason why the job has to stop: cancelled, timeout, lost or drain; None if it need not."""
        return self._stop

    def ask_to_stop(self, reason: str) -> None:
        """Set the reason why the job has to stop; the worker calls this."""
        if self._stop is None:
            self._stop = reason

    def write_log(self, line: LogLine) -> None:
        """Add a line to the job's log; ``log`` is for users."""
        self._reporter.write_log(self, line)

    def waits(self, awaited: Awaited) -> None:
        """Record that the function waits for another job; a client calls this."""
        self._reporter.waits(self, awaited)

    def continues(self, awaited: Awaited) -> None:
        """Record that such a wait is over; a client calls this."""
        self._reporter.continues(self, awaited)

    @property
    def log(self) -> JobLog:
        """The job's log: its lines are stored with the job."""
        return JobLog(self.write_log)

    def progress(self, done: int, total: int, text: str = "") -> None:
        """Report how much of the job is done, with a text for people; at most five reports a second are sent, the newest ones.

        Raises UsageError for numbers other than whole ones from 0, and for a text of more than 256 characters, at the call that
        passes them.
        """
        self._reporter.progress(self, *check_progress(done, total), check_progress_text(text))

    def heartbeat(self) -> None:
        """Raise JobStopped if the job has to stop.

        It need not be called to keep the job alive: the worker sends heartbeats for all of its jobs.
        """
        if self._stop is not None:
            raise JobStopped(self._stop)

    def data(self, data: bytes) -> None:
        """Send a part of the result to waiting clients.  Raises UsageError for values other than bytes."""
        self._reporter.send_data(self, _bytes(data), warning=False)

    def warning(self, data: bytes) -> None:
        """Send a warning to waiting clients.  Raises UsageError for values other than bytes."""
        self._reporter.send_data(self, _bytes(data), warning=True)

    @property
    def raw(self) -> tuple[bytes, bytes, bytes]:
        """Handle, unique and info as received."""
        return self._handle, self._unique, self._raw_info


running_job: Final[ContextVar[CurrentJob]] = ContextVar("mainspring_job")


def current_job() -> CurrentJob:
    """Return the job whose task calls this.  Raises UsageError outside a task that a worker runs."""
    try:
        return running_job.get()
    except LookupError:
        raise UsageError("there is no current job: call current_job() only inside a task that a worker runs") from None


def _bytes(data: object) -> bytes:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise UsageError(f"data and warnings are bytes; this is {type(data).__name__}")
    return bytes(data)


def _time(value: float | None) -> datetime | None:
    return None if value is None else datetime.fromtimestamp(value, UTC)
