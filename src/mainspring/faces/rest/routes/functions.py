"""Routes about functions: their limits, pauses, series and errors."""

from __future__ import annotations

from typing import Final

import msgspec

from mainspring.api import functions
from mainspring.api.request import Code
from mainspring.faces.rest.idempotency import version_of
from mainspring.faces.rest.registry import N, Route
from mainspring.resources.limit_specs import RateSpec  # noqa: TC001 - msgspec reads the annotations
from mainspring.sizes import Text, Whole  # noqa: TC001 - msgspec reads the annotations


class LimitsInput(msgspec.Struct, kw_only=True):
    """All limits of a function; a limit that is left out is none."""

    namespace: Text
    function: Text
    concurrency: Whole | None = None
    concurrency_per_key: Whole | None = None
    rate: RateSpec | None = None
    rate_per_key: RateSpec | None = None
    revision: Text | None = None


class LimitsOrigin(msgspec.Struct, kw_only=True):
    """A function whose limits are to be those of its workers."""

    namespace: Text
    function: Text
    revision: Text | None = None


def _limits(given: LimitsInput) -> functions.LimitFunction:
    return functions.LimitFunction(**msgspec.structs.asdict(given))


def _declared(given: LimitsOrigin) -> functions.LimitFunction:
    return functions.LimitFunction(declared=True, **msgspec.structs.asdict(given))


F: Final = f"{N}/functions/{{function}}"
CHANGES: Final = (Code.UNSUPPORTED, Code.TOO_MANY_FUNCTIONS, Code.TOO_LARGE)

ROUTES: Final = (
    Route(
        method="PUT",
        path=f"{F}/limits",
        request=functions.LimitFunction,
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
        request=functions.LimitFunction,
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
        method="GET",
        path=f"{F}/series",
        request=functions.ReadFunctionSeries,
        times=("since", "until"),
        answer=functions.Series,
        summary="Show the last hour or day of a function",
        problems=(Code.UNSUPPORTED,),
    ),
)
