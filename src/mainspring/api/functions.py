"""Calls about functions: their work, recent past, limits and pauses, and the workers that have registered them.

The recent past is a series: a function's jobs by minute or half hour, and its errors by type.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.caller import Permission
from mainspring.api.declaration import get, post
from mainspring.api.jobs import REASON_LIMIT
from mainspring.api.nodes import WaitingJobs  # noqa: TC001 - msgspec reads the annotation
from mainspring.api.request import Code, Cursor, FunctionName, Limit, Page, Request, Revision, Touches
from mainspring.features import Feature
from mainspring.resources.rules import RateSpec, UseSpec  # noqa: TC001 - msgspec reads the annotation
from mainspring.sizes import Time, about, described

Reason = Annotated[str, msgspec.Meta(max_length=REASON_LIMIT)]


NAME_LIMIT = 512


class FunctionInfo(msgspec.Struct):
    """A function; docs/reference/protocol.md explains the keys."""

    function: str
    paused: bool
    concurrency: int | None
    concurrency_per_key: int | None
    rate: RateSpec | None
    rate_per_key: RateSpec | None
    source: str | None
    waiting: int
    running: int
    workers: int
    registered: bool | None
    pause_reason: str | None = None
    paused_at: str | None = None
    paused_until: str | None = None
    revision: str | None = None
    """Of what commands have set: the limits and the pause. The changing requests take it."""
    dead_letters: int | None = None
    """Jobs whose attempts have all failed, in the whole store; None while the store cannot be read."""
    waiting_by_priority: WaitingJobs | None = None
    running_at_all_nodes: int = 0
    """For other nodes, as of their last heartbeats; ``running`` is that of the node which answers."""
    paused_by: str | None = None
    """The caller who paused it last."""
    start_within: float | None = None
    """Seconds, declared by its workers; of jobs without times of their own, as the next."""
    deadline: float | None = None
    uses: list[UseSpec] | None = None
    """The slots of shared resources that each job has while it runs."""
    uses_timeout: float | None = None
    """Seconds for which a job may wait for them."""


class Registration(msgspec.Struct):
    """The answer whether a function is registered."""

    registered: bool | None
    shared: bool
    functions: list[str]


class ListFunctions(Request[Page[FunctionInfo]]):
    """List functions.

    Each page is sorted by name. The pages follow the order in which the node has got the functions.
    """

    permission = Permission.READ
    call = "functions.list"
    http = get("functions")
    cursor: Cursor = None
    limit: Limit = 100
    name: Annotated[
        str,
        msgspec.Meta(max_length=NAME_LIMIT),
        about("Only functions with this part in their names; capital and small letters are the same."),
    ] = ""


class ShowFunction(Request[FunctionInfo]):
    """Show a function."""

    permission = Permission.READ
    touches = Touches.FUNCTION
    call = "functions.show"
    http = get("functions/{function}", problems=(Code.FUNCTION_NOT_FOUND,))
    function: FunctionName


class IsRegistered(Request[Registration]):
    """Show whether a worker of any node has registered a function, and if none has, the names of the registered ones."""

    permission = Permission.READ
    touches = Touches.FUNCTION
    call = "functions.registered"
    function: FunctionName


Places = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
CHANGES = (Code.TOO_MANY_FUNCTIONS, Code.TOO_LARGE)
"""The problems of changes of functions."""


class LimitFunction(Request[FunctionInfo]):
    """Limit a function. Limits that are left out do not change."""

    permission = Permission.DEVELOP
    requires = Feature.LIMITS
    touches = Touches.FUNCTION
    call = "functions.limit"
    function: FunctionName
    concurrency: Annotated[
        Places | UnsetType | None, described("The most jobs to run at a time, or none.", metavar="JOBS")
    ] = UNSET
    concurrency_per_key: Annotated[
        Places | UnsetType | None,
        described(
            "The same for the jobs of one concurrency key.", "--concurrency-per-key", "--per-key", metavar="JOBS"
        ),
    ] = UNSET
    rate: Annotated[
        RateSpec | UnsetType | None,
        described("The most jobs to start in a period: 100/1m; with 100/1m,20 at most 20 of them at once; or none."),
    ] = UNSET
    rate_per_key: Annotated[
        RateSpec | UnsetType | None,
        described("The same for the jobs of one concurrency key.", label="Rate of one concurrency key"),
    ] = UNSET
    unlimited: Annotated[bool, described("Set no limits, even if its workers declare some.")] = False
    declared: Annotated[bool, described("Use the limits that its workers declare: undo this command.")] = False
    revision: Revision = None


class PauseFunction(Request[FunctionInfo]):
    """Start no more jobs of a function."""

    permission = Permission.OPERATE
    requires = Feature.LIMITS
    touches = Touches.FUNCTION
    call = "functions.pause"
    http = post(
        "functions/{function}/pause",
        problems=CHANGES,
        example={"reason": "the bank is down", "until": "2030-01-31T12:00:00Z"},
    )
    function: FunctionName
    reason: Annotated[Reason, described("Why, for those who see the pause.")] = ""
    until: Annotated[Time | None, described("Start its jobs again at this time, such as 2030-01-31T12:00:00Z.")] = None
    revision: Revision = None


class Acknowledged(msgspec.Struct):
    """A function whose failures somebody has acknowledged. That holds until its next failure."""

    function: str
    at: str | None
    who: str
    dead_letters: int
    """Its dead letters: it had no fewer then."""


class Acknowledge(Request[Acknowledged]):
    """Acknowledge the failures of a function, until the next one. Overviews count no trouble of it meanwhile."""

    permission = Permission.OPERATE
    requires = Feature.ACCESS
    touches = Touches.FUNCTION
    call = "functions.acknowledge"
    http = post(
        "functions/{function}/acknowledge",
        problems=(Code.FUNCTION_NOT_FOUND,),
        example={"reason": "the bank was down"},
    )
    function: FunctionName
    reason: Annotated[Reason, described("Why, for the audit.")] = ""


class ResumeFunction(Request[FunctionInfo]):
    """Start the jobs of a paused function again."""

    permission = Permission.OPERATE
    requires = Feature.LIMITS
    touches = Touches.FUNCTION
    call = "functions.resume"
    http = post("functions/{function}/resume", problems=CHANGES)
    function: FunctionName
    revision: Revision = None


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


class ReadFunctionSeries(Request[Series]):
    """Show the numbers of a function's jobs at all nodes: of 60 minutes, or of 48 half hours."""

    permission = Permission.READ
    requires = Feature.SERIES
    touches = Touches.FUNCTION
    call = "functions.series"
    http = get("functions/{function}/series")
    only_reads = True
    function: FunctionName
    step: Annotated[StepName, about("The length of a bucket.")] = "minute"
    since: Annotated[Time | None, about("Only buckets that begin at this time or later.")] = None
    until: Annotated[Time | None, about("Only buckets that begin before this time.")] = None


class ReadErrors(Request[Errors]):
    """Show the errors of a function in the last 24 hours at all nodes, by type."""

    permission = Permission.READ
    requires = Feature.SERIES
    touches = Touches.FUNCTION
    call = "functions.errors"
    http = get("functions/{function}/errors")
    only_reads = True
    function: FunctionName
