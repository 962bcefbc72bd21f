"""Routes about schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.api import backfills, schedules
from mainspring.api.errors import Code
from mainspring.faces.rest.registry import N, Route, path_in
from mainspring.faces.rest.replies import Items, Reply
from mainspring.faces.rest.versions import version_of

if TYPE_CHECKING:
    import msgspec


def _created(info: schedules.ScheduleInfo, given: schedules.Add) -> Reply:
    return Reply(info, 201, {"Location": path_in(given.namespace, "schedules", info.name)})


def _begun(begun: backfills.Begun, request: backfills.Backfill) -> object:
    if begun.id is None:
        return begun
    return Reply(begun, 202, {"Location": path_in(request.namespace, "operations", begun.id)})


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
        fixed={} if request is schedules.Trigger else {"revision": None},
        answer=answer,
        summary=summary,
        problems=(Code.SCHEDULE_NOT_FOUND,),
    )


TIMES: Final = ("at", "start", "end")
CHANGES: Final = (Code.SCHEDULE_NOT_FOUND, Code.CHANGED, Code.CONFLICT, "precondition_required")
EXAMPLE: Final = {"function": "report", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "args": {"full": True}}

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/schedules",
        request=schedules.List,
        cursor="after",
        answer=Items[schedules.ScheduleInfo],
        items="schedules",
        summary="List schedules, by name",
    ),
    Route(
        method="POST",
        path=f"{N}/schedules",
        request=schedules.Add,
        times=TIMES,
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
        times=TIMES,
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
        times=TIMES,
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
        times=TIMES,
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
        if_match="revision",
        answer=None,
        summary="Remove a schedule; its history stays",
        problems=CHANGES,
    ),
    Route(
        method="POST",
        path=f"{S}/adopt",
        request=schedules.Adopt,
        fixed={"revision": None},
        answer=schedules.ScheduleInfo,
        summary="Give a schedule to the code of an App",
        problems=(Code.SCHEDULE_NOT_FOUND,),
        example={"app": "shop"},
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
