"""Routes about the fire times of schedules."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from mainspring.api import fires, schedules
from mainspring.api.errors import PAGE_LIMIT, Code
from mainspring.api.job_filters import Time  # noqa: TC001 - msgspec reads the annotations
from mainspring.faces.rest.registry import N, Route
from mainspring.faces.rest.replies import Items


class FiresQuery(msgspec.Struct, kw_only=True):
    """The filter of a list of fire times."""

    namespace: str
    state: fires.FireStateName | None = None
    outcome: fires.OutcomeName | None = None
    since: Time | None = None
    until: Time | None = None
    """Only fire times before this one."""
    cursor: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100


class ScheduleFiresQuery(FiresQuery, kw_only=True):
    """The filter of a list of one schedule's fire times."""

    name: str


class TimelineQuery(msgspec.Struct, kw_only=True):
    """The time of a timeline, and the place in its list of schedules."""

    namespace: str
    since: Time | None = None
    until: Time | None = None
    step: Annotated[float, msgspec.Meta(ge=60, le=86_400)] = 900.0
    after: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100


def _seconds(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with seconds in place of times."""
    return {
        name: value.timestamp() if name in {"since", "until"} and value is not None else value
        for name, value in values.items()
    }


def _list(query: FiresQuery) -> fires.ListFires:
    criteria = _seconds(msgspec.structs.asdict(query))
    schedule = criteria.pop("name", None)
    return fires.ListFires(after=criteria.pop("cursor"), schedule=schedule, **criteria)


def _items(listed: fires.Fires, _: FiresQuery) -> Items[schedules.Run]:
    return Items(listed.fires, listed.next)


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/fires",
        request=fires.ListFires,
        inputs=FiresQuery,
        make=_list,
        answer=Items[schedules.Run],
        reply=_items,
        summary="List the fire times of all schedules, newest first",
    ),
    Route(
        method="GET",
        path=f"{N}/schedules/{{name}}/fires",
        request=fires.ListFires,
        inputs=ScheduleFiresQuery,
        make=_list,
        answer=Items[schedules.Run],
        reply=_items,
        summary="List the fire times of a schedule, newest first",
        name="schedules_fires_of_one",
        problems=(Code.SCHEDULE_NOT_FOUND,),
    ),
    Route(
        method="GET",
        path=f"{N}/fires/timeline",
        request=fires.ReadTimeline,
        inputs=TimelineQuery,
        make=lambda query: fires.ReadTimeline(**_seconds(msgspec.structs.asdict(query))),
        answer=fires.Timeline,
        summary="Count the past and the next fire times of all schedules",
    ),
)
