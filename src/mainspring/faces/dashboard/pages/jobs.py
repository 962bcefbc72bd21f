"""The pages of jobs: a list, and one job with its state, what can be done with it, and what is kept of it.

The list has filters, tabs by state, and the way to a job by its handle or its unique.
"""

from __future__ import annotations

import asyncio
from codecs import getincrementaldecoder
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.access.caller import Permission
from mainspring.api import jobs as requests
from mainspring.api.declaration import fields_of
from mainspring.api.jobs import (
    Attempts,
    CancelJob,
    CloneJob,
    DeleteJob,
    JobDetails,
    JobInfo,
    KeptArguments,
    LogLine,
    RetryJob,
)
from mainspring.api.namespaces import NamespaceStatus
from mainspring.api.request import JobCriteria
from mainspring.api.values import PublishedValue, PublishedValues
from mainspring.codecs import described
from mainspring.faces.dashboard.actions import (
    ARGUMENTS,
    JOB,
    PRIORITIES,
    Action,
    Field,
    FormError,
    act,
    declared,
    made_actions,
    read_field,
)
from mainspring.faces.dashboard.calls import NONE, Items, Problem, RefusedError
from mainspring.faces.dashboard.drawings.attempts import lane, notes_of, waits_of
from mainspring.faces.dashboard.pages import fleet
from mainspring.faces.dashboard.pages.access import acts_on
from mainspring.faces.dashboard.visit import Page
from mainspring.faces.web.exchange import N
from mainspring.features import Feature
from mainspring.jobs.rules import run_not_retried

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mainspring.faces.dashboard.calls import Answer
    from mainspring.faces.dashboard.visit import Response, Visit

ROWS: Final = 50
VALUE_SHOWN: Final = 500
"""Characters of a published value on a page."""
SELECTED: Final = "handle"
"""The field of the address for each selected job."""
MOST_SELECTED: Final = 100
"""Jobs of other pages that stay selected: they are in the address, which browsers send twice, once as that of the page before."""
HANDLE: Final = "H:"
"""Handles begin so."""
WORKER: Final = "worker"
FILTERS: Final = tuple(declared(JobCriteria, name, hint="") for name in fields_of(JobCriteria) if name != "state")
"""Fields of the form, and of the address. All that are given must match."""
NAMES: Final = {one.name: one.name for one in FILTERS} | {"state": "state", "error": "error_type"}
"""The fields by their names in the field "Find"."""


WAITING: Final = ("pending", "leased")
"""A job that a node has in its memory, and gives to no worker yet, waits as well."""


class Tab(NamedTuple):
    """A choice of states."""

    text: str
    states: tuple[str, ...]
    number: int | None
    """The number of jobs without any other filter; None: it is not counted."""
    live: str = ""
    """The live number that it is."""


def tabs(status: NamespaceStatus | None) -> list[Tab]:
    """Return all tabs."""
    running, waiting, scheduled, dead = (
        (None, None, None, None)
        if status is None
        else (status.jobs.running, status.jobs.waiting, status.jobs.scheduled, status.dead_letters)
    )
    return [
        Tab("all", (), None),
        Tab("in flight", (*WAITING, "running"), None),
        Tab("failed", ("failed",), dead, "dead_letters"),
        Tab("running", ("running",), running, "running"),
        Tab("waiting", WAITING, waiting, "waiting"),
        Tab("scheduled", ("scheduled",), scheduled, "scheduled"),
        Tab("succeeded", ("succeeded",), None),
        Tab("cancelled", ("cancelled",), None),
        Tab("expired", ("expired",), None),
    ]


async def jobs(visit: Visit) -> Response:
    """Show the newest jobs that match the filter in the address."""
    if text := visit.field("find"):
        return visit.redirect(await _found(visit, text))
    states = visit.fields("state")
    criteria = {one.name: read_field(one, visit.field(one.name)) for one in FILTERS}
    query = {"state": states, **criteria, "limit": ROWS, "cursor": visit.field("cursor")}
    listed, status = await asyncio.gather(
        visit.calls.get(Items[JobInfo], f"{N}/jobs", query=query),
        visit.optional(visit.calls.get(NamespaceStatus, f"{N}/status")),
    )
    is_filtered = bool(states) or any(criteria.values())
    choices = tabs(None if isinstance(status, Problem) else status)
    active = [(one.label, visit.field(one.name)) for one in FILTERS if visit.field(one.name)]
    if all(one.states != tuple(states) for one in choices):
        active.append(("State", " or ".join(states)))
    selected = list(dict.fromkeys(visit.fields(SELECTED)))
    shown = {one.handle for one in listed.items}
    busy = [] if isinstance(status, Problem) else [one.function for one in status.troubled]
    functions = sorted({*busy, *(one.function for one in listed.items)})
    elsewhere = [handle for handle in selected if handle not in shown]
    return visit.render(
        "jobs.html",
        listed=listed,
        rows=ROWS,
        submit=SUBMIT.suggesting("function", functions) if visit.offers(SUBMIT) else None,
        tabs=choices,
        states=tuple(states),
        filters=FILTERS,
        active=active,
        may_change=visit.has("operations") and visit.may(Permission.OPERATE),
        selected=set(selected),
        elsewhere=elsewhere[:MOST_SELECTED],
        here=partial(visit.here, **{SELECTED: None}),  # the script adds the jobs that are selected by then
        unselected=max(len(elsewhere) - MOST_SELECTED, 0),
        is_filtered=is_filtered,
    )


async def _found(visit: Visit, text: str) -> str:
    """Return where a text in the field "Find" leads.

    To a job by its handle or its unique, if one job alone has that; to the workers of a name or id, which show their jobs; or to
    the jobs that match ``name:value`` pairs, with those that are selected. Raises FormError.
    """
    selected = {SELECTED: visit.fields(SELECTED)[: MOST_SELECTED + ROWS]}
    if text.startswith(HANDLE):
        return visit.url("/jobs/{handle}", handle=text)
    pairs = [part.partition(":") for part in text.split()]
    names = {name for name, colon, _ in pairs if colon}
    if WORKER in names and names & NAMES.keys():
        raise FormError(f"Use {WORKER}:NAME alone: it leads to the worker, whose page has its running jobs.")
    if text.startswith(f"{WORKER}:"):
        return await fleet.found(visit, text.removeprefix(f"{WORKER}:").strip())
    if all(name in NAMES and value for name, _, value in pairs):
        query: dict[str, list[str]] = {}
        for name, _, value in pairs:
            query.setdefault(NAMES[name], []).append(value)
        return visit.url("/jobs", query | selected)
    found = await visit.optional(visit.calls.get(Items[JobInfo], f"{N}/jobs", query={"unique": text, "limit": 2}))
    if isinstance(found, Items) and len(found.items) == 1:
        return visit.url("/jobs/{handle}", handle=found.items[0].handle)
    return visit.url("/jobs", {"unique": text} | selected)


PAGES: Final = (Page(path="/jobs", handler=jobs, menu="Jobs"),)

SHOWN: Final = 64 << 10
"""Bytes of arguments or of a result that a page shows; all of them can be downloaded."""
NOT_FOUND: Final = "urn:mainspring:problem:job-not-found"
EDITABLE: Final = 8 << 10
"""Bytes of the arguments that a form shows, on each page of a job, twice."""
SHOWN_DIGITS: Final = 8 << 10
"""Bytes that are shown as digits."""
ONE_LINE: Final = 80
"""Bytes of JSON that need no line breaks."""
MOST_SPREAD: Final = 4
"""Times by which line breaks may make JSON longer."""
LINES: Final = 200
"""Lines of the log."""
LEVELS: Final = ("info", "warning", "error")
"""The lowest levels that a link of the log chooses."""
MOST_CHOICES: Final = 10
"""Attempts, the newest, whose lines have a link."""
WAITING_STATES: Final = frozenset({"pending", "leased", "scheduled"})
ENDED: Final = frozenset({"succeeded", "failed", "cancelled", "expired"})


def _to_new_job(visit: Visit, parameters: Mapping[str, str], answer: Answer) -> str:
    handle = msgspec.json.decode(answer.body)["handle"]
    return visit.url("/jobs/{handle}", handle=handle or parameters.get("handle", ""))


CANCEL: Final = act(
    CancelJob,
    label="Cancel",
    done="The job had already ended, so the cancel has changed nothing.",
    outcomes={
        **{
            state: f"The job had already {state}, so the cancel has changed nothing."
            for state in ("succeeded", "failed", "expired")
        },
        "cancelled": "The job is cancelled.",
        "running": "The worker was asked to stop the job. Until it does, the job runs, and may still succeed.",
    },
    fields=("reason",),
    warning="A cancelled job does not run again unless somebody retries it.",
)
RETRY: Final = act(
    RetryJob,
    label="Retry",
    done="The job waits for a worker again.",
    fields=(
        "delay",
        declared(RetryJob, "args", hint="JSON; unchanged or empty: as before", permission=Permission.DEVELOP),
    ),
)
CLONE: Final = act(
    CloneJob,
    label="Run again as a new job",
    done="This is the new job.",
    fields=(declared(CloneJob, "args", hint="JSON; unchanged or empty: the same"), "priority", "delay"),
    then=_to_new_job,
)
DELETE: Final = act(
    DeleteJob,
    label="Delete",
    done="The job was deleted.",
    needs="job_changes",
    warning="Nothing is kept of a deleted job.",
    then=lambda visit, _, __: visit.url("/jobs"),
)
SUBMIT: Final = Action(
    operation="jobs_submit",
    label="Submit a job",
    done="This is the new job.",
    outcomes={"True": "A job with this unique had not ended, so that this one joined it: this is it."},
    outcome_key="joined",
    path=f"{N}/jobs",
    permission=Permission.DEVELOP,
    fields=(
        Field(name="function", label="Function", required=True, longest=512),
        Field(name="args", label="Arguments", kind="json", hint=ARGUMENTS),
        Field(name="unique", label="Unique", option="--unique", longest=512, hint="empty: none"),
        Field(name="priority", label="Priority", kind="choice", option="--priority", choices=PRIORITIES),
        Field(name="delay", label="Seconds until it is due", kind="seconds", option="--delay", hint="empty: at once"),
    ),
    command="submit {function} {args} --background",
    then=_to_new_job,
)
DECLARED: Final = made_actions(requests)
JOB_ACTIONS: Final = (SUBMIT, CANCEL, RETRY, CLONE, DELETE, *(one.action for one in DECLARED))


class Text(NamedTuple):
    """Bytes of a user as text."""

    text: str
    kind: str
    """``JSON``, ``text`` or ``hex``; ``encoded``: the text only describes them."""
    size: int
    is_cut: bool

    @property
    def is_editable(self) -> bool:
        """Whether a form has room for it, so that its users can change it."""
        return self.kind == "JSON" and self.size <= EDITABLE


def as_text(data: bytes) -> Text:
    """Return bytes as JSON, with line breaks if it is long, else as text, else as hexadecimal digits; at most `SHOWN` of them."""
    if encoded := described(data):
        return Text(encoded, "encoded", len(data), is_cut=False)
    shown = data[:SHOWN]
    is_cut = len(data) > SHOWN
    try:
        if not is_cut:
            spread = msgspec.json.format(data, indent=0 if len(data) <= ONE_LINE else 2)
            best = (
                spread if len(spread) <= max(MOST_SPREAD * len(data), SHOWN // 8) else data
            )  # deep lists are mostly spaces
            return Text(best.decode(), "JSON", len(data), is_cut=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        text = getincrementaldecoder("utf-8")().decode(shown, final=not is_cut)  # the cut may be within a character
    except UnicodeDecodeError:
        return Text(shown[:SHOWN_DIGITS].hex(" "), "hex", len(data), is_cut=len(data) > SHOWN_DIGITS)
    return Text(text, "text", len(data), is_cut)


def text_of_arguments(arguments: KeptArguments) -> Text | None:
    """Return the arguments as text; None if the answer lacks them."""
    if arguments.encoded is not msgspec.UNSET:
        return Text(arguments.encoded, "encoded", arguments.size, is_cut=False)
    if arguments.value is not msgspec.UNSET:
        shown = as_text(msgspec.json.encode(arguments.value))
        return shown._replace(size=arguments.size)
    if arguments.payload is not msgspec.UNSET:
        return as_text(arguments.payload)
    return None


def editable(arguments: KeptArguments | Problem | None) -> dict[str, str]:
    """Return the value of the field for arguments: those of the job, if they are JSON, whole, and not too large for a form."""
    text = text_of_arguments(arguments) if isinstance(arguments, KeptArguments) and not arguments.redacted else None
    return {"args": text.text} if text is not None and text.is_editable else {}


def absence_of(arguments: KeptArguments) -> str:
    """Return why an answer lacks the arguments: there were ``none``, or they are ``gone``, ``withheld`` or ``large``."""
    if not arguments.size:
        return "none"
    if not arguments.kept:
        return "gone"
    return "withheld" if arguments.redacted else "large"


def actions_of(visit: Visit, job: JobDetails) -> list[Action]:
    """Return the actions that make sense in the job's state and that its viewer may do."""
    fitting: list[Action] = []
    if job.state not in ENDED:
        fitting.append(CANCEL)
    fitting += [one.action for one in DECLARED if one.fits(job.state)]
    is_run = job.run == job.handle  # it ends once, and stays as long as its history
    if job.state in ENDED - {"succeeded"} and not is_run:
        fitting.append(RETRY)
    if not is_run:  # the page of the run starts another one
        fitting.append(CLONE)
    if job.state in ENDED and not is_run:
        fitting.append(DELETE)
    may = partial(visit.may, function=job.function)
    return [one.permitted(may, NONE) for one in fitting if visit.offers(one, job.function)]


class Line(NamedTuple):
    """A line of the log, and what stands above it."""

    line: LogLine
    missed: int
    """Lines before it that are not kept."""
    attempt: int | None
    """The number of its attempt, if another attempt wrote the line before; None also if the log has the first attempt alone."""


def lines_of(log: Sequence[LogLine]) -> list[Line]:
    """Return the lines of a log."""
    found: list[Line] = []
    last = 1 if all(one.attempt == 1 for one in log) else 0
    for one in log:
        missed = 0 if one.missed is msgspec.UNSET else one.missed
        found.append(Line(one, missed, None if one.attempt == last else one.attempt))
        last = one.attempt
    return found


class Data(NamedTuple):
    """The parts of a job that only viewers with the right to payloads see; None: the page is shown without it."""

    arguments: KeptArguments | Problem | None = None
    log: Items[LogLine] | Problem | None = None
    result: Text | Problem | None = None


def log_filter(visit: Visit) -> dict[str, str]:
    """Return the part of the log that the address asks for."""
    return {name: visit.field(name) for name in ("attempt", "level") if visit.field(name)}


async def _data_of(visit: Visit, shown: JobDetails) -> Data:
    if not visit.may(Permission.PAYLOADS, shown.function):
        return Data()
    calls, handle = visit.calls, visit.parameters
    query = {"tail": LINES, **log_filter(visit)}
    found = await asyncio.gather(
        visit.optional(calls.get(KeptArguments, f"{JOB}/arguments", handle), "arguments"),
        visit.optional(calls.get(Items[LogLine], f"{JOB}/logs", handle, query=query), "log"),
        _result_of(visit, shown),
    )
    return Data(*found)


class ShownValue(NamedTuple):
    """A published value on a page."""

    name: str
    text: str
    """JSON, at most `VALUE_SHOWN` characters of it."""
    is_cut: bool
    at: str | None
    attempt: int


async def published_of(visit: Visit, function: str, handle: str) -> list[ShownValue] | None:
    """Return the published values of a job or run; None if the viewer may not read them, or they could not be read."""
    if not visit.has(Feature.VALUES) or not visit.may(Permission.PAYLOADS, function):
        return None
    call = visit.calls.get(PublishedValues, f"{JOB}/values", {"handle": handle})
    answer = await visit.optional(call, "values")
    if isinstance(answer, Problem):
        return None
    return [_shown_value(one) for one in answer.items]


def _shown_value(one: PublishedValue) -> ShownValue:
    text = described(bytes(one.value)) or bytes(one.value).decode()
    return ShownValue(one.name, text[:VALUE_SHOWN], len(text) > VALUE_SHOWN, one.at, one.attempt)


async def _result_of(visit: Visit, shown: JobDetails) -> Text | Problem | None:
    if shown.state != "succeeded" or not shown.output_size:
        return None

    async def read() -> Text:
        return as_text((await visit.calls.send("GET", f"{JOB}/result", visit.parameters)).body)

    return await visit.optional(read(), "result")


async def job(visit: Visit) -> Response:
    """Show a job."""
    calls, handle = visit.calls, dict(visit.parameters)
    try:
        shown = await calls.get(JobDetails, JOB, handle)
    except RefusedError as refused:
        if refused.problem.type != NOT_FOUND:
            raise
        acts = await acts_on(visit, handle["handle"])
        return visit.render("job_gone.html", code=404, handle=handle["handle"], problem=refused.problem, acts=acts)
    sees_data = visit.may(Permission.PAYLOADS, shown.function)
    attempts, (arguments, log, output), published, acts = await asyncio.gather(
        visit.optional(calls.get(Attempts, f"{JOB}/attempts", handle), "attempts"),
        _data_of(visit, shown),
        published_of(visit, shown.function, shown.handle),
        acts_on(visit, handle["handle"]),
    )
    tried = [] if isinstance(attempts, Problem) else attempts.attempts
    is_open = bool(tried) and tried[-1].outcome == "running"
    values: dict[str, Any] = {
        "arguments": text_of_arguments(arguments) if isinstance(arguments, KeptArguments) else None,
        "present": editable(arguments),
        "is_run": shown.run == shown.handle,
        "run_not_retried": run_not_retried("this", shown.function.encode()),
        "absence": absence_of(arguments) if isinstance(arguments, KeptArguments) else "",
        "redacted": isinstance(arguments, KeptArguments) and arguments.redacted,
        "ended": ENDED,
        "attempts": tried,
        "stop_requested_at": tried[-1].stop_requested_at if is_open else None,
        "waits": waits_of(shown, tried),
        "notes": notes_of(tried),
        "drawing": None if isinstance(attempts, Problem) else lane(shown, tried, visit.now, visit.settings.timezone),
        "lines": lines_of(log.items) if isinstance(log, Items) else None,
        "log_filter": log_filter(visit),
        "levels": LEVELS,
        "numbers": sorted({one.number for one in tried})[-MOST_CHOICES:],
        "result": output if isinstance(output, Text) else None,
        "published": published,
        "acts": acts,
    }
    return visit.render("job.html", job=shown, sees_data=sees_data, actions=actions_of(visit, shown), **values)


JOB_PAGES: Final = (Page(path="/jobs/{handle}", handler=job),)
