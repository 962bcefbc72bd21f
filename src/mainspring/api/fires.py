"""Calls about the fire times of all schedules: their outcomes, and a timeline of the past and the next ones."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.roles import Permission
from mainspring.api.errors import PAGE_LIMIT
from mainspring.api.request import Request
from mainspring.api.schedules import Run  # noqa: TC001 - msgspec reads the annotation
from mainspring.sizes import Moment, Text  # noqa: TC001 - msgspec reads the annotations

FireStateName = Literal["waiting", "fired", "joined", "skipped"]
OutcomeName = Literal["succeeded", "failed", "cancelled", "expired"]
LONGEST_TIMELINE = 31 * 86_400.0
"""Seconds."""


class Fires(msgspec.Struct):
    """A page of fire times, newest first."""

    fires: list[Run]
    next: str | None
    """The value of ``after`` for the next page, which may be empty; None: there are no more."""


class TimelineBucket(msgspec.Struct):
    """The fire times of a schedule in a part of the timeline."""

    at: str
    fired: int
    """Those that run or have run, with those that joined another job or wait for an earlier run."""
    succeeded: int
    failed: int
    """Those whose job failed, was cancelled or expired."""
    skipped: int
    due: int
    """Those to come."""


class ScheduleLine(msgspec.Struct):
    """A schedule in a timeline, without the buckets in which nothing happens."""

    schedule: str
    function: str
    state: str
    complete: bool
    """False if it has more fire times than a timeline counts: the buckets then have only the fire times nearest to now."""
    buckets: list[TimelineBucket]


class Timeline(msgspec.Struct):
    """The fire times of schedules in a time, counted in buckets."""

    since: str
    until: str
    step: float
    """Seconds of a bucket."""
    schedules: list[ScheduleLine]
    next: str | None
    """The value of ``after`` for the next schedules; None: there are no more."""


class ListFires(Request[Fires]):
    """The outcomes of the fire times of all schedules, or of one. Codes: ``invalid``, ``schedule_not_found``."""

    permission = Permission.READ
    call = "schedules.fires"
    rows = "fires"
    only_reads = True
    schedule: Text | None = None
    state: FireStateName | None = None
    outcome: OutcomeName | None = None
    since: Moment | None = None
    """The earliest fire time, in seconds since 1970."""
    until: Moment | None = None
    """Only fire times before this one."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100
    after: Text | None = None


class Outcomes(msgspec.Struct):
    """The last outcomes of schedules."""

    fires: list[Run]
    next: str | UnsetType = UNSET
    """The value of ``after`` for the next page; left out: there are no more."""


class ReadOutcomes(Request[Outcomes]):
    """The last outcome of each of some schedules: its newest fire time whose job has ended, or that was skipped.

    A schedule without one among its newest 20 fire times is left out. A removed schedule is, too, if the caller may not read all
    functions.
    """

    permission = Permission.READ
    call = "schedules.outcomes"
    rows = "fires"
    only_reads = True
    schedules: Annotated[list[Text], msgspec.Meta(min_length=1, max_length=PAGE_LIMIT)]
    after: Text | None = None


class ReadTimeline(Request[Timeline]):
    """The fire times of all schedules, or of some, counted in buckets. Codes: ``invalid``."""

    permission = Permission.READ
    call = "schedules.timeline"
    rows = "schedules"
    only_reads = True
    since: Moment | None = None
    """Seconds since 1970; by default the begin of the present day in UTC."""
    until: Moment | None = None
    """By default a day later, and at most 31 days."""
    step: Annotated[float, msgspec.Meta(ge=60, le=86_400)] = 900.0
    """Seconds of a bucket."""
    after: Text | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100
    """Schedules in one answer."""
    schedules: Annotated[list[Text], msgspec.Meta(min_length=1, max_length=PAGE_LIMIT)] | None = None
    """Only these."""
