"""Routes about the fire times of schedules."""

from __future__ import annotations

from typing import Final

from mainspring.api import fires, schedules
from mainspring.api.errors import Code
from mainspring.faces.rest.registry import N, Route
from mainspring.faces.rest.replies import Items
from mainspring.sizes import Text

SPAN: Final = ("since", "until")

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/fires",
        request=fires.ListFires,
        cursor="after",
        times=SPAN,
        fixed={"schedule": None},
        answer=Items[schedules.Run],
        items="fires",
        summary="List the fire times of all schedules, newest first",
    ),
    Route(
        method="GET",
        path=f"{N}/schedules/{{name}}/fires",
        request=fires.ListFires,
        cursor="after",
        times=SPAN,
        names={"name": "schedule"},
        types={"schedule": Text},
        answer=Items[schedules.Run],
        items="fires",
        summary="List the fire times of a schedule, newest first",
        name="schedules_fires_of_one",
        problems=(Code.SCHEDULE_NOT_FOUND,),
    ),
    Route(
        method="GET",
        path=f"{N}/fires/outcomes",
        request=fires.ReadOutcomes,
        cursor="after",
        names={"schedule": "schedules"},
        answer=Items[schedules.Run],
        items="fires",
        summary="Show the last outcome of each of some schedules",
    ),
    Route(
        method="GET",
        path=f"{N}/fires/timeline",
        request=fires.ReadTimeline,
        times=SPAN,
        names={"schedule": "schedules"},
        answer=fires.Timeline,
        summary="Count the past and the next fire times of all schedules, or of some",
    ),
)
