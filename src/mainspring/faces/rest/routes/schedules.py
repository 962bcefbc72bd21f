"""Routes about schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.api import backfills, schedules
from mainspring.api.errors import ApiError, Code
from mainspring.api.job_filters import Time  # noqa: TC001 - msgspec reads the annotations
from mainspring.faces.rest.registry import ROOT, N, Route
from mainspring.faces.rest.replies import Items, Reply
from mainspring.faces.rest.versions import revision_in, version_of
from mainspring.jobs.model import Retry  # noqa: TC001 - msgspec reads the annotations
from mainspring.schedules.model import Misfire  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from datetime import datetime


class _Description(msgspec.Struct, kw_only=True):
    """The description of a schedule, without its name; docs/reference/protocol.md explains the keys."""

    namespace: str
    function: str | UnsetType = UNSET
    args: msgspec.Raw | UnsetType = UNSET
    """The input of its jobs as any JSON value, in place of ``payload``."""
    payload: bytes | UnsetType = UNSET
    """The input as base64."""
    cron: str | UnsetType = UNSET
    every: float | UnsetType = UNSET
    at: Time | UnsetType = UNSET
    timezone: str | UnsetType = UNSET
    start: Time | UnsetType | None = UNSET
    end: Time | UnsetType | None = UNSET
    jitter: float | UnsetType = UNSET
    exclude: list[str] | UnsetType = UNSET
    misfire: Misfire | UnsetType = UNSET
    misfire_after: float | UnsetType = UNSET
    overlap: str | UnsetType = UNSET
    parents: list[str] | UnsetType = UNSET
    wait_for_children: bool | UnsetType = UNSET
    priority: str | UnsetType = UNSET
    retry: Retry | UnsetType | None = UNSET
    timeout: float | UnsetType | None = UNSET
    unique: str | UnsetType = UNSET
    expires: float | UnsetType | None = UNSET


class ScheduleInput(_Description, kw_only=True):
    """The description of a schedule."""

    name: str


class PreviewInput(ScheduleInput, kw_only=True):
    """A description, and the number of times to show."""

    count: int = 10


class ScheduleChange(ScheduleInput, kw_only=True):
    """The description, or a part of it, for a version of a schedule."""

    revision: str | None = None


class ScheduleName(msgspec.Struct, kw_only=True):
    """A schedule."""

    namespace: str
    name: str


class ScheduleVersion(ScheduleName, kw_only=True):
    """A version of a schedule."""

    revision: str | None = None


def _fields(given: _Description) -> dict[str, Any]:
    """Return the fields of a request. Raises ApiError."""
    fields = {name: value for name, value in msgspec.structs.asdict(given).items() if value is not UNSET}
    args = fields.pop("args", None)
    if args is not None:
        if "payload" in fields:
            raise ApiError(Code.INVALID, "args and payload exclude each other: give one of them")
        fields["payload"] = bytes(args)
    for name in ("at", "start", "end"):
        time: datetime | None = fields.get(name)
        if time is not None:
            fields[name] = time.timestamp()
    if "revision" in fields:
        fields["revision"] = revision_in(fields["revision"])
    return fields


def _created(info: schedules.ScheduleInfo, given: ScheduleInput) -> Reply:
    return Reply(
        info, 201, {"Location": f"{N.format(namespace=given.namespace)}/schedules/{quote(info.name, safe='')}"}
    )


def _begun(begun: backfills.Begun, request: backfills.Backfill) -> object:
    if begun.id is None:
        return begun
    return Reply(begun, 202, {"Location": f"{ROOT}/namespaces/{request.namespace}/operations/{begun.id}"})


S: Final = f"{N}/schedules/{{name}}"


def _act(
    verb: str,
    request: type[schedules.Pause | schedules.Resume | schedules.Trigger],
    answer: type[msgspec.Struct],
    summary: str,
) -> Route:
    return Route(
        method="POST",
        path=f"{S}/{verb}",
        request=request,
        inputs=ScheduleName,
        make=lambda given: request(namespace=given.namespace, name=given.name),
        answer=answer,
        summary=summary,
        problems=(Code.SCHEDULE_NOT_FOUND,),
    )


CHANGES: Final = (Code.SCHEDULE_NOT_FOUND, Code.CHANGED, Code.CONFLICT, "precondition_required")
EXAMPLE: Final = {"function": "report", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "args": {"full": True}}

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/schedules",
        request=schedules.List,
        answer=Items[schedules.ScheduleInfo],
        reply=lambda listed, _: Items(listed.schedules),
        summary="List schedules, by name",
    ),
    Route(
        method="POST",
        path=f"{N}/schedules",
        request=schedules.Add,
        inputs=ScheduleInput,
        make=lambda given: schedules.Add(**_fields(given)),
        answer=schedules.ScheduleInfo,
        reply=_created,
        status=201,
        summary="Create a schedule",
        problems=(Code.CONFLICT,),
        example={"name": "nightly", **EXAMPLE},
    ),
    Route(
        method="POST",
        path=f"{N}/schedules/preview",
        request=schedules.Preview,
        inputs=PreviewInput,
        make=lambda given: schedules.Preview(**_fields(given)),
        answer=schedules.Previewed,
        summary="Show when a schedule would run, and save nothing",
        example={"name": "nightly", **EXAMPLE, "count": 3},
    ),
    Route(
        method="GET",
        path=S,
        request=schedules.Show,
        answer=schedules.ScheduleDetails,
        version=version_of,
        summary="Show a schedule",
        problems=(Code.SCHEDULE_NOT_FOUND,),
    ),
    Route(
        method="PUT",
        path=S,
        request=schedules.Replace,
        inputs=ScheduleChange,
        make=lambda given: schedules.Replace(**_fields(given)),
        if_match="revision",
        answer=schedules.ScheduleInfo,
        summary="Change a schedule; keys that are left out get their defaults",
        problems=CHANGES,
        example=EXAMPLE,
    ),
    Route(
        method="PATCH",
        path=S,
        request=schedules.Edit,
        inputs=ScheduleChange,
        make=lambda given: schedules.Edit(**_fields(given)),
        if_match="revision",
        answer=schedules.ScheduleInfo,
        summary="Change a part of a schedule",
        problems=CHANGES,
        example={"cron": "0 3 * * *"},
    ),
    Route(
        method="DELETE",
        path=S,
        request=schedules.Remove,
        inputs=ScheduleVersion,
        make=lambda given: schedules.Remove(
            namespace=given.namespace, name=given.name, revision=revision_in(given.revision)
        ),
        if_match="revision",
        answer=None,
        reply=lambda _, __: None,
        summary="Remove a schedule; its history stays",
        problems=CHANGES,
    ),
    _act("pause", schedules.Pause, schedules.ScheduleInfo, "Skip the times of a schedule from now on"),
    _act("resume", schedules.Resume, schedules.ScheduleInfo, "Let a paused schedule run again"),
    _act("trigger", schedules.Trigger, schedules.Run, "Run a schedule now"),
    Route(
        method="POST",
        path=f"{S}/backfill",
        request=backfills.Backfill,
        answer=backfills.Begun,
        reply=_begun,
        summary="Run a schedule for its past times that have not run",
        others={202: "The operation has begun"},
        problems=(Code.SCHEDULE_NOT_FOUND, Code.CONFLICT, Code.UNSUPPORTED),
        example={
            "from": "2030-01-01T00:00:00Z",
            "to": "2030-01-31T00:00:00Z",
            "max": 31,
            "reason": "the bank was down",
        },
    ),
    Route(
        method="GET",
        path=f"{S}/next",
        request=schedules.Next,
        answer=schedules.Times,
        summary="Show the next times of a schedule",
        problems=(Code.SCHEDULE_NOT_FOUND,),
    ),
)
