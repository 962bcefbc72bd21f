"""The pages of workflows: runs, and one run with its open work, its history, and why it is parked."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.versions import PARKED, RUNS, version_of
from mainspring.api.workflows import (
    CancelRun,
    PauseRun,
    ResumeRun,
    RunDetails,
    RunInfo,
    SignalRun,
    StartRun,
    TerminateRun,
    UnparkRun,
    VersionInfo,
)
from mainspring.faces.dashboard.actions import ARGUMENTS, Field, FormError, act, declared
from mainspring.faces.dashboard.calls import Items, Problem
from mainspring.faces.dashboard.drawings.workflows import attributes_of, difference, history, name_of
from mainspring.faces.dashboard.pages.access import acts_on
from mainspring.faces.dashboard.pages.jobs import Text, as_text, published_of
from mainspring.faces.dashboard.visit import Page
from mainspring.faces.web.exchange import N
from mainspring.jobs.rules import run_not_retried

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mainspring.faces.dashboard.calls import Answer
    from mainspring.faces.dashboard.visit import Response, Visit

ROWS: Final = RUNS
MOST_PARKED: Final = PARKED
EVENTS: Final = 100
"""In the table."""
DRAWN: Final = 1000
"""Events in the drawing: the newest, or those from the number in the address on."""
LIST: Final = f"{N}/workflows"
RUN: Final = f"{LIST}/{{key}}"
STATUSES: Final = (
    "open",
    "overdue",
    "parked",
    "paused",
    "failed",
    "timed_out",
    "completed",
    "cancelled",
    "terminated",
    "continued_as_new",
)
CHILDREN: Final = (
    ("", "as their policies say"),
    ("terminate", "terminate"),
    ("cancel", "ask to cancel"),
    ("abandon", "leave them running"),
)
_DIGITS: Final = 9
"""Of the number of an event."""
_SHOWN: Final = 200
"""Characters of an attribute."""
_DULL: Final = frozenset(
    {"taskList", "taskPriority", "decisionTaskCompletedEventId", "scheduledEventId", "startedEventId"}
)
"""Attributes that the table of events leaves out: the drawing shows what belongs together."""

SIGNAL: Final = act(
    SignalRun,
    label="Signal",
    done="The run has got the signal.",
    needs="workflows",
    fields=(
        Field(name="name", label="Name", required=True, longest=256),
        Field(name="value", label="Value", kind="json", hint="JSON"),
    ),
    command="workflows signal {key} {name} {value}",
)
CANCEL: Final = act(
    CancelRun,
    label="Ask to cancel",
    done="The run was asked to cancel itself.",
    needs="workflows",
    fields=("reason",),
)
TERMINATE: Final = act(
    TerminateRun,
    label="Terminate",
    done="The run has ended.",
    needs="workflows",
    fields=("reason", declared(TerminateRun, "children", choices=CHILDREN, hint="")),
    warning="The run ends at once. Its code gets no chance to undo anything.",
)
PAUSE: Final = act(
    PauseRun,
    label="Pause",
    done="The run is paused.",
    needs="workflows",
    fields=("reason", "until"),
)
RESUME: Final = act(
    ResumeRun,
    label="Resume",
    done="The run goes on.",
    outcomes={"True": "The run was not paused any more."},
    outcome_key="repeated",
    needs="workflows",
)
UNPARK: Final = act(
    UnparkRun,
    label="Let the code try again",
    done="The code tries the next decision again.",
    outcomes={
        "0": "The run was not parked any more: another request, or a worker with other code, has let it go on before."
    },
    outcome_key="number",
    needs="workflows",
)


def _to_run(visit: Visit, _: Mapping[str, str], answer: Answer) -> str:
    return visit.url("/workflows/{key}", key=msgspec.json.decode(answer.body)["run"])


START: Final = act(
    StartRun,
    label="Start a run",
    done="The run has started.",
    outcomes={"True": "An open run had this workflow id already, and goes on: this is it."},
    outcome_key="joined",
    correctable=frozenset({400, 403, 404, 422}),
    needs="workflows",
    fields=(
        Field(name="function", label="Workflow", required=True, longest=256),
        declared(StartRun, "args", hint=ARGUMENTS),
        declared(StartRun, "id", longest=256, hint="empty: the handle"),
        "version",
        "priority",
        "timeout",
    ),
    command="workflows start {function}",
    then=_to_run,
)
ACTIONS: Final = (SIGNAL, PAUSE, RESUME, CANCEL, TERMINATE, UNPARK, START)
MOST_TYPES: Final = 100
"""Names of workflows that the form suggests."""
UNRETRIED: Final = frozenset({"failed", "timed_out", "cancelled", "terminated"})
"""Statuses of runs that somebody may want to run again."""


class Row(NamedTuple):
    """An event in the table."""

    number: int
    at: str
    kind: str
    name: str
    attributes: dict[str, str]


def row_of(event: dict[str, Any]) -> Row:
    """Return an event as a row."""
    attributes = {
        name: text if len(text := str(value)) <= _SHOWN else text[:_SHOWN] + "…"
        for name, value in attributes_of(event).items()
        if name not in _DULL and value not in ("", None)
    }
    return Row(event["eventId"], _to_iso(event["eventTimestamp"]), event["eventType"], name_of(event), attributes)


def _to_iso(time: float) -> str:
    return dt.datetime.fromtimestamp(time, dt.UTC).isoformat()


async def workflows(visit: Visit) -> Response:
    """Show the newest runs that match the filter in the address."""
    status = visit.field("status")
    status = status if status in STATUSES else ""
    query: dict[str, Any] = {"type": visit.field("type"), "id": visit.field("id"), "limit": ROWS}
    query |= {status: True} if status in {"open", "overdue", "parked", "paused"} else {"status": status}
    is_filtered = bool(status or query["type"] or query["id"])
    cursor = visit.field("cursor")
    listed, parked, types = await asyncio.gather(
        visit.calls.get(Items[RunInfo], LIST, query={**query, "cursor": cursor}),
        _parked(visit, is_shown=not is_filtered and not cursor),
        _types(visit),
    )
    return visit.render(
        "workflows.html",
        listed=listed,
        rows=ROWS,
        status=status,
        statuses=STATUSES,
        is_filtered=is_filtered,
        parked=parked,
        start=None if types is None else START.suggesting("function", types),
        version="" if is_filtered or cursor or visit.missing else version_of(listed.items, parked),
    )


async def _parked(visit: Visit, *, is_shown: bool) -> list[RunInfo]:
    """Return the newest runs that need somebody, if they are shown."""
    if not is_shown:
        return []
    query = {"parked": True, "limit": MOST_PARKED}
    listed = await visit.optional(visit.calls.get(Items[RunInfo], LIST, query=query), "parked")
    return [] if isinstance(listed, Problem) else listed.items


async def _types(visit: Visit) -> list[str] | None:
    """Return the names of workflows that can be started; None if the viewer may start none."""
    if not visit.offers(START):
        return None
    listed = await visit.optional(visit.calls.get_all(Items[VersionInfo], f"{N}/workflow-types"), "types")
    return [] if isinstance(listed, Problem) else sorted({one.type for one in listed.items})[:MOST_TYPES]


class Part(NamedTuple):
    """The events in the drawing that the address asks for."""

    first: int | None
    """The number of an event, as the next one; None: not given."""
    last: int | None

    @property
    def query(self) -> dict[str, Any]:
        """The query of the call that reads them, with the attempts of activities."""
        if self.first is None:
            return {"native": True, "reverse": True, "limit": DRAWN, "cursor": self.last}
        limit = DRAWN if self.last is None else min(self.last - self.first + 1, DRAWN)
        return {"native": True, "cursor": self.first, "limit": limit}


def _part(visit: Visit) -> Part:
    first, last = (_number_of_event(visit.field(name)) for name in ("first", "last"))
    if first is not None and last is not None and last < first:
        raise FormError(f"The drawing cannot end with event {last}, before event {first}.")
    return Part(first, last)


def _number_of_event(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text[:_DIGITS]) > 0 and len(text) <= _DIGITS):
        raise FormError(f"{text[:40]!r} is not the number of an event.")
    return int(text)


def payload_of(event: Mapping[str, Any] | None, name: str) -> Text | None:
    """Return the arguments or the result in an event; None if it has none, or if the viewer may not see it."""
    value = None if event is None else attributes_of(dict(event)).get(name)
    return as_text(value.encode()) if isinstance(value, str) and value else None


async def _edge(visit: Visit, events: Sequence[Mapping[str, Any]], number: int) -> Mapping[str, Any] | None:
    """Return the event of a run with a number: one of those that the page has, or it is read."""
    found = next((one for one in events if one["eventId"] == number), None)
    if found is not None or not number:
        return found
    query = {"cursor": number, "limit": 1}
    call = visit.calls.get(Items[dict[str, Any]], f"{RUN}/history", dict(visit.parameters), query=query)
    read = await visit.optional(call, "edge")
    return None if isinstance(read, Problem) or not read.items else read.items[0]


async def workflow(visit: Visit) -> Response:
    """Show a run."""
    calls, key = visit.calls, dict(visit.parameters)
    part = _part(visit)
    table = {"reverse": True, "limit": EVENTS, "cursor": visit.field("cursor")}
    shown, recent, listed = await asyncio.gather(
        calls.get(RunDetails, RUN, key),
        visit.optional(calls.get(Items[dict[str, Any]], f"{RUN}/history", key, query=part.query), "drawing"),
        visit.optional(calls.get(Items[dict[str, Any]], f"{RUN}/history", key, query=table), "events"),
    )
    others = [one for one in dict.fromkeys((shown.handle, shown.id)) if one and one != shown.run]
    acts = await acts_on(visit, shown.run, *others)
    is_open = shown.closed_at is None
    drawn, numbers = None, None
    if not isinstance(recent, Problem) and recent.items:
        events = recent.items if part.first is not None else recent.items[::-1]
        numbers = events[0]["eventId"], events[-1]["eventId"]
        drawn = history(events, visit.now, is_open=is_open and numbers[1] >= shown.events)
    on_page = [one for answer in (recent, listed) if not isinstance(answer, Problem) for one in answer.items]
    begin, end, published = await asyncio.gather(
        _edge(visit, on_page, min(shown.events, 1)),
        _edge(visit, on_page, 0 if is_open else shown.events),
        published_of(visit, shown.type, shown.handle),
    )
    given = payload_of(begin, "input")
    signal = SIGNAL if not shown.receives else SIGNAL.suggesting("name", shown.receives, "the code waits for it")
    another = replace(START, label="Start another run")
    begun = shown.started_at is not None
    pausing = [*([RESUME] if shown.paused else []), *([PAUSE] if begun else [])]
    fitting = [*([UNPARK] if shown.parked else []), *([signal, *pausing, CANCEL, TERMINATE] if is_open else [another])]
    values = {
        SIGNAL.key: {"name": shown.receives[0] if shown.receives else ""},
        START.key: {"function": shown.type, "args": given.text if given and given.is_editable else ""},
    }
    return visit.render(
        "workflow.html",
        run=shown,
        given=given,
        result=payload_of(end, "result"),
        sees_data=visit.may(Permission.PAYLOADS, shown.type),
        values=values,
        published=published,
        retry=run_not_retried("this", shown.type.encode()) if shown.status in UNRETRIED else "",
        actions=[one for one in fitting if visit.offers(one, shown.type)],
        difference=difference(shown.parked) if shown.parked else None,
        drawing=drawn,
        numbers=numbers,
        drawn=DRAWN,
        to_iso=_to_iso,
        events=[] if isinstance(listed, Problem) else [row_of(one) for one in listed.items],
        older=None if isinstance(listed, Problem) else listed.next,
        acts=acts,
        others=others,
        version=version_of([shown]),
    )


PAGES: Final = (
    Page(path="/workflows", handler=workflows, menu="Workflows", needs="workflows"),
    Page(path="/workflows/{key}", handler=workflow),
)
