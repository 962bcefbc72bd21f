"""The values of the schedules slice: schedules, their states, and the rows of their fire times.

Times are microseconds of wall time since 1970 UTC (``…_us``); durations that a user gives are seconds.

A schedule with a trigger is a *root*. A schedule with parents is a *child*, and runs when they have succeeded. All runs that
follow from one fire time of a root belong to one *occasion*. The fire time identifies the occasion: it is the ``fire_us`` of all
its rows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from mainspring.jobs.model import Priority, Retry

MISFIRE_AFTER = 1.0
"""Seconds; see ``Schedule.misfire_after``."""


class Cron(msgspec.Struct, frozen=True, tag="cron", tag_field="kind"):
    """Fire whenever the clock of the schedule's time zone shows a matching time; see ``cron``."""

    expression: str


class Every(msgspec.Struct, frozen=True, tag="every", tag_field="kind"):
    """Fire at even intervals of elapsed time, counted from the schedule's start, or from 1970 UTC without one.

    So the fire times do not depend on the start of a node, and do not drift.
    """

    interval_us: int


class At(msgspec.Struct, frozen=True, tag="at", tag_field="kind"):
    """Fire once."""

    at_us: int


Trigger = Cron | Every | At

Misfire = Literal["skip", "once", "all"] | int
"""Which missed fire times run later: none, the newest, all, or at most this number of the newest."""


ClockNote = Literal["skipped", "first_of_two", "second_of_two"]
"""How a clock change affects a fire time: the clock skips it, so that the schedule fires at the change; or shows it twice."""
ConflictKind = Literal["exists", "code", "parents", "unique", "same"]
"""How a schedule that is not saved conflicts with the saved ones; see ``preview``."""


class Overlap(StrEnum):
    """The rule for a fire time while an earlier run of the schedule is not finished."""

    ALLOW = "allow"
    """It runs beside the earlier one."""
    FORBID = "forbid"
    """It is skipped."""
    QUEUE = "queue"
    """It waits until the earlier ones are finished."""
    REPLACE = "replace"
    """The earlier one is cancelled; this one starts when that one has ended."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The specification of a schedule. Stored as MessagePack; unknown fields of newer versions are ignored."""

    name: str
    function: bytes
    args: bytes = b""
    """The payload of its jobs."""
    trigger: Trigger | None = None
    """None for a child."""
    timezone: str = "UTC"
    """The IANA name of the time zone for the cron expression and ``exclude``."""
    start_us: int | None = None
    """The first time at which it may fire."""
    end_us: int | None = None
    """The last time at which it may fire."""
    jitter: float = 0.0
    """Maximum seconds by which each job is due later than its fire time; see `triggers.jitter_us`."""
    exclude: tuple[str, ...] = ()
    """ISO dates in ``timezone`` on which it does not run, such as holidays."""
    misfire: Misfire = "once"
    misfire_after: float = MISFIRE_AFTER
    """Seconds: a fire time that is decided later than this is missed, and ``misfire`` decides whether it runs."""
    overlap: Overlap = Overlap.ALLOW
    parents: tuple[str, ...] = ()
    """Names of schedules: it runs for an occasion when all of them have succeeded for it."""
    wait_for_children: bool = False
    """A run is finished only when the runs of all its children for the same occasion are finished."""
    priority: int = Priority.NORMAL
    retry: Retry | None = None
    timeout: float | None = None
    """Seconds that one attempt may take."""
    unique: bytes = b""
    """The unique of its jobs: if a live job has it, the fire time joins that job."""
    expires: float | None = None
    """Seconds after its due time within which a job must start."""
    start_within: float | None = None
    """Seconds after its due time within which a job should begin, and after each fire time within which there should be a job."""
    deadline: float | None = None
    """Seconds after its due time within which a job should end."""
    tags: tuple[str, ...] = ()
    """The tags of its jobs, sorted."""
    namespace: str = "default"


class Origin(StrEnum):
    """The creator of a schedule."""

    CODE = "code"
    CLI = "cli"


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a schedule. Each change increments ``version`` and is written by compare-and-swap on it."""

    version: int = 1
    next_us: int | None = None
    """The first undecided fire time; None if there is none, and for a child."""
    last_us: int = 0
    """The newest decided fire time, run or skipped; 0 if there is none."""
    fired_us: int = 0
    """The newest fire time with a job."""
    triggered_us: int = 0
    """The newest fire time that a user triggered by hand."""
    paused_us: int = 0
    """When the current or the last pause began; 0: never paused."""
    resumed_us: int = 0
    """When the last pause ended; 0 during a pause."""
    queued: int = 0
    """The number of its WAITING rows."""
    forgotten_us: int = 0
    """The newest fire time whose row was deleted; see ``retention``."""
    late_us: int = 0
    """With ``start_within``: the time by which it should start a job next; 0: none. Negative: it is late since then, and has its
    event."""
    origin: Origin = Origin.CODE
    app: str = ""
    """The App whose code declares it."""
    declared: bytes = b""
    """The digest of the code's declaration that was last applied; see ``reconcile``."""

    @property
    def paused(self) -> bool:
        """Whether it is paused now."""
        return self.paused_us != 0 and self.resumed_us == 0


class FireState(StrEnum):
    """The state of a fire time."""

    WAITING = "waiting"
    """It will run when the earlier runs are finished; it has no job yet."""
    FIRED = "fired"
    """It has a job of its own."""
    JOINED = "joined"
    """A live job with the same unique serves it."""
    SKIPPED = "skipped"
    """It does not run; see its reason."""


class Reason(StrEnum):
    """The reason why a fire time was skipped."""

    MISFIRE = "misfire"
    OVERLAP = "overlap"
    PAUSED = "paused"
    EXCLUDED = "excluded"
    PARENT = "parent"
    """A parent did not succeed for this occasion."""
    REMOVED = "removed"
    """The schedule was removed while it waited."""


class Cause(StrEnum):
    """The cause of a fire time."""

    TRIGGER = "trigger"
    PARENT = "parent"
    MANUAL = "manual"


class Fire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fire time of a schedule and its result: the row ``(schedule, fire_us)``, kept by the rules of ``retention``.

    A row is created when its fire time is decided, and completed when its job ends. Empty values and 0 mean that there is no
    value.
    """

    schedule: str
    fire_us: int
    state: FireState
    reason: Reason | None = None
    cause: Cause = Cause.TRIGGER
    root: str = ""
    """For an occasion that was triggered by hand: the triggered schedule. Empty for other occasions."""
    parent: str = ""
    """The parent whose end started this run, or caused it to be skipped."""
    operation: int = 0
    """The operation on many jobs that fired this time afterwards; see ``backfill``. It is no ``cause``, because nodes of earlier
    versions read no causes that they do not know."""
    until_us: int = 0
    """Of a row for many skipped times, ``fire_us`` being the first: the last of them. 0: the row is for one time."""
    due_us: int = 0
    """When its job is due: the fire time with the jitter, or later if it had to wait."""
    decided_us: int = 0
    children_left: int = 0
    """With ``wait_for_children``: how many children are not finished for this occasion."""
    job: int = 0
    node: str = ""
    worker: str = ""
    started_us: int = 0
    ended_us: int = 0
    outcome: str = ""
    """How its job ended: succeeded, failed, cancelled, expired."""
    error: bytes = b""
    """As in ``Job.error``."""
    attempt: int = 0
    depth: int = 0
    """That of its job; see ``jobs.model.Options``. Of an occasion that was triggered by hand, that of the request."""

    @property
    def finished(self) -> bool:
        """Whether it is final: it was skipped, or it has ended and waits for no child."""
        return self.state is FireState.SKIPPED or (self.outcome != "" and self.children_left == 0)

    @property
    def live(self) -> bool:
        """Whether it counts as a run under way for ``overlap``."""
        return self.state in {FireState.FIRED, FireState.JOINED} and not self.finished
