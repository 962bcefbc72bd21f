"""The values of the jobs slice: what a job is, and what a caller may say about it."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

NO_UNIQUE = b""
FUNCTION_LIMIT = 512
"""Bytes of a function's name; the limit of Gearman's own library."""
UNIQUE_LIMIT = 64
"""Bytes of a unique; gearmand's own limit."""


class State(IntEnum):
    """Where a job stands. The numbers are stored; the order (waiting, held, ended) is relied on."""

    SCHEDULED = 0
    """Not due yet."""
    PENDING = 1
    """Due, and nobody has it."""
    LEASED = 2
    """A node has it and has not recorded that it runs."""
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

    max_attempts: int = 5
    initial: float = 1.0
    factor: float = 2.0
    maximum: float = 3600.0
    jitter: float = 0.1


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is rarely said about a job; durations in seconds. Stored with it as MessagePack."""

    retry: Retry | None = None
    timeout: float | None = None
    heartbeat: float | None = None
    keep_unique: float | None = None
    reducer: bytes | None = None
    """The function that a reduce job's results go to."""
    schedule: str | None = None
    """The schedule that made the job, which is told when it has ended for good."""
    fire_us: int = 0
    """The time that a schedule's job stands for, however late and however often it runs; 0 for other jobs."""
    key: bytes | None = None
    """The job's key, where it travels as bytes alone: a store takes it out again."""
    owner: tuple[str, str] | None = None
    """Which slice has made the job and follows what becomes of it, and its key there; see ``owners``. Schedules have their own
    fields."""


encode_options: Final = msgspec.msgpack.Encoder().encode
decode_options: Final = msgspec.msgpack.Decoder(Options).decode
"""To and from the stored form of options."""


class Job(msgspec.Struct, weakref=True):
    """One request to run a function on a payload, as it is stored. Times are microseconds of wall time, 0 where there is none."""

    id: int
    function: bytes
    payload: bytes
    unique: bytes = NO_UNIQUE
    priority: int = Priority.NORMAL
    state: int = State.PENDING
    created_us: int = 0
    due_us: int = 0
    expires_us: int = 0
    options: Options | None = None
    term: int = 0
    """The lease under which a node holds the job."""
    attempt: int = 0
    """Deliveries that count so far."""
    suspects: int = 0
    """Losses that the job may have caused: 1 for each node, and ``rules.WORKER_LOST`` for each worker of the extension."""
    started_us: int = 0
    ended_us: int = 0
    result: bytes = b""
    error: bytes = b""
    """JSON ``{"type", "message", "traceback"}`` of the last failure, or empty."""
    input_size: int = 0
    output_size: int = 0
    namespace: str = "default"
    foreground: bool = False
    """It is dropped when nobody waits for it any more, unless a worker has it. Only shared stores keep such jobs."""
    key: bytes = b""
    """Jobs of one function and one key share limits, and keys take turns; see the resources slice."""

    @property
    def unread(self) -> int:
        """Bytes of its result that a look-up has left in the store."""
        return self.output_size - len(self.result)
