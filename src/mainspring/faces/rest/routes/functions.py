"""Routes about functions: their limits, pauses, series and errors."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from mainspring.api import functions, series
from mainspring.api.errors import PAGE_LIMIT, Code
from mainspring.api.job_filters import Time  # noqa: TC001 - msgspec reads the annotations
from mainspring.faces.rest.registry import N, Route
from mainspring.faces.rest.replies import Items
from mainspring.faces.rest.versions import revision_in, version_of
from mainspring.resources.limit_specs import RateSpec  # noqa: TC001 - msgspec reads the annotations


class FunctionsQuery(msgspec.Struct, kw_only=True):
    """The place in a list of functions."""

    namespace: str
    cursor: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100


class LimitsInput(msgspec.Struct, kw_only=True):
    """All limits of a function; a limit that is left out is none."""

    namespace: str
    function: str
    concurrency: int | None = None
    concurrency_per_key: int | None = None
    rate: RateSpec | None = None
    rate_per_key: RateSpec | None = None
    revision: str | None = None


class LimitsOrigin(msgspec.Struct, kw_only=True):
    """A function whose limits are to be those of its workers."""

    namespace: str
    function: str
    revision: str | None = None


class PauseInput(msgspec.Struct, kw_only=True):
    """A pause."""

    namespace: str
    function: str
    reason: functions.Reason = ""
    until: Time | None = None
    """When it ends by itself."""


class FunctionName(msgspec.Struct, kw_only=True):
    """A function."""

    namespace: str
    function: str


class SeriesQuery(msgspec.Struct, kw_only=True):
    """The part of a series."""

    namespace: str
    function: str
    step: series.StepName = "minute"
    since: Time | None = None
    until: Time | None = None


def _limits(given: LimitsInput) -> functions.Limit:
    limits = msgspec.structs.asdict(given)
    return functions.Limit(**(limits | {"revision": revision_in(given.revision)}))


def _declared(given: LimitsOrigin) -> functions.Limit:
    return functions.Limit(
        namespace=given.namespace, function=given.function, declared=True, revision=revision_in(given.revision)
    )


def _pause(given: PauseInput) -> functions.Pause:
    until = None if given.until is None else given.until.timestamp()
    return functions.Pause(namespace=given.namespace, function=given.function, reason=given.reason, until=until)


def _series(query: SeriesQuery) -> series.ReadSeries:
    times = {
        name: None if time is None else time.timestamp()
        for name, time in (("since", query.since), ("until", query.until))
    }
    return series.ReadSeries(namespace=query.namespace, function=query.function, step=query.step, **times)


F: Final = f"{N}/functions/{{function}}"
CHANGES: Final = (Code.UNSUPPORTED, Code.TOO_MANY_FUNCTIONS, Code.TOO_LARGE)

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/functions",
        request=functions.List,
        inputs=FunctionsQuery,
        make=lambda query: functions.List(namespace=query.namespace, limit=query.limit, after=query.cursor),
        answer=Items[functions.FunctionInfo],
        reply=lambda listed, _: Items(listed.functions, listed.next),
        summary="List functions",
    ),
    Route(
        method="GET",
        path=F,
        request=functions.Show,
        answer=functions.FunctionInfo,
        version=version_of,
        summary="Show a function",
        problems=(Code.FUNCTION_NOT_FOUND,),
    ),
    Route(
        method="PUT",
        path=f"{F}/limits",
        request=functions.Limit,
        inputs=LimitsInput,
        make=_limits,
        if_match="revision",
        answer=functions.FunctionInfo,
        version=version_of,
        summary="Set all limits of a function",
        name="functions_limits_set",
        problems=(*CHANGES, Code.CHANGED, "precondition_required"),
        example={"concurrency": 10, "rate": {"number": 100, "per": 60}},
    ),
    Route(
        method="DELETE",
        path=f"{F}/limits",
        request=functions.Limit,
        inputs=LimitsOrigin,
        make=_declared,
        if_match="revision",
        answer=functions.FunctionInfo,
        version=version_of,
        summary="Go back to the limits that workers declare",
        name="functions_limits_delete",
        problems=(*CHANGES, Code.CHANGED, "precondition_required"),
    ),
    Route(
        method="POST",
        path=f"{F}/pause",
        request=functions.Pause,
        inputs=PauseInput,
        make=_pause,
        answer=functions.FunctionInfo,
        version=version_of,
        summary="Start no more jobs of a function",
        problems=CHANGES,
        example={"reason": "the bank is down", "until": "2030-01-31T12:00:00Z"},
    ),
    Route(
        method="POST",
        path=f"{F}/resume",
        request=functions.Resume,
        inputs=FunctionName,
        make=lambda given: functions.Resume(namespace=given.namespace, function=given.function),
        answer=functions.FunctionInfo,
        version=version_of,
        summary="Start the jobs of a function again",
        problems=CHANGES,
    ),
    Route(
        method="GET",
        path=f"{F}/series",
        request=series.ReadSeries,
        inputs=SeriesQuery,
        make=_series,
        answer=series.Series,
        summary="Show the last hour or day of a function",
        problems=(Code.UNSUPPORTED,),
    ),
    Route(
        method="GET",
        path=f"{F}/errors",
        request=series.ReadErrors,
        answer=series.Errors,
        summary="Show the errors of a function in the last day, by type",
        problems=(Code.UNSUPPORTED,),
    ),
)
