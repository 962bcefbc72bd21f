"""Operations on many jobs: what would change, the confirmation, the progress, and the results."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.api.operations import AbortOperation, OperationDetails, OperationInfo, StartedOperation, TouchedJob
from mainspring.faces.dashboard import words
from mainspring.faces.dashboard.actions import (
    EXAMPLES,
    REASON,
    Field,
    FormError,
    Further,
    act,
    json_of,
    read_field,
)
from mainspring.faces.dashboard.calls import NONE, Items, Problem, RefusedError
from mainspring.faces.dashboard.pages.jobs import FILTERS
from mainspring.faces.dashboard.rendering import command_line, curl
from mainspring.faces.dashboard.visit import NAMESPACE, Page
from mainspring.faces.web.exchange import N

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.faces.dashboard.visit import Response, Visit

ROWS: Final = 50
OPERATIONS: Final = f"{N}/operations"
OPERATION: Final = f"{OPERATIONS}/{{id}}"
NAMES: Final = ("retry", "cancel", "delete", "reschedule")
HOUR: Final = 3600.0
"""Seconds."""
TYPED: Final = 100
"""From so many jobs on, the viewer types their number."""
RATE: Final = Field(
    name="rate", label="At most so many a second", kind="number", option="--rate", hint="empty: no limit"
)
RUN_AT: Final = Field(name="run_at", label="New time", kind="time", required=True)
_OPTIONS: Final = {
    "state": "--state",
    "function": "--function",
    "unique": "--unique",
    "key": "--key",
    "schedule": "--schedule",
    "workflow": "--workflow",
    "error_type": "--error",
    "tag": "--tag",
    "created_from": "--created-after",
    "created_to": "--created-before",
}
"""The options of the command for the criteria."""

ABORT: Final = act(
    AbortOperation,
    label="Abort",
    done="The operation ends. Jobs that it has changed stay changed.",
    outcomes={"done": "The operation had ended before: nothing was aborted."},
    needs="operations",
    fields=("reason",),
    warning="Jobs that had their turn stay changed; the others stay as they are.",
)
ACTIONS: Final = (ABORT,)
_CORRECTABLE: Final = frozenset({409, 422})
"""Statuses of calls that other values, or a new count, may correct."""


class Fault(NamedTuple):
    """The reason why an operation was not started."""

    text: str
    field: str
    """Empty: it is about all of it."""
    status: int


async def operations(visit: Visit) -> Response:
    """Show all operations, newest first."""
    query = {"cursor": visit.field("cursor"), "limit": ROWS}
    listed = await visit.calls.get(Items[OperationInfo], OPERATIONS, query=query)
    return visit.render("operations.html", listed=listed, rows=ROWS)


async def operation(visit: Visit) -> Response:
    """Show an operation with its jobs."""
    parameters = dict(visit.parameters)
    shown, touched = await asyncio.gather(
        visit.calls.get(OperationDetails, OPERATION, parameters),
        visit.optional(
            visit.calls.get(
                Items[TouchedJob], f"{OPERATION}/jobs", parameters, query={"cursor": visit.field("cursor")}
            ),
            "jobs",
        ),
    )
    actions = [ABORT] if shown.state == "running" and _may_abort(visit, shown) else []
    criteria = {} if shown.filter is None else msgspec.to_builtins(shown.filter)
    return visit.render(
        "operation.html",
        operation=shown,
        criteria=criteria,
        touched=None if isinstance(touched, Problem) else touched,
        actions=actions,
    )


def _may_abort(visit: Visit, shown: OperationDetails) -> bool:
    """Return whether to show the button: for the viewer's own operations, and for those on functions that it operates."""
    if shown.created_by == visit.identity.name:
        return visit.offers(ABORT)
    function = None if shown.filter is None else shown.filter.function
    if function is None:
        return visit.offers(replace(ABORT, of_all_functions=True))
    return visit.offers(ABORT, function)


async def new(visit: Visit) -> Response:
    """Show how many jobs an operation would change, with examples, and ask for a confirmation."""
    name = visit.field("action")
    if not visit.query.keys() - {NAMESPACE}:
        return visit.redirect(visit.url("/operations"))
    if name not in NAMES:
        raise FormError(f"There is no action {name[:40]!r}: choose one of {', '.join(NAMES)}.")
    subject = _subject(visit.fields("handle"), _criteria({one: visit.fields(one) for one in _OPTIONS}))
    return await _confirmation(visit, name, subject)


async def _confirmation(
    visit: Visit, name: str, subject: Mapping[str, Any], form: Mapping[str, str] = NONE, fault: Fault | None = None
) -> Response:
    """Count the jobs and show the form. A refused ``form`` is shown again, with its ``fault``."""
    fields = _fields(name)
    if name == "reschedule":
        form = {RUN_AT.name: words.hour(visit.now + 2 * HOUR), **form}
    typed = _typed(fields, form)
    # A reschedule needs a time: any does for the count.
    time = {RUN_AT.name: typed.get(RUN_AT.name, EXAMPLES["time"])} if name == "reschedule" else {}
    answer = await visit.calls.send("POST", OPERATIONS, body={"action": name, **subject, **time, "dry_run": True})
    started = msgspec.json.decode(answer.body, type=StartedOperation)
    criteria: dict[str, Any] = subject.get("filter", {})
    handles: list[str] = subject.get("handles", [])
    body = {"action": name, **subject, **time, **typed} | ({} if started.at_least else {"expect": started.matched})
    return visit.render(
        "new_operation.html",
        code=200 if fault is None else fault.status,
        name=name,
        started=started,
        subject=msgspec.json.encode(subject).decode(),
        criteria=criteria,
        handles=handles,
        fields=fields,
        typed=Field(name="typed", label=f"Type {started.matched} to confirm", required=True)
        if started.matched >= TYPED
        else None,
        form=form,
        fault=fault,
        faults={} if fault is None else {fault.field: fault.text},
        command=_command(visit, name, handles, criteria, started, typed),
        curl=curl("POST", visit.api_address(OPERATIONS), body),
        further=_further(name, fields, typed),
    )


def _typed(fields: list[Field], form: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a refused form that can be read."""
    found: dict[str, Any] = {}
    for one in fields:
        with contextlib.suppress(FormError):
            found[one.name] = read_field(one, form.get(one.name, ""))
    return {name: value for name, value in found.items() if value is not None}


def _further(name: str, fields: list[Field], typed: Mapping[str, Any]) -> Further:
    empty = [one for one in fields if one.name not in typed and not one.required]
    return Further([] if name == "reschedule" else [one.option for one in empty], [one.name for one in empty])


async def start(visit: Visit, form: Mapping[str, str]) -> Response:
    """Start an operation that its viewer has confirmed."""
    name = form.get("action", "")
    given = json_of("The choice of jobs", form.get("subject", ""))
    if not isinstance(given, dict):
        raise FormError("The form is incomplete: go back to the jobs and choose them again.")
    subject: dict[str, Any] = {one: given[one] for one in given if one in {"filter", "handles"}}
    try:
        body = {"action": name, **subject, **_values(name, form)}
        answer = await visit.calls.send("POST", OPERATIONS, body=body)
    except FormError as error:
        return await _confirmation(visit, name, subject, form, Fault(str(error), error.field, 422))
    except RefusedError as refused:
        if refused.status not in _CORRECTABLE:
            raise
        field = next(iter(refused.problem.fields), "")
        fault = Fault(refused.problem.detail, field, refused.status)
        return await _confirmation(visit, name, subject, form, fault)
    started = msgspec.json.decode(answer.body, type=StartedOperation)
    return visit.redirect(visit.url("/operations/{id}", id=started.id or ""))


def _values(name: str, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a confirmation. Raises FormError."""
    matched = form.get("matched", "")
    is_count = matched.isascii() and matched.isdigit()
    count = int(matched) if is_count else 0
    if count >= TYPED and form.get("typed", "").strip() != matched:
        raise FormError(f"To change {matched} jobs, type their number, {matched}.", "typed")
    found = {one.name: read_field(one, form.get(one.name, "")) for one in _fields(name)}
    # A count that has not come to the end expects nothing: the operation would stop there.
    found["expect"] = count if is_count and not form.get("at_least") else None
    return {one: value for one, value in found.items() if value is not None}


def _fields(name: str) -> list[Field]:
    return [*([RUN_AT] if name == "reschedule" else []), REASON, RATE]


def _criteria(query: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the filter of a query."""
    filters = {one.name: one for one in FILTERS}
    found: dict[str, Any] = {}
    for name, values in query.items():
        if values:
            found[name] = values if name == "state" else read_field(filters[name], values[0])
    return found


def _subject(handles: list[str], criteria: dict[str, Any]) -> dict[str, Any]:
    if handles:
        return {"handles": handles}
    if not criteria:
        raise FormError("No jobs are chosen: select some, or filter the list first.")
    return {"filter": criteria}


def _command(
    visit: Visit,
    name: str,
    handles: list[str],
    criteria: dict[str, Any],
    started: StartedOperation,
    typed: Mapping[str, Any],
) -> str:
    """Return the command that does the same; empty if there is none: only chosen jobs can be moved by one."""
    if name == "reschedule":
        moved = [("--run-at", typed.get("run_at", EXAMPLES["time"]))]
        return command_line(["jobs", "update"], handles, moved, visit.namespace) if handles else ""
    options: list[tuple[str, str | None]] = [
        (_OPTIONS[one], text)
        for one, value in criteria.items()
        for text in (value if isinstance(value, list) else [value])
    ]
    if not handles and not started.at_least:
        options.append(("--expect", str(started.matched)))
    options += [(one.option, str(typed[one.name])) for one in _fields(name) if one.name in typed]
    return command_line(["jobs", name], handles, options, visit.namespace)


PAGES: Final = (
    Page(path="/operations", handler=operations, menu="Operations", needs="operations"),
    Page(path="/operations/new", handler=new, post=start),
    Page(path="/operations/{id}", handler=operation),
)
