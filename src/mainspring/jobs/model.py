"""The values of the jobs slice: jobs, their states and options, counts of them, and the backoff between attempts.

Numbers of states and priorities are stored. Jobs are counted by function, state and priority. Counts are maintained by deltas; no
query counts rows.

A `JobFailure` is the failure of an attempt, as it is stored with the job and shown to clients.
"""

from __future__ import annotations

import os
import traceback
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from mainspring.errors import UsageError
from mainspring.sizes import CANNOT_READ, FAILURE_LINE, FAILURE_TEXT, FAILURE_TYPE, STORED_FAILURE, about, shorten

if TYPE_CHECKING:
    from types import TracebackType

NO_UNIQUE = b""
DECISIONS = b"\x1f"
"""The first byte of the functions of decisions. No other function has it in its name."""
WEBHOOK: Final = b"webhook:"
"""Before the name of a webhook in the name of the function of its deliveries, which the nodes run."""
_DECISIONS: Final = DECISIONS[0]
"""As a number, because bytes look for a number ten times faster than for other bytes, and each submission is checked."""
MOST_DEPTH: Final = 8
"""Deliveries of events that may follow from each other: an event about a delivery is delivered, and so on."""
FUNCTION_LIMIT = 512
"""Bytes of a function's name; the limit of Gearman's own library."""
UNIQUE_LIMIT = 64
"""Bytes of a unique; gearmand's own limit."""
RUNS: Final = -1
"""The term of root jobs, which no node has. A root job stands for a run of a workflow: it is RUNNING under this term from its
beginning on, no node holds or recovers it, and only the slice of workflows ends it. It keeps the term when it has ended."""


OWN_FUNCTION: Final = (
    "names that begin with webhook:, or have U+001F, are those of a node's own functions: choose another one"
)
"""The refusal of a name for which `is_own` returns True."""


def is_own(name: bytes) -> bool:
    """Return whether a name, without its namespace, is one of a node's own functions: no client submits to them or runs them."""
    return _DECISIONS in name or name.startswith(WEBHOOK)


class State(IntEnum):
    """The state of a job. The numbers are stored. Code depends on the order: waiting, held, ended."""

    SCHEDULED = 0
    """Not due yet."""
    PENDING = 1
    """Due, and not held by any node."""
    LEASED = 2
    """A node holds it and has not recorded it as running."""
    RUNNING = 3
    """A node has recorded that a worker runs it."""
    SUCCEEDED = 4
    FAILED = 5
    """All attempts failed: a dead letter."""
    CANCELLED = 6
    EXPIRED = 7
    """It was not started in time."""

    @property
    def ended(self) -> bool:
        """Whether the job has an outcome."""
        return self >= State.SUCCEEDED

    @property
    def held(self) -> bool:
        """Whether a node holds the job under a lease."""
        return State.LEASED <= self <= State.RUNNING


class Priority(IntEnum):
    """The order within a function: lower numbers first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a failed job is tried again.

    Attempt *n* is followed by a wait of ``initial * factor ** (n - 1)`` seconds, at most ``maximum``, changed at random by up
    to the share ``jitter`` of it.
    """

    max_attempts: Annotated[int, about("The most attempts, the first one included.")] = 5
    initial: Annotated[float, about("Seconds from the first attempt to the second.")] = 1.0
    factor: Annotated[float, about("How many times longer each wait is than the one before.")] = 2.0
    maximum: Annotated[float, about("The longest wait, in seconds.")] = 3600.0
    jitter: Annotated[float, about("The share of a wait by which it is changed at random.")] = 0.1


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of a job that most jobs do not have; durations in seconds. Stored with the job as MessagePack."""

    retry: Retry | None = None
    timeout: float | None = None
    heartbeat: float | None = None
    keep_unique: float | None = None
    reducer: bytes | None = None
    """The function that receives the results of a reduce job."""
    schedule: str | None = None
    """The schedule that created the job. It is notified when the job ends for good."""
    fire_us: int = 0
    """The fire time of a schedule's job, however late and however often the job runs; 0 for other jobs."""
    key: bytes | None = None
    """The job's key, if the job travels as bytes alone; a store takes it out of the options."""
    owner: tuple[str, ...] | None = None
    """The slice that created the job and follows its states, and the job's key there; see ``owners``. Schedules and runs have
    their own fields. Versions before ``child`` read two texts alone, and leave a job with three to others."""
    run: tuple[int, int] | None = None
    """The run of a workflow that the job belongs to, and the run's hash slot. The run is notified of the job's states."""
    ref: int = 0
    """The event of the run's history that scheduled the job."""
    forget: bool = False
    """The row is deleted when the job ends, however it ends, and no ended job is counted: its owner keeps the outcome."""
    version: str = ""
    """Of a job that starts a run of a workflow: the version of the run; empty: that for new runs."""
    tags: tuple[str, ...] = ()
    """Sorted; see ``tags``."""
    depth: int = 0
    """How many deliveries of events have led to the job; 0 for most jobs."""
    start_us: int = 0
    """The time by which the job should have begun, in microseconds of wall time; 0: none. See ``lateness``."""
    deadline_us: int = 0
    """The time by which it should have ended."""
    start_within: float | None = None
    """The same from the due time on, while the job has none yet: as an activity in a history, and in the inbox."""
    deadline: float | None = None
    completion: tuple[float, float] | None = None
    """Of a job that only a completion token may complete: the seconds until that expires, and of its heartbeat, 0 for none."""
    child: bytes | None = None
    """Of a job whose run is to begin as a child of another run, once there is a place: ``workflows.cross_run.StartChild`` without
    the input. Then ``owner`` has three texts."""


def deepened(options: Options | None, depth: int) -> Options | None:
    """Return the options of a job that follows from so many deliveries of events."""
    if not depth or (options is not None and options.depth >= depth):
        return options
    return msgspec.structs.replace(options or Options(), depth=min(depth, MOST_DEPTH))


class StopRequest(msgspec.Struct, frozen=True, array_like=True):
    """A stored request to cancel a held job. It ends the job instead of an event that would give the job back."""

    at_us: int
    error: bytes
    """The error of the job that it cancels."""


encode_stop_request: Final = msgspec.msgpack.Encoder().encode
decode_stop_request: Final = msgspec.msgpack.Decoder(StopRequest).decode

encode_options: Final = msgspec.msgpack.Encoder().encode
decode_options: Final = msgspec.msgpack.Decoder(Options).decode
"""To and from the stored form of options."""


class UnreadableOptions(Options, frozen=True):
    """Stands for options that this version cannot read. Jobs with it are shown, and never run or stored: see ``settling``."""


UNREADABLE_OPTIONS: Final = UnreadableOptions()
UNREADABLE_JOB: Final = "Unreadable: this version cannot read the stored options of this job"
"""The sentence in place of its error in lists."""


def is_readable(data: bytes) -> bool:
    """Return whether this version can read stored options."""
    return read_options(data) is not UNREADABLE_OPTIONS


def read_options(data: bytes) -> Options:
    """Return stored options; `UNREADABLE_OPTIONS` for bytes that are none: one row must not break a list, nor a transaction."""
    try:
        return decode_options(data)
    except CANNOT_READ:
        return UNREADABLE_OPTIONS


class Job(msgspec.Struct, weakref=True):
    """One request to run a function on a payload, as it is stored. Times are microseconds of wall time; 0 means none."""

    id: int
    function: bytes
    """The key of the function: its name, with the namespace before it unless that is ``default``; see ``namespaces``."""
    payload: bytes
    unique: bytes = NO_UNIQUE
    priority: int = Priority.NORMAL
    state: int = State.PENDING
    created_us: int = 0
    due_us: int = 0
    expires_us: int = 0
    options: Options | None = None
    term: int = 0
    """The term of the node's lease under which the node holds the job."""
    attempt: int = 0
    """Attempts counted so far."""
    suspects: int = 0
    """Losses that the job may have caused: 1 for each node, and ``rules.WORKER_LOST`` for each worker of the extension."""
    started_us: int = 0
    ended_us: int = 0
    result: bytes = b""
    error: bytes = b""
    """JSON ``{"type", "message", "traceback"}`` of the last failure, or empty."""
    input_size: int = 0
    output_size: int = 0
    foreground: bool = False
    """The job is dropped when no client waits for it any more, unless a worker has it. Only shared stores keep such jobs."""
    key: bytes = b""
    """Jobs of one function and one key share limits, and keys take turns; see the resources slice."""

    @property
    def unread(self) -> int:
        """Bytes of the result that a lookup left in the store."""
        return self.output_size - len(self.result)


_LEASED, _RUNNING = int(State.LEASED), int(State.RUNNING)


def counted_as(state: int) -> int:
    """Return the state under which a job is counted: both held states are LEASED."""
    return _LEASED if state == _RUNNING else state


class Counts(dict[tuple[bytes, int, int], int]):
    """``(function, state, priority)`` to a number. Both held states are counted as LEASED."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: dict[bytes, None] = {}
        """All functions that were ever counted, in the order of their first count."""

    def add(self, function: bytes, state: int, priority: int, number: int = 1) -> None:
        """Add to a count; a negative number subtracts."""
        self.functions[function] = None
        key = (function, counted_as(state), priority)
        self[key] = self.get(key, 0) + number

    def move(self, function: bytes, priority: int, before: int, after: int) -> None:
        """Count one job that has changed its state."""
        self.add(function, before, priority, -1)
        self.add(function, after, priority)


MAX_ATTEMPTS: Final = (1 << 31) - 1
MAX_WAIT: Final = 100 * 366 * 86_400.0


def check_retry(policy: Retry) -> None:
    """Raise UsageError for a policy that is invalid or that a store cannot hold: it would fail its whole group."""
    if (
        not 1 <= policy.max_attempts <= MAX_ATTEMPTS
        or not 0 <= policy.initial < MAX_WAIT
        or policy.factor < 0
        or not 0 <= policy.maximum < MAX_WAIT
        or not 0 <= policy.jitter <= 1
    ):
        raise UsageError(
            f"retry takes max_attempts from 1 to {MAX_ATTEMPTS}, initial and maximum from 0 seconds to a century, factor "
            "from 0, and jitter from 0 to 1"
        )


def backoff(policy: Retry, attempt: int, chance: float) -> float:
    """Return the seconds to wait after a failed attempt (1 is the first).

    ``chance``, from 0 to 1, selects the wait within ``jitter``; 0.5 leaves the wait unchanged.
    """
    try:
        wait = min(policy.initial * policy.factor ** (attempt - 1), policy.maximum)
    except OverflowError:
        wait = policy.maximum
    return max(0.0, wait * (1 + policy.jitter * (2 * chance - 1)))


CANCEL_REASON = "cancelled while it ran"


class JobFailure(msgspec.Struct, omit_defaults=True):
    """The reason for which an attempt failed; stored with the job as JSON."""

    type: str
    message: str
    traceback: str | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JobFailure).decode
UNREADABLE: Final = "UnreadableFailure"
"""The type that stands for a stored failure that cannot be read."""


def fitting(found: JobFailure) -> JobFailure:
    """Return a failure with long texts shortened: no job is lost because its error is long."""
    traceback = None if found.traceback is None else shorten(found.traceback, FAILURE_TEXT.most)
    return JobFailure(shorten(found.type, FAILURE_TYPE.most), shorten(found.message, FAILURE_TEXT.most), traceback)


def encode_failure(found: JobFailure) -> bytes:
    """Return the stored form of a failure, with long texts shortened."""
    return _encode(fitting(found))


def brief(stored: bytes) -> bytes:
    """Return a stored failure as a row of another table keeps it: a long one as lists show it, without the traceback."""
    if len(stored) <= STORED_FAILURE.most:
        return stored
    found = decode_failure(stored)
    return encode_failure(JobFailure(found.type, shorten(found.message, FAILURE_LINE.most)))


def failure(kind: str, message: str) -> bytes:
    """Return the stored form of a failure."""
    return encode_failure(JobFailure(kind, message))


def decode_failure(stored: bytes) -> JobFailure:
    """Return a failure by its stored form. Lists read only the first bytes of a long one.

    Bytes that are none are a failure of the type `UNREADABLE`: one such row must not break the list that has it.
    """
    try:
        return _decode(stored)
    except CANNOT_READ:
        return _decode_part(stored)


def _decode_part(stored: bytes) -> JobFailure:
    """Return the failure that begins with ``stored``. The cut may be inside an escape, a character or a key."""
    if stored.startswith(_BEGIN):
        for end in range(len(stored), max(len(stored) - _LONGEST_KEY, len(_BEGIN)), -1):
            for closing in _CLOSINGS:
                try:
                    return _decode(stored[:end] + closing)
                except CANNOT_READ:
                    continue
    return JobFailure(UNREADABLE, f"the stored failure of {len(stored)} bytes cannot be read")


_BEGIN: Final = b'{"type":"'
_CLOSINGS: Final = ('…"}'.encode(), b"}")
_LONGEST_KEY: Final = len(b',"traceback":') + 1


def line_of(stored: bytes) -> str:
    """Return a stored failure as it is shown in lists."""
    found = decode_failure(stored)
    return shorten(f"{found.type}: {found.message}", FAILURE_LINE.most)


def describe_failure(stored: bytes) -> str:
    """Return a failure as one short line for people; empty if the bytes are none."""
    found = decode_failure(stored)
    if found.type == UNREADABLE:
        return ""
    line = f"{found.type}: {found.message}".partition("\n")[0]
    return line if len(line) <= _SHORT else f"{line[:_SHORT]}…"


_SHORT = 300
"""Characters of a failure in one line."""


def encodable(text: str) -> str:
    """Return a text that UTF-8 can encode: lone surrogates, as in names of files, are shown as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """Return the text of an error, also if its own code cannot show it."""
    try:
        return encodable(str(error))
    except BaseException as worse:  # noqa: BLE001 - code of users, which may raise anything
        return f"(the error cannot be shown: {type(worse).__name__})"


def traceback_of(error: BaseException, frames: TracebackType | None) -> str:
    """Return the traceback of an error from ``frames`` on; empty if its own code cannot show it."""
    try:
        return encodable("".join(traceback.format_exception(type(error), error, frames)))
    except BaseException:  # noqa: BLE001 - as above
        return ""


_OWN: Final = str(Path(__file__).parents[1]) + os.sep
_LIBRARY: Final = (str(Path(os.__file__).parent) + os.sep, "<frozen")


def is_users(file: str) -> bool:
    """Return whether a file of code belongs neither to Mainspring nor to the standard library."""
    return not file.startswith(_OWN) and (not file.startswith(_LIBRARY) or "-packages" in file)


def place_of(error: BaseException) -> str:
    """Return the innermost line of users' code that an error has passed: `` at FILE:LINE in FUNCTION``; empty if there is none.

    Of code of theirs that uses installed packages, their own line. Of a group, that of its first error.
    """
    while isinstance(error, BaseExceptionGroup):
        first = error.exceptions[0]
        if first.__traceback__ is None:
            break
        error = first
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    own = [frame for frame in frames if "-packages" not in frame.filename] or frames
    return f" at {own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""


def exception_of(job: Job) -> bytes | None:
    """Return the data of a plain worker's exception, for clients that requested exceptions; None if the job ended otherwise.

    The data is the stored text: the first 64 KiB.
    """
    if job.state != State.FAILED or not job.error:
        return None
    failed = decode_failure(job.error)
    return failed.message.encode() if failed.type == "WorkException" else None
