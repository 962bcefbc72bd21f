"""The values of the schedules slice: what a schedule is, how it stands, and what became of each of its fire times.

Times are microseconds of wall time since 1970 UTC (``…_us``); durations that a user gives are seconds.

A schedule either has a trigger, then it is a *root*, or parents, then it is a *child* and runs when they have succeeded. All runs
that follow from one fire time of a root belong to one *occasion*: the occasion is that fire time, and every row of it carries it
as its own ``fire_us``.
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
    """Fire at even steps of elapsed time, counted from the schedule's start, or from 1970 UTC where it has none.

    So the fire times do not depend on when a node was started, and do not drift.
    """

    interval_us: int


class At(msgspec.Struct, frozen=True, tag="at", tag_field="kind"):
    """Fire once."""

    at_us: int


Trigger = Cron | Every | At

Misfire = Literal["skip", "once", "all"] | int
"""How many of the fire times that were missed are made up for: none, the newest, all, or at most the newest so many."""


class Overlap(StrEnum):
    """What becomes of a fire time while an earlier run of the schedule is not finished."""

    ALLOW = "allow"
    """It runs beside the other one."""
    FORBID = "forbid"
    """It is skipped."""
    QUEUE = "queue"
    """It waits until those before it are finished."""
    REPLACE = "replace"
    """The other one is cancelled; this one starts when that has settled, or its lease has ended."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a user says about a schedule. Stored as MessagePack; unknown fields of a newer version are passed over."""

    name: str
    function: bytes
    args: bytes = b""
    """The payload of its jobs."""
    trigger: Trigger | None = None
    """None for a child."""
    timezone: str = "UTC"
    """An IANA name: the clock that a cron expression and ``exclude`` are read by."""
    start_us: int | None = None
    """The first time at which it may fire."""
    end_us: int | None = None
    """The last time at which it may fire."""
    jitter: float = 0.0
    """Seconds: each job starts up to so much later than its fire time; see ``triggers.jitter_us``."""
    exclude: tuple[str, ...] = ()
    """ISO dates in ``timezone`` on which it does not run: its holidays."""
    misfire: Misfire = "once"
    misfire_after: float = MISFIRE_AFTER
    """Seconds: a fire time that is decided later than that is missed, and ``misfire`` says whether it runs."""
    overlap: Overlap = Overlap.ALLOW
    parents: tuple[str, ...] = ()
    """Names of schedules: it runs for an occasion when all of them have succeeded for it."""
    wait_for_children: bool = False
    """A run is finished only when the runs of all its children for the same occasion are."""
    priority: int = Priority.NORMAL
    retry: Retry | None = None
    timeout: float | None = None
    """Seconds that one attempt may take."""
    unique: bytes = b""
    """The unique of its jobs: a fire time whose job would be a second live one joins the first."""
    expires: float | None = None
    """Seconds after its due time within which a job has to start."""
    namespace: str = "default"


class Origin(StrEnum):
    """Who made a schedule."""

    CODE = "code"
    CLI = "cli"


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a schedule stands. Every change carries ``version + 1`` and is written by compare-and-swap on ``version``."""

    version: int = 1
    next_us: int | None = None
    """The first fire time that has not been decided; None where there is none, and for a child."""
    last_us: int = 0
    """The newest fire time that has been decided, whatever became of it; 0 where there is none."""
    fired_us: int = 0
    """The newest fire time that made a job."""
    triggered_us: int = 0
    """The newest fire time that somebody made by hand."""
    paused_us: int = 0
    """Since when it is paused, or was the last time; 0: never."""
    resumed_us: int = 0
    """When the last pause ended; 0 while it lasts."""
    queued: int = 0
    """How many of its rows are WAITING."""
    forgotten_us: int = 0
    """The newest fire time whose row was dropped; see ``retention``."""
    origin: Origin = Origin.CODE
    app: str = ""
    """The App whose code declares it."""
    declared: bytes = b""
    """The digest of what that code said when it was last taken over; see ``reconcile``."""

    @property
    def paused(self) -> bool:
        """Whether it is paused now."""
        return self.paused_us != 0 and self.resumed_us == 0


class FireState(StrEnum):
    """What became of a fire time."""

    WAITING = "waiting"
    """It will run when the runs before it are finished; it has no job yet."""
    FIRED = "fired"
    """It has a job of its own."""
    JOINED = "joined"
    """A live job of the same unique counts for it."""
    SKIPPED = "skipped"
    """It does not run; see its reason."""


class Reason(StrEnum):
    """Why a fire time was skipped."""

    MISFIRE = "misfire"
    OVERLAP = "overlap"
    PAUSED = "paused"
    EXCLUDED = "excluded"
    PARENT = "parent"
    """A parent did not succeed for this occasion."""
    REMOVED = "removed"
    """The schedule was removed while it waited."""


class Cause(StrEnum):
    """What made a fire time."""

    TRIGGER = "trigger"
    PARENT = "parent"
    MANUAL = "manual"


class Fire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fire time of a schedule and what became of it: the row ``(schedule, fire_us)``, which stays as ``retention`` says.

    Rows are made with what is known when the fire time is decided; the rest is filled in as its job goes on. Empty and 0 say
    that there is no value.
    """

    schedule: str
    fire_us: int
    state: FireState
    reason: Reason | None = None
    cause: Cause = Cause.TRIGGER
    root: str = ""
    """Of an occasion that was made by hand: the schedule where it began, and empty for all others."""
    parent: str = ""
    """The parent whose end let this run start, or stopped it."""
    due_us: int = 0
    """When its job is due: the fire time with the jitter, or later where it had to wait."""
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

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen: it was skipped, or it has ended and waits for no child."""
        return self.state is FireState.SKIPPED or (self.outcome != "" and self.children_left == 0)

    @property
    def live(self) -> bool:
        """Whether it counts as a run that is under way when overlap is decided."""
        return self.state in {FireState.FIRED, FireState.JOINED} and not self.finished
