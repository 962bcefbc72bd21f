"""Calls about schedules: list, show, create, change and run them; their next times, their history, and the fire times of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.caller import Permission
from mainspring.api.declaration import delete, get, patch, post, put
from mainspring.api.request import PAGE_LIMIT, Code, Cursor, Limit, Page, Request, Revision, ScheduleName, Touches
from mainspring.jobs.model import Retry  # noqa: TC001 - msgspec reads the annotation
from mainspring.schedules.model import ClockNote, ConflictKind, Misfire  # noqa: TC001 - msgspec reads the annotation
from mainspring.schedules.specification import Specification
from mainspring.sizes import ENTRIES, KIND, Text, Texts, TextTuple, Time, Whole, about, described

if TYPE_CHECKING:
    from collections.abc import Mapping

CLOCK_NOTES: Final[Mapping[str, str]] = {
    "skipped": "the clock skips the stated time, so it runs at the change",
    "first_of_two": "the clock shows this time twice: the first of the two",
    "second_of_two": "the clock shows this time twice: the second of the two",
}
"""Sentences for the notes of previewed times."""


class ScheduleInfo(msgspec.Struct):
    """A schedule; docs/reference/protocol.md explains the keys."""

    name: str
    function: str
    when: str
    timezone: str
    state: str
    next_at: str | None
    last_at: str | None
    waiting: int
    origin: str
    app: str | None
    parents: list[str]
    fault: str | None = None
    """Why the answering node has set it aside: it does not fire there. None: it has not."""


class ScheduleDetails(ScheduleInfo, kw_only=True):
    """A schedule with all its details."""

    cron: str | None
    every: float | None
    at: str | None
    start: str | None
    end: str | None
    payload: bytes
    """Base64 in JSON."""
    jitter: float
    exclude: list[str]
    misfire: Misfire
    misfire_after: float
    overlap: str
    wait_for_children: bool
    priority: str
    retry: Retry | None
    timeout: float | None
    unique: str
    expires: float | None
    start_within: float | None = None
    deadline: float | None = None
    tags: list[str]
    overdue_since: str | None = None
    """Since when it should have started a job: a schedule whose start_within has passed without one."""
    fired_at: str | None
    paused_at: str | None
    version: int
    revision: str = ""
    """Of its description and its pause. The changing requests take it; fire times do not change it, unlike ``version``."""
    payload_size: int = 0
    """Bytes. ``payload`` is empty, and ``args`` missing, for callers who may not see them."""
    args: msgspec.Raw | UnsetType = UNSET
    """The arguments; missing if they are not JSON."""


class RemovedSchedule(msgspec.Struct):
    """A removed schedule."""

    name: str
    state: str = "removed"


class PreviewedTime(msgspec.Struct):
    """A fire time of a schedule, which need not be saved."""

    at: str
    local: str
    """The same on the clock of its time zone, with the offset from UTC."""
    note: ClockNote | None


class Times(msgspec.Struct):
    """The next times of a schedule."""

    schedule: str
    paused: bool
    times: list[str | None]
    local: list[PreviewedTime] = msgspec.field(default_factory=list)
    """The same times on the clock of the schedule's time zone."""


class ClockChangeInfo(msgspec.Struct):
    """A clock change between the first and the last previewed time."""

    at: str
    before: str
    """The offset from UTC before it, such as ``+01:00``."""
    after: str


class ConflictInfo(msgspec.Struct):
    """A conflict with a stored schedule."""

    kind: ConflictKind
    schedule: str
    text: str


class Previewed(msgspec.Struct):
    """The preview of a schedule."""

    name: str
    when: str
    timezone: str
    times: list[PreviewedTime]
    clock_changes: list[ClockChangeInfo]
    conflicts: list[ConflictInfo]


class FireInfo(msgspec.Struct):
    """The outcome of a fire time."""

    schedule: str
    fire_time: str | None
    until: str | None
    """Of many skipped times in one row, ``fire_time`` being the first: the last of them."""
    state: str
    reason: str | None
    cause: str
    handle: str | None
    node: str | None
    worker: str | None
    started_at: str | None
    ended_at: str | None
    outcome: str | None
    error: str | None
    attempt: int
    parent: str | None
    finished: bool


class Difference(msgspec.Struct):
    """One change by a declaration."""

    kind: str
    name: str
    text: str
    warning: bool = False
    """Whether people should look at it."""


class Declared(msgspec.Struct):
    """The result of a declaration."""

    governs: bool
    changes: list[Difference]


class ListAllSchedules(Request[Page[ScheduleInfo]]):
    """List schedules, by name."""

    permission = Permission.READ
    call = "schedules.list"
    http = get("schedules")
    only_reads = True
    cursor: Cursor = None
    limit: Limit = PAGE_LIMIT


class ShowSchedule(Request[ScheduleDetails]):
    """Show a schedule."""

    permission = Permission.READ
    touches = Touches.SCHEDULE
    reads_object = True
    call = "schedules.show"
    http = get("schedules/{name}")
    name: ScheduleName


EXAMPLE: Final = {"function": "report", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "args": {"full": True}}


class AddSchedule(Specification, Request[ScheduleInfo]):
    """Create a schedule."""

    permission = Permission.DEVELOP
    touches = Touches.SCHEDULE
    call = "schedules.add"
    http = post(
        "schedules",
        status=201,
        location="schedules/{name}",
        problems=(Code.CONFLICT,),
        example={"name": "nightly", **EXAMPLE},
    )


class EditSchedule(Specification, Request[ScheduleInfo]):
    """Change a part of a schedule. Fields that are left out do not change."""

    permission = Permission.DEVELOP
    touches = Touches.SCHEDULE
    call = "schedules.edit"
    http = patch("schedules/{name}", problems=(Code.CONFLICT,), example={"cron": "0 3 * * *"})
    revision: Revision = None


class ReplaceSchedule(Specification, Request[ScheduleInfo]):
    """Change a schedule. Fields that are left out get their defaults."""

    permission = Permission.DEVELOP
    touches = Touches.SCHEDULE
    call = "schedules.replace"
    http = put("schedules/{name}", problems=(Code.CONFLICT,), example=EXAMPLE)
    revision: Revision = None


class PreviewSchedule(Specification, Request[Previewed]):
    """Show when a schedule would run, and save nothing.

    It is what `AddSchedule` would save, or `EditSchedule` if the schedule exists.
    """

    permission = Permission.READ
    touches = Touches.SCHEDULE
    call = "schedules.preview"
    http = post("schedules/preview", example={"name": "nightly", **EXAMPLE, "count": 3})
    only_reads = True
    count: Annotated[Whole, about("The number of times.")] = 10


class PauseSchedule(Request[ScheduleInfo]):
    """Skip the fire times of a schedule from now on."""

    permission = Permission.OPERATE
    touches = Touches.SCHEDULE
    call = "schedules.pause"
    http = post("schedules/{name}/pause", problems=(Code.CHANGED,))
    name: ScheduleName
    revision: Revision = None


class ResumeSchedule(Request[ScheduleInfo]):
    """Let a paused schedule run again."""

    permission = Permission.OPERATE
    touches = Touches.SCHEDULE
    call = "schedules.resume"
    http = post("schedules/{name}/resume", problems=(Code.CHANGED,))
    name: ScheduleName
    revision: Revision = None


class RemoveSchedule(Request[RemovedSchedule]):
    """Remove a schedule. Its history stays."""

    permission = Permission.DEVELOP
    touches = Touches.SCHEDULE
    call = "schedules.remove"
    http = delete("schedules/{name}")
    name: ScheduleName
    revision: Revision = None
    children: Annotated[
        bool, about("Whether to remove all schedules that run after it, too, and those after them.")
    ] = False


class AdoptSchedule(Request[ScheduleInfo]):
    """Give a schedule to the code of an App, as if that had created it.

    The next declaration of the App keeps, changes or removes it.
    """

    permission = Permission.DEVELOP
    touches = Touches.SCHEDULE
    call = "schedules.adopt"
    http = post("schedules/{name}/adopt", problems=(Code.CHANGED,), example={"app": "shop"})
    name: ScheduleName
    app: Annotated[Text, described("The name of the App, as the list of schedules shows it.", label="Name of the App")]
    revision: Revision = None


class TriggerSchedule(Request[FireInfo]):
    """Run a schedule now."""

    permission = Permission.OPERATE
    touches = Touches.SCHEDULE
    keeps_answer = True
    call = "schedules.trigger"
    http = post("schedules/{name}/trigger")
    name: ScheduleName


class NextTimes(Request[Times]):
    """Show the next times of a schedule."""

    permission = Permission.READ
    touches = Touches.SCHEDULE
    call = "schedules.next"
    http = get("schedules/{name}/next")
    only_reads = True
    name: ScheduleName
    count: Annotated[Whole, about("The number of times.")] = 10


class ScheduleHistory(Request[Page[FireInfo]]):
    """List the outcomes of a schedule's fire times, newest first."""

    permission = Permission.READ
    touches = Touches.SCHEDULE
    call = "schedules.history"
    only_reads = True
    name: ScheduleName
    cursor: Cursor = None
    limit: Limit = 100


class DeclareSchedules(Request[Declared]):
    """Make the stored schedules match the code of an App, if that code governs."""

    permission = Permission.DEVELOP
    touches = Touches.EACH
    call = "schedules.declare"
    app: Annotated[Text, about("The name of the App.")]
    schedules: Annotated[
        list[Specification], msgspec.Meta(max_length=ENTRIES.most), about("All schedules that its code declares.")
    ]
    functions: Annotated[Texts | None, about("All functions that the code defines; null: unknown.")] = None
    workflows: Annotated[
        TextTuple,
        about("Those of them that are workflows: a node without workflows leaves out their schedules."),
    ] = ()
    left_out: Annotated[
        TextTuple, about("Functions that the worker does not run: their schedules stay as they are.")
    ] = ()
    is_named: Annotated[bool, about("Whether the code chooses the name of the App.")] = True


FireStateName = Literal["waiting", "fired", "joined", "skipped"]
OutcomeName = Literal["succeeded", "failed", "cancelled", "expired"]
LONGEST_TIMELINE = 31 * 86_400.0
"""Seconds."""


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


class Timeline(Page[ScheduleLine], kw_only=True):
    """The fire times of schedules in a time, counted in buckets."""

    since: str
    until: str
    step: float
    """Seconds of a bucket."""


class ListFires(Request[Page[FireInfo]]):
    """List the fire times of all schedules, or of one, newest first."""

    permission = Permission.READ
    call = "schedules.fires"
    http = get("fires", problems=(Code.SCHEDULE_NOT_FOUND,))
    only_reads = True
    schedule: Annotated[Text | None, described("Only times of this schedule.")] = None
    state: Annotated[FireStateName | None, described("Only times in this state.")] = None
    outcome: Annotated[OutcomeName | None, described("Only times whose job ended so.")] = None
    since: Annotated[Time | None, described("Only times from this one on.")] = None
    until: Annotated[Time | None, described("Only times before this one.")] = None
    cursor: Cursor = None
    limit: Limit = 100


class ReadOutcomes(Request[Page[FireInfo]]):
    """Show the last outcome of each of some schedules.

    It is that of the newest fire time whose job has ended, or that was skipped. A schedule without one among its newest 20 fire
    times is left out. A removed schedule is, too, if the caller may not read all functions.
    """

    permission = Permission.READ
    call = "schedules.outcomes"
    http = get("fires/outcomes")
    only_reads = True
    schedules: Annotated[
        list[Text], msgspec.Meta(min_length=1, max_length=PAGE_LIMIT), about("The names of schedules.")
    ]
    cursor: Cursor = None
    limit: Limit = PAGE_LIMIT


class ReadTimeline(Request[Timeline]):
    """Count the past and the next fire times of all schedules, or of some."""

    permission = Permission.READ
    call = "schedules.timeline"
    http = get("fires/timeline")
    only_reads = True
    since: Annotated[Time | None, described("Begin here; by default with the present day in UTC.")] = None
    until: Annotated[Time | None, described("End here; by default a day later, and at most 31 days.")] = None
    step: Annotated[
        float,
        msgspec.Meta(ge=60, le=86_400, extra={KIND: "duration"}),
        described("The length of a bucket, from 1m to 1d; of the command by default 1h, else 15m."),
    ] = 900.0
    cursor: Cursor = None
    limit: Limit = 100
    """Schedules in one answer."""
    schedules: Annotated[
        Annotated[list[Text], msgspec.Meta(min_length=1, max_length=PAGE_LIMIT)] | None,
        about("The names of schedules. By default all."),
    ] = None
    """Only these."""
