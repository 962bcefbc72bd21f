"""The pages of schedules: their list with its day, a schedule with its times, and the forms that make or change one.

A form shows the next times of a schedule before it is saved.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.operations import Backfill
from mainspring.api.schedules import (
    CLOCK_NOTES,
    AdoptSchedule,
    FireInfo,
    PauseSchedule,
    Previewed,
    RemoveSchedule,
    ResumeSchedule,
    ScheduleDetails,
    ScheduleInfo,
    Timeline,
    Times,
    TriggerSchedule,
)
from mainspring.api.versions import SCHEDULES_SHOWN, due_key, version_of
from mainspring.faces.dashboard import schedule_form, words
from mainspring.faces.dashboard.actions import Field, FormError, act, declared, read_field
from mainspring.faces.dashboard.calls import Items, Problem, RefusedError
from mainspring.faces.dashboard.drawings.schedules import OCCASIONS, QUARTER, day, family, kind_of_family_cell
from mainspring.faces.dashboard.pages.access import acts_on
from mainspring.faces.dashboard.rendering import curl, known_zone
from mainspring.faces.dashboard.schedule_form import DEFAULTS, EXAMPLE, FIELDS, JOB, NAME, OVERLAPS, TIMING
from mainspring.faces.dashboard.visit import Page
from mainspring.faces.web.exchange import N

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.faces.dashboard.calls import Answer
    from mainspring.faces.dashboard.drawings.schedules import DayCell
    from mainspring.faces.dashboard.visit import Response, Visit

ROWS: Final = SCHEDULES_SHOWN
STATES: Final = ("active", "paused", "finished", "set_aside")
MOST_RELATIVES: Final = 5
MOST_PAST: Final = 100
"""Past times that run without another number in the form."""
DAY: Final = 86_400.0
"""Seconds."""
SPAN: Final = ("since", "until")
"""Fields of a query for the first fire time, and for that which is too late."""
SCHEDULES: Final = f"{N}/schedules"
SCHEDULE: Final = f"{SCHEDULES}/{{name}}"


def _to_operation(visit: Visit, _parameters: Mapping[str, str], answer: Answer) -> str:
    return visit.url("/operations/{id}", id=msgspec.json.decode(answer.body)["id"])


async def _in_words(visit: Visit, parameters: Mapping[str, str]) -> str:
    shown = await visit.calls.get(ScheduleDetails, SCHEDULE, parameters)
    return f"{shown.state}, {shown.when}"


TRIGGER: Final = act(
    TriggerSchedule,
    label="Run now",
    done="The schedule was fired now.",
    outcomes={
        "waiting": "The schedule runs when its earlier run has ended.",
        "joined": "A job with the same unique was live, and counts for this time: no other one was submitted.",
        "skipped": "The schedule was not fired: an earlier run goes on, and the schedule skips the times until it has ended.",
    },
)
PAUSE: Final = act(
    PauseSchedule,
    label="Pause",
    done="The schedule skips its times until it is resumed. A running job goes on.",
)
RESUME: Final = act(
    ResumeSchedule,
    label="Resume",
    done="The schedule runs again. Times during the pause stay skipped.",
)
BACKFILL: Final = act(
    Backfill,
    label="Run past times",
    done="This operation runs the past times that have not run, each once.",
    needs="operations",
    fields=("from_", "to", "max", "reason"),
    correctable=frozenset({400, 403, 409, 422}),
    then=_to_operation,
)
ADOPT: Final = act(
    AdoptSchedule,
    label="Give to an App",
    done="The schedule belongs to the code of the App now: its next declaration keeps, changes or removes the schedule.",
    fields=(
        declared(
            AdoptSchedule,
            "app",
            longest=256,
            hint="its workers apply what its code declares within 20 seconds, and remove a schedule that the code does not have",
        ),
    ),
)
REMOVE: Final = act(
    RemoveSchedule,
    label="Remove",
    done="The schedule was removed. Its history stays.",
    current=_in_words,
    warning="If code declares the schedule, the next worker of that code adds it again.",
    then=lambda visit, _, __: visit.url("/schedules"),
)
ACTIONS: Final = (TRIGGER, PAUSE, RESUME, BACKFILL, ADOPT, REMOVE)


async def schedules(visit: Visit) -> Response:
    """Show schedules and their day."""
    zone = visit.settings.timezone
    today = dt.datetime.fromtimestamp(visit.now, zone).date()
    shown = _date(visit.field("day")) or today
    before, after = shown - dt.timedelta(days=1), shown + dt.timedelta(days=1)
    begin, end = (dt.datetime.combine(one, dt.time(), zone) for one in (shown, after))
    listed = await visit.calls.get_all(Items[ScheduleInfo], SCHEDULES)
    state = visit.field("state") if visit.field("state") in STATES else ""
    part = visit.field("name").casefold()
    found = [one for one in listed.items if part in one.name.casefold() and state in {"", one.state}]
    rows, following = _page_of(found, visit.field("cursor"))
    is_part = bool(state or part or visit.field("cursor"))
    timeline, outcomes = await asyncio.gather(
        visit.optional(_timeline(visit, rows, begin, end), "day"),
        visit.optional(_outcomes(visit, rows), "outcomes"),
    )
    drawn, left_out = None, 0
    if not isinstance(timeline, Problem):
        drawn = day(timeline, visit.now, zone)
        left_out = len(rows) - len(timeline.items) if timeline.next else 0

    def to_fires(name: str, cell: DayCell) -> str:
        """Return the address of the fire times of a cell; of those to come, the page of the schedule has the next ones."""
        query = dict(zip(SPAN, cell.span, strict=True)) if cell.span else None
        return visit.url("/schedules/{name}", query, name=name)

    return visit.render(
        "schedules.html",
        kind_of=kind_of_family_cell,
        number=len(listed.items),
        found=len(found),
        schedules=rows,
        following=following,
        outcomes={} if isinstance(outcomes, Problem) else outcomes,
        state=state,
        states=STATES,
        is_filtered=bool(state or part),
        drawing=drawn,
        day=shown,
        is_today=shown == today,
        before=before,
        after=after,
        left_out=left_out,
        to_fires=to_fires,
        version=""
        if is_part or isinstance(outcomes, Problem)
        else version_of(rows, outcomes.values(), number=len(listed.items)),
    )


def _page_of(found: list[ScheduleInfo], cursor: str) -> tuple[list[ScheduleInfo], str | None]:
    """Return the schedules of a page, those that are due next first, and the cursor of the next page.

    A cursor is the key of the last schedule: one that fires meanwhile moves, and the others keep their places.
    """
    rows = sorted(found, key=due_key)
    rest = [one for one in rows if due_key(one) > cursor] if cursor else rows
    return rest[:ROWS], due_key(rest[ROWS - 1]) if len(rest) > ROWS else None


async def _timeline(visit: Visit, rows: list[ScheduleInfo], begin: dt.datetime, end: dt.datetime) -> Timeline:
    """Return the day of the schedules of a list."""
    since, until = begin.isoformat(), end.isoformat()
    if not rows:
        return Timeline([], since=since, until=until, step=QUARTER)
    query = {"since": since, "until": until, "step": QUARTER, "limit": ROWS, "schedules": [one.name for one in rows]}
    return await visit.calls.get(Timeline, f"{N}/fires/timeline", query=query)


async def _outcomes(visit: Visit, rows: list[ScheduleInfo]) -> dict[str, FireInfo]:
    """Return the last outcome of each schedule of a list that has one."""
    if not rows:
        return {}
    query = {"schedules": [one.name for one in rows]}
    found = await visit.calls.get_all(Items[FireInfo], f"{N}/fires/outcomes", query=query)
    return {run.schedule: run for run in sorted(found.items, key=lambda run: run.schedule)}


async def schedule(visit: Visit) -> Response:
    """Show a schedule."""
    calls, name = visit.calls, dict(visit.parameters)
    span = {one: read_field(Field(name=one, label=one, kind="time"), visit.field(one)) for one in SPAN}
    shown, upcoming, fires, everything, acts = await asyncio.gather(
        calls.get(ScheduleDetails, SCHEDULE, name),
        visit.optional(calls.get(Times, f"{SCHEDULE}/next", name), "next"),
        visit.optional(
            calls.get(
                Items[FireInfo],
                f"{N}/fires",
                query={"schedule": name["name"], "limit": OCCASIONS, "cursor": visit.field("cursor"), **span},
            ),
            "fires",
        ),
        visit.optional(calls.get_all(Items[ScheduleInfo], SCHEDULES)),
        acts_on(visit, name["name"]),
    )
    runs = [] if isinstance(fires, Problem) else fires.items
    others = [] if isinstance(everything, Problem) else everything.items
    parents = shown.parents[:MOST_RELATIVES]
    children = [one.name for one in others if shown.name in one.parents]
    is_older = bool(visit.field("cursor"))
    relatives = [*parents, *children[:MOST_RELATIVES]]
    of_relatives = await asyncio.gather(
        *(_fires(visit, one, {**span, **_times_of(runs, is_older=is_older)}) for one in relatives)
    )
    runs_of = dict(zip(relatives, of_relatives, strict=True))
    in_order = [*parents, shown.name, *children[:MOST_RELATIVES]]
    zone = known_zone(shown.timezone) or dt.UTC
    is_paused = shown.paused_at is not None
    is_part = is_older or any(span.values())
    apps = sorted({one.app for one in others if one.app and one.app != shown.app})
    adopt = ADOPT.suggesting("app", apps)
    fitting = [TRIGGER, RESUME if is_paused else PAUSE, *([BACKFILL] if not shown.parents else []), adopt, REMOVE]
    values: dict[str, Any] = {
        "upcoming": [] if isinstance(upcoming, Problem) else [one for one in upcoming.times if one],
        "fires": None if isinstance(fires, Problem) else fires,
        "acts": acts,
        "drawing": family({one: runs_of.get(one, runs) for one in in_order}, visit.settings.timezone),
        "children": children,
        "left_out": len(shown.parents) + len(children) - len(relatives),
        "names": {one.name for one in others},
        "last": None if is_older else next((run for run in runs if run.finished or run.outcome), None),
        "version": "" if is_part or isinstance(fires, Problem) else version_of([shown], fires.items),
        "clock": lambda time: _on_clock(time, zone, visit.settings.timezone),
    }
    return visit.render(
        "schedule.html",
        schedule=shown,
        actions=[one for one in fitting if visit.offers(one, shown.function)],
        may_edit=visit.may(Permission.DEVELOP, shown.function),
        kind_of=kind_of_family_cell,
        overlaps=dict(OVERLAPS),
        occasions=OCCASIONS,
        filled={BACKFILL.key: {"from": words.hour(visit.now - DAY), "max": str(MOST_PAST)}},
        span=list(span.values()),
        **values,
    )


def _times_of(runs: list[FireInfo], *, is_older: bool) -> dict[str, str]:
    """Return the span of some fires, for those of relatives; that of the newest fires has no end."""
    times = [dt.datetime.fromisoformat(run.fire_time) for run in runs if run.fire_time]
    if not times:
        return {}
    found = {"since": min(times).isoformat()}
    return found | {"until": (max(times) + dt.timedelta(microseconds=1)).isoformat()} if is_older else found


async def _fires(visit: Visit, name: str, span: Mapping[str, Any]) -> list[FireInfo]:
    listed = await visit.optional(
        visit.calls.get(Items[FireInfo], f"{N}/fires", query={"schedule": name, "limit": OCCASIONS, **span})
    )
    return [] if isinstance(listed, Problem) else listed.items


def _on_clock(text: str, zone: dt.tzinfo, other: dt.tzinfo) -> str:
    """Return a time of the API on the clock of a zone; empty if the other clock shows the same."""
    time = dt.datetime.fromisoformat(text)
    is_same = time.astimezone(zone).utcoffset() == time.astimezone(other).utcoffset()
    return "" if is_same else words.absolute(time, zone)


def _date(text: str) -> dt.date | None:
    if not text:
        return None
    try:
        date = dt.date.fromisoformat(text)
    except ValueError:
        raise FormError(f"{text[:40]!r} is no day such as 2030-01-31.") from None
    if not dt.MINYEAR + 1 < date.year < dt.MAXYEAR:  # the days beside it, and zones, need room
        raise FormError(f"{text[:40]!r} is too far away.")
    return date


PAGES: Final = (
    Page(path="/schedules", handler=schedules, menu="Schedules"),
    Page(path="/schedules/{name}", handler=schedule),
)

PREVIEW: Final = f"{SCHEDULES}/preview"
PREVIEWED_TIMES: Final = 10
_CHANGED: Final = 412


class _Form:
    """A form that was sent: a new schedule, or a change of a stored one."""

    def __init__(self, visit: Visit, form: Mapping[str, str], stored: ScheduleDetails | None) -> None:
        self.visit = visit
        self.form = form
        self.stored = stored
        self.name = form.get("name", "").strip() if stored is None else stored.name
        self.version = form.get("version", "")
        self.values, self.faults = schedule_form.read(form)
        if not self.name:
            self.faults["name"] = "Name is missing: fill it in"
        if stored is not None and not self.faults:
            self.values = schedule_form.changes(stored, self.values)

    @property
    def body(self) -> dict[str, Any]:
        return schedule_form.body(self.values, self.stored)

    async def preview(self) -> Previewed:
        given = {"name": self.name, **self.body, "count": PREVIEWED_TIMES}
        answer = await self.visit.calls.send("POST", PREVIEW, body=given)
        return msgspec.json.decode(answer.body, type=Previewed)

    async def save(self) -> None:
        if self.stored is None:
            await self.visit.calls.send("POST", SCHEDULES, body={"name": self.name, **self.body})
        elif self.values:
            headers = {b"if-match": f'"{self.version}"'.encode("latin-1", "replace")}
            await self.visit.calls.send("PATCH", SCHEDULE, {"name": self.name}, body=self.body, headers=headers)

    def refused(self, problem: Problem) -> None:
        """Note the fields that a refusal is about."""
        found = problem.fields
        if not found:
            found = {schedule_form.field_in(problem.detail, self.name, self.values): problem.detail}
        names = {NAME.name, *(one.name for one in FIELDS)}
        self.faults |= {name: text for name, text in found.items() if name in names}
        if problem.status == _CHANGED and self.stored is not None:
            self.version = self.stored.revision  # the page shows what was saved meanwhile

    def shown(self, problem: Problem | None = None, previewed: Previewed | None = None) -> Response:
        """Return the page with what was typed."""
        code = problem.status if problem is not None else 422 if self.faults else 200
        differing: dict[str, str] = {}
        if problem is not None and problem.status == _CHANGED and self.stored is not None:
            saved = schedule_form.form_of(self.stored)
            differing = {one.label: saved.get(one.name, "") for one in FIELDS if one.name in self.values}
        return _form_page(
            self.visit,
            self.form,
            self.stored,
            code=code,
            version=self.version,
            values={} if self.faults else self.values,
            faults=self.faults,
            problem=problem,
            previewed=previewed,
            differing=differing,
        )


def _form_page(
    visit: Visit,
    form: Mapping[str, str],
    stored: ScheduleDetails | None,
    *,
    code: int = 200,
    version: str = "",
    values: Mapping[str, Any] | None = None,
    **shown: Any,
) -> Response:
    name = form.get("name", "").strip() if stored is None else stored.name
    given = values or (EXAMPLE if stored is None else schedule_form.timing(stored))
    if stored is None:
        method, address = "POST", visit.api_address(SCHEDULES)
        sent = {"name": name or "NAME", **schedule_form.body(given)}
    else:
        method, address = "PATCH", visit.api_address(SCHEDULE, {"name": name})
        sent = schedule_form.body(given, stored)
    function = form.get("function", "").strip() or name or None if stored is None else stored.function
    defaults: dict[str, Any] = {"faults": {}, "problem": None, "previewed": None, "differing": {}}
    return visit.render(
        "schedule_form.html",
        code=code,
        stored=stored,
        form=form,
        revision=version,
        groups=(("When it runs", TIMING), ("The job", JOB)),
        name_field=NAME,
        may_save=visit.may(Permission.DEVELOP, function),
        sees_payload=visit.may(Permission.PAYLOADS, function),
        command=schedule_form.command(visit.namespace, "add" if stored is None else "edit", name or "NAME", given),
        curl=curl(method, address, sent, f'"{version}"' if version else ""),
        clock_notes=CLOCK_NOTES,
        **(defaults | shown),
    )


async def _stored(visit: Visit) -> ScheduleDetails:
    return await visit.calls.get(ScheduleDetails, SCHEDULE, visit.parameters)


async def new_schedule(visit: Visit) -> Response:
    """Show the form of a new schedule; the query may fill its fields."""
    given = {one.name: visit.field(one.name) for one in (NAME, *FIELDS) if visit.field(one.name)}
    return _form_page(visit, DEFAULTS | given, None)


async def edit_schedule(visit: Visit) -> Response:
    """Show the form of a stored schedule."""
    stored = await _stored(visit)
    return _form_page(visit, schedule_form.form_of(stored), stored, version=stored.revision)


async def send_schedule(visit: Visit, form: Mapping[str, str]) -> Response:
    """Preview or save what was typed. A refusal is shown with it."""
    sent = _Form(visit, form, await _stored(visit) if visit.parameters else None)
    if sent.faults:
        return sent.shown()
    try:
        if form.get("do") == "save":
            await sent.save()
            return visit.redirect(visit.url("/schedules/{name}", name=sent.name))
        return sent.shown(previewed=await sent.preview())
    except RefusedError as refused:
        sent.refused(refused.problem)
        return sent.shown(refused.problem)


FORM_PAGES: Final = (
    Page(path="/schedules/new", handler=new_schedule, post=send_schedule),
    Page(path="/schedules/{name}/edit", handler=edit_schedule, post=send_schedule),
)
