"""The pages of functions: their work, limits, pauses, failures, and the last hour or day."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.access import MarkInfo
from mainspring.api.functions import (
    Acknowledge,
    BucketInfo,
    Errors,
    FunctionInfo,
    PauseFunction,
    ResumeFunction,
    Series,
)
from mainspring.api.namespaces import NamespaceNode, NamespaceStatus
from mainspring.faces.dashboard.actions import Action, Field, act
from mainspring.faces.dashboard.calls import Items, Problem
from mainspring.faces.dashboard.drawings.functions import failures, histogram, throughput
from mainspring.faces.dashboard.drawings.functions import rate as rate_of
from mainspring.faces.dashboard.pages.access import acts_on
from mainspring.faces.dashboard.pages.jobs import SUBMIT
from mainspring.faces.dashboard.visit import Page
from mainspring.faces.web.exchange import N
from mainspring.quantities import format_rate
from mainspring.workflows.model import DECISIONS, is_of_decisions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mainspring.api.namespaces import TroubledFunction
    from mainspring.faces.dashboard.visit import Response, Visit
    from mainspring.resources.rules import RateSpec

ROWS: Final = 100
FUNCTION: Final = f"{N}/functions/{{function}}"
STEPS: Final = ("minute", "half_hour")


async def _in_words(visit: Visit, parameters: Mapping[str, str]) -> str:
    """Return the limits and the pause of a function as they are now."""
    shown = await visit.calls.get(FunctionInfo, FUNCTION, parameters)
    parts = [limits_in_words(shown) or "no limits"]
    if shown.paused:
        parts += [f"paused by {shown.paused_by}" if shown.paused_by else "paused"]
    return ", ".join(parts)


PAUSE: Final = act(
    PauseFunction,
    label="Pause",
    done="No more jobs of the function start, on all nodes within seconds. Running jobs go on.",
    needs="limits",
    fields=("reason", "until"),
)
RESUME: Final = act(
    ResumeFunction,
    label="Resume",
    done="Jobs of the function start again.",
    needs="limits",
)
LIMIT: Final = Action(
    operation="functions_limits_set",
    label="Change the limits",
    done="The limits apply on all nodes within seconds.",
    path=f"{FUNCTION}/limits",
    needs="limits",
    method="PUT",
    permission=Permission.DEVELOP,
    if_match=True,
    current=_in_words,
    fields=(
        Field(
            name="concurrency", label="Jobs at a time", kind="number", option="--concurrency", hint="empty: no limit"
        ),
        Field(
            name="concurrency_per_key",
            label="Jobs of one concurrency key at a time",
            kind="number",
            option="--concurrency-per-key",
            hint="empty: no limit",
        ),
        Field(
            name="rate", label="Starts in a time", kind="rate", option="--rate", hint="such as 100/1m; empty: no limit"
        ),
        Field(
            name="rate_per_key", label="Starts of one key", kind="rate", option="--rate-per-key", hint="such as 10/1s"
        ),
    ),
    command="functions limit {function}",
    empty_option="--unlimited",
)
DECLARED: Final = Action(
    operation="functions_limits_delete",
    label="Use the limits of the workers",
    done="The limits that workers declare apply again.",
    path=f"{FUNCTION}/limits",
    needs="limits",
    method="DELETE",
    permission=Permission.DEVELOP,
    if_match=True,
    current=_in_words,
    command="functions limit {function} --declared",
)
ACKNOWLEDGE: Final = act(
    Acknowledge,
    label="Acknowledge the failures",
    done="The failures of the function are no trouble until its next failure. Its dead letters stay.",
    needs="access",
    fields=("reason",),
)
ACTIONS: Final = (PAUSE, RESUME, LIMIT, DECLARED, ACKNOWLEDGE)


def rate(spec: RateSpec | None) -> str:
    """Return a rate as users write it; empty for none."""
    return "" if spec is None else format_rate(msgspec.to_builtins(spec)) or ""


def limit_values(function: FunctionInfo) -> dict[str, str]:
    """Return the values of the fields of `LIMIT`."""
    numbers = {"concurrency": function.concurrency, "concurrency_per_key": function.concurrency_per_key}
    rates = {"rate": function.rate, "rate_per_key": function.rate_per_key}
    return {name: "" if value is None else str(value) for name, value in numbers.items()} | {
        name: rate(value) for name, value in rates.items()
    }


def limits_in_words(function: FunctionInfo) -> str:
    """Return all limits of a function in a few words."""
    parts = []
    if function.concurrency is not None:
        parts.append(f"{function.concurrency} at a time")
    if function.concurrency_per_key is not None:
        parts.append(f"{function.concurrency_per_key} at a time per key")
    if function.rate is not None:
        parts.append(rate(function.rate))
    if function.rate_per_key is not None:
        parts.append(f"{rate(function.rate_per_key)} per key")
    return ", ".join(parts)


def newest_run(series: Series) -> BucketInfo | None:
    """Return the newest bucket in which an attempt ended; None if there is none."""
    return next((one for one in reversed(series.buckets) if one.run is not None), None)


def rates(series: Series) -> tuple[float, float]:
    """Return how many jobs were submitted and succeeded in a minute, by the last whole minutes."""
    submitted, succeeded = ([getattr(one, name) for one in series.buckets] for name in ("submitted", "succeeded"))
    return rate_of(submitted) or 0.0, rate_of(succeeded) or 0.0


def has_trouble(one: FunctionInfo | TroubledFunction, failing: Collection[str]) -> bool:
    """Return whether a function needs somebody; ``failing`` are those with failed attempts."""
    is_stuck = bool(one.waiting) and one.registered is False
    return bool(one.dead_letters) or is_stuck or one.paused or one.function in failing


async def workers_word(visit: Visit) -> str:
    """Return what the workers of a function are called: other nodes do not report theirs by function."""
    nodes = await visit.optional(visit.calls.get_all(Items[NamespaceNode], f"{N}/nodes"))
    live = [] if isinstance(nodes, Problem) else [one for one in nodes.items if one.state == "live"]
    return "Workers here" if len(live) > 1 else "Workers"


async def functions(visit: Visit) -> Response:
    """Show all functions: first those that fail, and of the first page those with trouble."""
    name, cursor = visit.field("name"), visit.field("cursor")
    query = {"name": name, "cursor": cursor, "limit": ROWS}
    listed, status, workers = await asyncio.gather(
        visit.calls.get(Items[FunctionInfo], f"{N}/functions", query=query),
        visit.optional(visit.calls.get(NamespaceStatus, f"{N}/status"), "status"),
        workers_word(visit),
    )
    is_first = not (cursor or name)
    whole = status if isinstance(status, NamespaceStatus) and is_first else None
    failing = None if whole is None else whole.failing
    names = set() if failing is None else {one.function for one in failing.functions}
    # A workflow is listed once: its decisions have a row of their own only if they need somebody.
    listed.items[:] = [one for one in listed.items if not is_of_decisions(one.function) or has_trouble(one, names)]
    if is_first:
        listed.items.sort(key=lambda one: (not has_trouble(one, names), one.function))
    shown = {one.function for one in listed.items}
    elsewhere = [] if whole is None else [one for one in whole.troubled if has_trouble(one, names)]
    return visit.render(
        "functions.html",
        listed=listed,
        failing=failing,
        elsewhere=[one.function for one in elsewhere if one.function not in shown],
        has_trouble=any(has_trouble(one, names) for one in listed.items) and is_first,
        name=name,
        workers=workers,
        rows=ROWS,
        limits_in_words=limits_in_words,
    )


async def function(visit: Visit) -> Response:
    """Show a function."""
    calls, name = visit.calls, dict(visit.parameters)
    step = visit.field("step") if visit.field("step") in STEPS else STEPS[0]
    shown, series, errors, marks, acts, workers = await asyncio.gather(
        calls.get(FunctionInfo, FUNCTION, name),
        visit.optional(calls.get(Series, f"{FUNCTION}/series", name, query={"step": step}), "series"),
        visit.optional(calls.get(Errors, f"{FUNCTION}/errors", name), "errors"),
        visit.optional(calls.get(Items[MarkInfo], f"{N}/marks", query={"limit": 20})),
        acts_on(visit, name["function"]),
        workers_word(visit),
    )
    drawn = None
    if isinstance(series, Series):
        drawn = throughput(series, [] if isinstance(marks, Problem) else marks.items, visit.settings.timezone)
    changes = [RESUME if shown.paused else PAUSE, LIMIT, *([DECLARED] if shown.source == "command" else [])]
    if shown.dead_letters or (isinstance(errors, Errors) and errors.errors):
        changes.append(ACKNOWLEDGE)
    return visit.render(
        "function.html",
        function=shown,
        workers=workers,
        limits=limits_in_words(shown),
        priorities=list(msgspec.structs.asdict(shown.waiting_by_priority).items()) if shown.waiting_by_priority else [],
        failures=failures,
        newest=None if not isinstance(series, Series) else newest_run(series),
        rates=None if not isinstance(series, Series) or step != STEPS[0] else rates(series),
        drawing=drawn,
        durations=histogram(series) if isinstance(series, Series) else None,
        has_series=isinstance(series, Series),
        errors=None if isinstance(errors, Problem) else errors.errors,
        actions=[one for one in changes if visit.offers(one, shown.function)],
        submit=SUBMIT if visit.offers(SUBMIT, shown.function) and not shown.function.endswith(DECISIONS) else None,
        values={LIMIT.key: limit_values(shown)},
        step=step,
        acts=acts,
    )


PAGES: Final = (
    Page(path="/functions", handler=functions, menu="Functions"),
    Page(path="/functions/{function}", handler=function),
)
