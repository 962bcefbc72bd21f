"""Routes about schedules, and their fire times."""

from __future__ import annotations

from typing import Final

from mainspring.api import schedules
from mainspring.api.request import Code, Page
from mainspring.faces.rest.registry import N, Route, path_in
from mainspring.faces.rest.replies import Reply
from mainspring.sizes import Text


def _created(info: schedules.ScheduleInfo, given: schedules.AddSchedule) -> Reply:
    return Reply(info, 201, {"Location": path_in(given.namespace, "schedules", info.name)})


S: Final = f"{N}/schedules/{{name}}"


TIMES: Final = ("at", "start", "end")
CHANGES: Final = (Code.SCHEDULE_NOT_FOUND, Code.CHANGED, Code.CONFLICT, "precondition_required")
EXAMPLE: Final = {"function": "report", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "args": {"full": True}}

ROUTES: Final = (
    Route(
        method="POST",
        path=f"{N}/schedules",
        request=schedules.AddSchedule,
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
        request=schedules.PreviewSchedule,
        times=TIMES,
        answer=schedules.Previewed,
        summary="Show when a schedule would run, and save nothing",
        example={"name": "nightly", **EXAMPLE, "count": 3},
    ),
    Route(
        method="PUT",
        path=S,
        request=schedules.ReplaceSchedule,
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
        request=schedules.EditSchedule,
        times=TIMES,
        if_match="revision",
        answer=schedules.ScheduleInfo,
        summary="Change a part of a schedule",
        problems=CHANGES,
        example={"cron": "0 3 * * *"},
    ),
)

SPAN: Final = ("since", "until")

FIRE_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/fires",
        request=schedules.ListFires,
        times=SPAN,
        fixed={"schedule": None},
        answer=Page[schedules.FireInfo],
        summary="List the fire times of all schedules, newest first",
    ),
    Route(
        method="GET",
        path=f"{N}/schedules/{{name}}/fires",
        request=schedules.ListFires,
        times=SPAN,
        names={"name": "schedule"},
        types={"schedule": Text},
        answer=Page[schedules.FireInfo],
        summary="List the fire times of a schedule, newest first",
        name="schedules_fires_of_one",
        problems=(Code.SCHEDULE_NOT_FOUND,),
    ),
    Route(
        method="GET",
        path=f"{N}/fires/timeline",
        request=schedules.ReadTimeline,
        times=SPAN,
        names={"schedule": "schedules"},
        answer=schedules.Timeline,
        summary="Count the past and the next fire times of all schedules, or of some",
    ),
)
