"""The running job, as its function sees it: `current_job`."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from concurrent.futures import Future
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from mainspring.client.inside import running_loop
from mainspring.client.json_types import encode_json
from mainspring.client.options import Duration, check_progress, check_progress_text, seconds
from mainspring.client.resources import HeldSlots
from mainspring.errors import ServerError, UsageError
from mainspring.ids import Handles
from mainspring.jobs.completion_rules import DEFAULT_EXPIRY, check_spans, digest_of, new_token
from mainspring.namespaces import name_text
from mainspring.quantities import format_duration
from mainspring.streams.model import Written
from mainspring.streams.model import check_name as check_stream
from mainspring.values.model import Published
from mainspring.worker.job_log import JobLog

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from mainspring.client.inside import Awaited
    from mainspring.client.options import Retry
    from mainspring.client.resources import Resource
    from mainspring.errors import MainspringError
    from mainspring.ids import JobId
    from mainspring.worker.job_log import LogLine

TOKEN_TIMEOUT: Final = 60.0
"""Seconds for which a job waits for the answer to its request for a completion token."""


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
    depth: int = 0
    completion: tuple[float, float] | None = None
    """Of a job that only its completion token may complete: the seconds until it expires, and of its heartbeat, 0 for none."""
    resources: tuple[tuple[str, str, int, int], ...] = ()
    """The slots that the job has: resource, item, number of slots, fencing number."""
    metas: tuple[tuple[str, str, Any], ...] = ()
    """Those of instances of managed resources: resource, instance, meta."""


decode_info: Final = msgspec.json.Decoder(Info).decode
NO_INFO: Final = Info()
_COMPLETION: Final = b'"completion":'
"""As the next one: each end of a function looks for it."""
_DEPTH: Final = b'"depth":'
"""In the information about the jobs that have one: each submit in a task looks for it."""


class TokenRequest(NamedTuple):
    """A request for a completion token; the token itself stays with the job, and ``digest`` is its SHA-256 in hexadecimal digits.

    ``expires`` and ``heartbeat`` are seconds.
    """

    digest: str
    expires: float
    heartbeat: float | None


class Reporter(Protocol):
    """The receiver of a running job's reports.  Called from any thread."""

    def open_completion(
        self, job: CurrentJob, request: TokenRequest, done: Callable[[MainspringError | None], None]
    ) -> None:
        """Ask the server for a completion token; ``done`` is called in any thread, once it is stored, or with an error."""

    def progress(self, job: CurrentJob, done: int, total: int, text: str) -> None:
        """Send the newest progress."""

    def send_data(self, job: CurrentJob, data: bytes, *, warning: bool) -> None:
        """Send data or a warning to waiting clients."""

    def write_log(self, job: CurrentJob, line: LogLine) -> None:
        """Send a line of the job's log."""

    def publish(self, job: CurrentJob, name: str, value: bytes) -> None:
        """Send a published value.  Raises UsageError in a local step."""

    def write_item(self, job: CurrentJob, name: str, item: bytes) -> int:
        """Send an item of a stream soon, and return the bytes that wait.  Raises UsageError in a local step, or without room."""

    def flush_streams(self, job: CurrentJob, done: Callable[[MainspringError | None], None]) -> None:
        """Send the job's items now; ``done`` is called, in any thread, once they are stored, or with an error."""

    def waits(self, job: CurrentJob, awaited: Awaited) -> None:
        """Record that the job waits for another one."""

    def continues(self, job: CurrentJob, awaited: Awaited) -> None:
        """Record that such a wait is over."""


MOST_WAITING: Final = 2**20
"""Bytes of items above which a thread waits until they are stored."""


class Inside:
    """The state of an attempt that has something around its function: middleware, or provided values."""

    __slots__ = ("_policy", "final", "is_closing")

    def __init__(self, policy: Retry | None) -> None:
        self._policy = policy
        self.final: BaseException | None = None
        """An error that each attempt would repeat, such as that of arguments which do not fit."""
        self.is_closing = False
        """Whether the function has ended."""

    def close(self) -> None:
        """Note that the function has ended."""
        self.is_closing = True

    def allows(self, error: BaseException) -> bool:
        """Return whether another attempt may follow an error."""
        return error is not self.final and (self._policy is None or self._policy.allows(error))


class CurrentJob:
    """The job whose function is running."""

    __slots__ = (
        "_handle",
        "_info",
        "_inside",
        "_published",
        "_raw_info",
        "_reporter",
        "_stop",
        "_token",
        "_unique",
        "_written",
        "awaits",
        "function",
        "loop",
        "origin",
    )

    def __init__(
        self, handle: bytes, unique: bytes, function: str, info: bytes, reporter: Reporter, origin: Any = None
    ) -> None:
        self._handle = handle
        self._unique = unique
        self._raw_info = info
        self._info: Info | None = None
        self._reporter = reporter
        self._stop: str | None = None
        self._token = ""
        self.awaits = False
        """Whether it has asked for a completion token: it does not end when its function returns."""
        self.function = function
        self.origin = origin  # for the reporter: the job's connection and delivery
        self.loop: AbstractEventLoop | None = None  # the event loop that runs its coroutine
        self._inside: Inside  # only set where something is around the function: each job would pay for it
        self._published: Published  # the same, where the function publishes values
        self._written: Written  # the same, where it writes to streams

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
    def depth(self) -> int:
        """How many deliveries of events to listeners have led to the job; 0 for other jobs."""
        return self.info.depth if _DEPTH in self._raw_info else 0

    def resource(self, resource: Resource) -> HeldSlots:
        """Return what this job has of a resource that its task uses. Raises UsageError if it uses none of it."""
        mine = [one for one in self.info.resources if one[0] == resource.name]
        if not mine:
            raise UsageError(f"the job has nothing of {resource!r}: its task must name it in uses={{…}}")
        metas = {item: meta for name, item, meta in self.info.metas if name == resource.name}
        if resource.kind is not None:
            metas = {item: resource.kind.meta(meta) for item, meta in metas.items()}
        return HeldSlots({item: units for _, item, units, _ in mine}, mine[0][3], resource.name, metas)

    def completion_token(self, expires: Duration | None = None, *, heartbeat: Duration | None = None) -> str:
        """Return a token with which another system completes this job; from now on, the job does not end with its function.

        The server has stored it when this returns. Another call returns the same token. The value that the function returns is
        ignored, and an error that it raises fails the attempt, and makes the token void. The attempt fails, too, if its
        completion does not come before the token ``expires`` (by default in a day, or as ``workflow.external_event`` says), or,
        with a ``heartbeat``, if no sign of life comes in each such span.

        Raises UsageError for a job that cannot have one, and in a coroutine, which awaits ``acompletion_token``.
        """
        if self.loop is not None and running_loop() is self.loop:
            raise UsageError("a coroutine awaits its token: token = await current_job().acompletion_token(…)")
        if self._token:
            return self._token
        answered: Future[None] = Future()
        token = self._ask_for_token(expires, heartbeat, answered)
        try:
            answered.result(TOKEN_TIMEOUT)
        except TimeoutError:
            raise ServerError("the server has not answered the request for a completion token") from None
        return self._keep_token(token)

    async def acompletion_token(self, expires: Duration | None = None, *, heartbeat: Duration | None = None) -> str:
        """As ``completion_token``, in a coroutine."""
        if self._token:
            return self._token
        answered: Future[None] = Future()
        token = self._ask_for_token(expires, heartbeat, answered)
        try:
            async with asyncio.timeout(TOKEN_TIMEOUT):
                await asyncio.wrap_future(answered)
        except TimeoutError:
            raise ServerError("the server has not answered the request for a completion token") from None
        return self._keep_token(token)

    @property
    def must_await(self) -> bool:
        """Whether its function has to ask for a completion token, and has not."""
        return _COMPLETION in self._raw_info and not self.awaits and self.info.completion is not None

    def _ask_for_token(self, expires: Duration | None, heartbeat: Duration | None, answered: Future[None]) -> str:
        token = new_token()
        given = self.info.completion if _COMPLETION in self._raw_info else None
        if expires is None:
            expires = DEFAULT_EXPIRY if given is None else given[0]
        if heartbeat is None and given is not None:
            heartbeat = given[1] or None
        request = TokenRequest(
            digest_of(token).hex(),
            seconds(expires, "the expiry of a completion token"),
            None if heartbeat is None else seconds(heartbeat, "the heartbeat of a completion token"),
        )
        check_spans(request.expires, request.heartbeat)

        def done(error: MainspringError | None) -> None:
            if answered.set_running_or_notify_cancel():
                if error is None:
                    answered.set_result(None)
                else:
                    answered.set_exception(error)

        self.open_completion(request, done)
        return token

    def open_completion(self, request: TokenRequest, done: Callable[[MainspringError | None], None]) -> None:
        """Ask the server for a completion token; a task process has made the token, or ``completion_token``."""

        def stored(error: MainspringError | None) -> None:
            self.awaits = self.awaits or error is None
            done(error)

        self._reporter.open_completion(self, request, stored)

    def _keep_token(self, token: str) -> str:
        self._token = token
        return token

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

    def publish(self, name: str, value: Any) -> None:
        """Publish a value of the job, which programs and people can read while it runs and afterwards: the last one of each name.

        It is what JSON makes of it, and is stored within some 100 ms, before the job ends. The value of an earlier attempt stays
        until this one publishes under its name. A job that is not stored, because its client waits for it in the foreground, has
        no values.

        Raises UsageError for a name that is empty, longer than 100 characters or not printable, for more than 100 names, for a
        value of more than 64 KiB, for more than 1 MiB in all, and in a local step; PayloadError for a value that JSON cannot
        represent.
        """
        data = encode_json(value, f"the value {name!r}")
        published = getattr(self, "_published", None)
        if published is None:
            published = self._published = Published()
        self._reporter.publish(self, published.add(name, data), data)

    def stream(self, name: str) -> JobStream:
        """Return a stream of the job, to which its function appends items that others read live or later.

        An earlier attempt's items stay; those of this one follow, and show that they are from another attempt. A job that is not
        stored, because its client waits for it in the foreground, has no streams. Raises UsageError for a name that is empty,
        longer than 100 characters or not printable.
        """
        return JobStream(self, check_stream(name))

    def add_item(self, name: str, value: Any) -> None:
        """Append an item to a stream; ``stream`` is for users."""
        item = encode_json(value, f"an item of the stream {name!r}")
        written = getattr(self, "_written", None)
        if written is None:
            written = self._written = Written()
        written.add(name, item)
        if self.pass_item(name, item) > MOST_WAITING and not self._is_on_loop():
            self.wait_flushed()

    def pass_item(self, name: str, item: bytes) -> int:
        """Queue an item for sending, and return the bytes that wait; the worker calls this for a task process."""
        return self._reporter.write_item(self, name, item)

    def flush_streams(self, done: Callable[[MainspringError | None], None]) -> None:
        """Send all items now; ``done`` is called, in any thread, once they are stored, or with an error."""
        self._reporter.flush_streams(self, done)

    def wait_flushed(self) -> None:
        """Wait until all items are stored; ``JobStream.flush`` is for users."""
        if self._is_on_loop():
            raise UsageError("a coroutine awaits its items: await current_job().stream(…).aflush()")
        self._flushed().result()

    async def await_flushed(self) -> None:
        """Wait until all items are stored, in a coroutine."""
        await asyncio.wrap_future(self._flushed())

    def _is_on_loop(self) -> bool:
        return self.loop is not None and running_loop() is self.loop

    def _flushed(self) -> Future[None]:
        answered: Future[None] = Future()

        def done(error: MainspringError | None) -> None:
            if answered.set_running_or_notify_cancel():
                if error is None:
                    answered.set_result(None)
                else:
                    answered.set_exception(error)

        self.flush_streams(done)
        return answered

    def surround(self, policy: Retry | None) -> Inside:
        """Begin an attempt inside of middleware or with provided values; the worker calls this."""
        self._inside = Inside(policy)
        return self._inside

    @property
    def is_closing(self) -> bool:
        """Whether the function has ended, and the code around it goes on."""
        inside = getattr(self, "_inside", None)
        return inside is not None and inside.is_closing

    def will_retry(self, error: BaseException) -> bool:
        """Return whether the job will run again if its attempt ends with this error; for middleware and providers.

        It is true for a Snooze, for an attempt that its worker stops in order to end, and for an error that the policy
        retries, unless this attempt is the last one.
        """
        if isinstance(error, Snooze):
            return True
        if self._stop == "cancelled":
            return False
        if self._stop in ("drain", "lost") and isinstance(error, (JobStopped, CancelledError)):
            return True
        most = self.info.max_attempts
        if most is None or self.attempt >= most:
            return False
        inside = getattr(self, "_inside", None)
        return self._stop == "timeout" or inside is None or inside.allows(error)

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


class JobStream:
    """A stream of the running job; ``current_job().stream(name)`` returns it."""

    __slots__ = ("_job", "name")

    def __init__(self, job: CurrentJob, name: str) -> None:
        self._job = job
        self.name = name

    def write(self, item: Any, /) -> None:
        """Append an item: a text, or any value that JSON can represent.

        It is stored within some 100 ms, and before the job ends. If the worker is killed, at most the items of the last 100 ms
        are lost. In a thread, the call waits while more than 1 MiB are not stored.

        Raises UsageError for an item of more than 64 KiB, for more than 20 streams, for more than 16 MiB in all, where each item
        counts 16 bytes more, and in a local step; PayloadError for an item that JSON cannot represent.
        """
        self._job.add_item(self.name, item)

    def flush(self) -> None:
        """Return once the store has all items that the job has written: no kill loses them any more.

        Raises UsageError if there is no room for some, and in a coroutine, which awaits ``aflush``; ServerError if the job's
        connection ends before.
        """
        self._job.wait_flushed()

    async def aflush(self) -> None:
        """Return once the store has all items, like ``flush``, in a coroutine."""
        await self._job.await_flushed()


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
