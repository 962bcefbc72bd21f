"""The pages on which a schedule is made or changed: its form, and its next times before it is saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.schedules import CLOCK_NOTES, Previewed, ScheduleDetails
from mainspring.faces.dashboard import schedule_form
from mainspring.faces.dashboard.calls import RefusedError
from mainspring.faces.dashboard.pages.schedules import SCHEDULE, SCHEDULES
from mainspring.faces.dashboard.registry import Page
from mainspring.faces.dashboard.schedule_form import DEFAULTS, EXAMPLE, FIELDS, JOB, NAME, TIMING
from mainspring.faces.dashboard.shell import curl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.faces.dashboard.calls import Problem
    from mainspring.faces.dashboard.visit import Response, Visit

PREVIEW: Final = f"{SCHEDULES}/preview"
COUNT: Final = 10
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
        given = {"name": self.name, **self.body, "count": COUNT}
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
        return _page(
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


def _page(
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


async def new(visit: Visit) -> Response:
    """Show the form of a new schedule; the query may fill its fields."""
    given = {one.name: visit.field(one.name) for one in (NAME, *FIELDS) if visit.field(one.name)}
    return _page(visit, DEFAULTS | given, None)


async def edit(visit: Visit) -> Response:
    """Show the form of a stored schedule."""
    stored = await _stored(visit)
    return _page(visit, schedule_form.form_of(stored), stored, version=stored.revision)


async def send(visit: Visit, form: Mapping[str, str]) -> Response:
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


PAGES: Final = (
    Page(path="/schedules/new", handler=new, post=send),
    Page(path="/schedules/{name}/edit", handler=edit, post=send),
)
