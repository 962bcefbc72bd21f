"""Calls about the recent past of a function: its jobs by minute or half hour, and its errors by type."""

from __future__ import annotations

from typing import Literal

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.request import Request
from mainspring.sizes import Moment, Text  # noqa: TC001 - msgspec reads the annotations

StepName = Literal["minute", "half_hour"]


class DurationNumbers(msgspec.Struct):
    """Durations of attempts, in seconds."""

    number: int
    mean: float
    p50: float
    """Estimated from a histogram, as the next."""
    p95: float
    counts: list[int] = []
    """This histogram: the durations up to each of `Series.bounds` and above the one before, and those above the last; without
    zeros at the end."""


class BucketInfo(msgspec.Struct):
    """The jobs of a function in one minute or half hour; docs/reference/protocol.md explains the keys."""

    at: str
    submitted: int
    succeeded: int
    failed: int
    retried: int
    timed_out: int
    lost: int
    cancelled: int
    released: int
    snoozed: int
    wait: DurationNumbers | None
    run: DurationNumbers | None
    waiting: int | None = None
    """The jobs that waited for a worker at the end of the bucket, or of the last one before it that has a number."""


class Series(msgspec.Struct):
    """The series of a function, the oldest bucket first, with the buckets in which nothing happened."""

    function: str
    step: float
    """Seconds of a bucket."""
    buckets: list[BucketInfo]
    bounds: list[float] = []
    """Those of the histograms, in seconds."""


class ErrorInfo(msgspec.Struct):
    """The failed attempts with one type of error."""

    type: str
    number: int
    first_at: str | None
    last_at: str | None
    message: str
    """Of the last one: its first line, cut to 200 characters."""
    handle: str | None
    """The job of the last one."""


class Errors(msgspec.Struct):
    """The failed attempts of a function by type of error, the most frequent first."""

    function: str
    since: str
    errors: list[ErrorInfo]


class ReadSeries(Request[Series]):
    """The numbers of a function's jobs at all nodes: 60 minutes, or 48 half hours. Codes: ``unsupported``."""

    permission = Permission.READ
    call = "functions.series"
    only_reads = True
    function: Text
    step: StepName = "minute"
    since: Moment | None = None
    """Only buckets that begin at this time or later, in seconds since 1970."""
    until: Moment | None = None
    """Only buckets that begin before this time."""


class ReadErrors(Request[Errors]):
    """The failed attempts of a function at all nodes in the last 24 hours, by type of error. Codes: ``unsupported``."""

    permission = Permission.READ
    call = "functions.errors"
    only_reads = True
    function: Text
