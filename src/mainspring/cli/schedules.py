"""``mainspring schedules``: look at schedules, make, change and run them."""

from __future__ import annotations

import base64
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import App, Group, Parameter

from mainspring.api.schedules import Add, Edit, History, List, Next, Pause, Remove, Resume, Show, Trigger
from mainspring.cli.asking import ask, params_of, print_answer
from mainspring.cli.display import print_fields, print_json, print_rows, with_durations
from mainspring.cli.failures import DONE
from mainspring.cli.fitting import AS_AGE, LEFT_OUT, Step
from mainspring.cli.options import DURATION, LOCAL, Json, ServerOptions, plain, reading
from mainspring.cli.submit import parse_time
from mainspring.errors import SettingsError, UsageError
from mainspring.quantities import parse_duration

COLUMNS = ("name", "when", "timezone", "state", "next_at", "last_at", "waiting", "function", "app")
RUN_COLUMNS = (
    "fire_time",
    "state",
    "outcome",
    "reason",
    "handle",
    "node",
    "worker",
    "started_at",
    "ended_at",
    "attempt",
    "parent",
    "error",
)

STEPS: tuple[Step, ...] = (
    {"next_at": AS_AGE, "last_at": AS_AGE},
    {"app": LEFT_OUT},
    {"when": 24, "function": 16},
    {"waiting": LEFT_OUT},
    {"last_at": LEFT_OUT},
    {"function": LEFT_OUT},
    {"timezone": LEFT_OUT},
    {"when": 8},
)
"""How the list makes room on a terminal. Names are always whole, so that they can be copied."""

WHEN = Group("When it runs", sort_key=0)
HOW = Group("What is run, and how", sort_key=1)
TIME: dict[str, Any] = {"converter": reading(parse_time), "metavar": "TIME"}

Name = Annotated[str, Parameter(help="The schedule's name.")]

schedules = App(name="schedules", help="Look at schedules, make, change and run them.")


def parse_misfire(text: str) -> str | int:
    """Return a misfire policy; raises SettingsError."""
    if text in {"skip", "once", "all"}:
        return text
    if text.isdecimal():
        return int(text)
    raise SettingsError(f"{text!r} is no policy for missed times: say skip, once, all or a number")


def _or_none(parse: Any) -> Any:
    """Take ``none`` for nothing, and anything else as it is parsed."""
    return lambda text: None if text == "none" else parse(text)


_OPTIONAL_TIME: dict[str, Any] = {"converter": reading(_or_none(parse_time)), "metavar": "TIME"}
_OPTIONAL_DURATION: dict[str, Any] = {"converter": reading(_or_none(parse_duration)), "metavar": "DURATION"}


class _Unsaid:
    """What was not given on the command line: nothing is said about it."""

    def __repr__(self) -> str:
        return ""


UNSAID: Any = _Unsaid()


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """What ``add`` and ``edit`` say about a schedule."""

    cron: Annotated[
        str | None,
        plain("--cron", "A cron expression of five fields, or six with the seconds first, or @daily.", group=WHEN),
    ] = None
    every: Annotated[
        float | None, plain("--every", "An even interval, counted from --start or from 1970.", group=WHEN, **DURATION)
    ] = None
    at: Annotated[float | None, plain("--at", "Once, at a time such as 2030-01-31T12:00:00Z.", group=WHEN, **TIME)] = (
        None
    )
    parent: Annotated[
        list[str] | None,
        plain(
            "--parent",
            "When this other schedule has succeeded; given several times, when all have.",
            group=WHEN,
            negative="",
        ),
    ] = None
    timezone: Annotated[
        str | None,
        plain("--timezone", "The IANA name of the clock that --cron is read by; UTC where not given.", group=WHEN),
    ] = None
    start: Annotated[
        float | None, plain("--start", "The first time at which it may run, or none.", group=WHEN, **_OPTIONAL_TIME)
    ] = UNSAID
    end: Annotated[
        float | None, plain("--end", "The last time at which it may run, or none.", group=WHEN, **_OPTIONAL_TIME)
    ] = UNSAID
    exclude: Annotated[
        list[str] | None,
        plain(
            "--exclude", "A day on which it does not run, such as 2030-12-24; several times.", group=WHEN, negative=""
        ),
    ] = None
    jitter: Annotated[
        float | None, plain("--jitter", "Each job starts up to so much later.", group=WHEN, **DURATION)
    ] = None
    misfire: Annotated[
        str | int | None,
        plain(
            "--misfire",
            "Times that were missed: skip them, make up for the newest (once), all, or so many.",
            group=WHEN,
            converter=reading(parse_misfire),
            metavar="POLICY",
        ),
    ] = None
    overlap: Annotated[
        Literal["allow", "forbid", "queue", "replace"] | None,
        plain("--overlap", "While an earlier run is not finished.", group=WHEN),
    ] = None
    wait_for_children: Annotated[
        bool | None,
        plain("--wait-for-children", "A run is finished when the runs after it are.", group=WHEN, negative="--no-wait"),
    ] = None
    function: Annotated[
        str | None, plain("--function", "The function to run; of the schedule's name where not given.", group=HOW)
    ] = None
    payload: Annotated[
        str | None,
        plain(
            ("--payload", "--args"),
            "What to run it on: text, or - for standard input.",
            group=HOW,
            allow_leading_hyphen=True,
        ),
    ] = None
    priority: Annotated[
        Literal["high", "normal", "low"] | None,
        plain("--priority", "Jobs of a higher priority start first; normal where not given.", group=HOW),
    ] = None
    max_attempts: Annotated[
        int | None,
        plain(("--max-attempts", "--attempts"), "How often a job is tried, with growing waits in between.", group=HOW),
    ] = None
    run_timeout: Annotated[
        float | None,
        plain(("--run-timeout", "--timeout"), "Longest run of one attempt, or none.", group=HOW, **_OPTIONAL_DURATION),
    ] = UNSAID
    unique: Annotated[str | None, plain("--unique", "The unique of its jobs.", group=HOW)] = None
    expires: Annotated[
        float | None,
        plain(
            "--expires", "Give a job up that has not started so long after its time.", group=HOW, **_OPTIONAL_DURATION
        ),
    ] = UNSAID

    def said(self) -> dict[str, Any]:
        """Return what is given, as the fields of a request."""
        said: dict[str, Any] = {
            "cron": self.cron,
            "every": self.every,
            "at": self.at,
            "parents": self.parent,
            "timezone": self.timezone,
            "exclude": self.exclude,
            "jitter": self.jitter,
            "misfire": self.misfire,
            "overlap": self.overlap,
            "wait_for_children": self.wait_for_children,
            "function": self.function,
            "payload": None if self.payload is None else _payload(self.payload),
            "priority": self.priority,
            "retry": None if self.max_attempts is None else {"max_attempts": self.max_attempts},
            "unique": self.unique,
        }
        optional = {"start": self.start, "end": self.end, "timeout": self.run_timeout, "expires": self.expires}
        return {key: value for key, value in said.items() if value is not None} | {
            key: value for key, value in optional.items() if value is not UNSAID
        }


NOTHING = ScheduleOptions()


def _payload(text: str) -> bytes:
    return sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")


@schedules.command(name="list")
def list_schedules(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the schedules, with the next and the last time of each.

    On a terminal a table of what fits: wider ones show more. Elsewhere one line each with tabs between all columns, and a
    head; with --json an array.
    """
    print_rows(COLUMNS, ask(server.client(), List())["schedules"], json=json, steps=STEPS)
    return DONE


@schedules.command
def show(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show everything that is known about a schedule.

    EXIT CODES
      0 shown, 3 no server, 4 no such schedule
    """
    return print_answer(server.client(), Show(name), _print_schedule, json=json)


@schedules.command
def add(name: Name, /, *, said: ScheduleOptions = NOTHING, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Make a schedule.

    A task in Python takes a JSON object as keyword arguments, a JSON array as positional ones, and any other JSON value as
    its one argument. Schedules that an App declares in its code are made when it starts; this one belongs to nobody's
    code and stays until it is removed.

    EXAMPLES
      mainspring schedules add nightly --cron "30 2 * * *" --timezone Europe/Berlin --function report
      mainspring schedules add poll --every 10s --overlap forbid --payload '{"full": false}'
      mainspring schedules add clean --parent nightly --parent poll

    EXIT CODES
      0 made, 1 there is one of that name, 2 wrong usage, 3 no server
    """
    return print_answer(server.client(), Add(name=name, **said.said()), _print_state, json=json)


@schedules.command
def edit(name: Name, /, *, said: ScheduleOptions = NOTHING, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Change what is given, and leave the rest of a schedule as it is.

    New times count from now on. What an App declares comes back when its code says something new about the schedule.
    """
    request = Edit(name=name, **said.said())
    if params_of(request).keys() == {"name"}:
        raise UsageError("say what to change; mainspring schedules edit --help shows what there is")
    return print_answer(server.client(), request, _print_state, json=json)


@schedules.command
def pause(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Skip a schedule's times from now on, until it is resumed. A run that is under way goes on."""
    return print_answer(server.client(), Pause(name), _print_state, json=json)


@schedules.command
def resume(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Let a paused schedule run again from now on; the times of the pause stay skipped."""
    return print_answer(server.client(), Resume(name), _print_state, json=json)


@schedules.command
def remove(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Remove a schedule; its history stays. One that others run after cannot be removed."""
    return print_answer(server.client(), Remove(name), _print_state, json=json)


@schedules.command
def trigger(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Run a schedule now, also where it is paused, and print the handle of the job.

    Where its overlap policy forbids or delays the run, the state says so in place of a handle.
    """
    return print_answer(server.client(), Trigger(name), _print_run, json=json)


@schedules.command(name="next")
def next_times(
    name: Name,
    /,
    *,
    count: Annotated[int, Parameter(name="--count", help="So many, up to 1000.")] = 10,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Print the next times at which a schedule runs; none where it is paused or runs after others."""
    answer = ask(server.client(), Next(name, count))
    if json:
        print_json(answer["times"])
    else:
        for time in answer["times"]:
            print(time)
    return DONE


@schedules.command
def history(
    name: Name,
    /,
    *,
    limit: Annotated[int, Parameter(name="--limit", help="At most so many, up to 1000.")] = 100,
    before: Annotated[float | None, plain("--before", "Only times before this one: the next page.", **TIME)] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Show what became of a schedule's times, the newest first.

    Each has one row: it has fired, joined a live job of its unique, waits for a run before it, or was skipped, with the
    reason (misfire, overlap, paused, excluded, parent, removed).
    """
    print_rows(RUN_COLUMNS, ask(server.client(), History(name, limit, before))["runs"], json=json)
    return DONE


def _print_schedule(schedule: dict[str, Any]) -> None:
    payload = base64.b64decode(schedule["payload"])
    lists = {key: " ".join(schedule[key]) for key in ("exclude", "parents")}
    retry = schedule.get("retry")
    said = {
        "payload": payload.decode("utf-8", "backslashreplace"),
        "retry": retry and with_durations(retry, "initial", "maximum"),
    }
    print_fields(with_durations(schedule | lists | said, "every", "jitter", "misfire_after", "timeout", "expires"))


def _print_state(schedule: dict[str, Any]) -> None:
    print(f"{schedule['name']}\t{schedule['state']}\t{schedule.get('next_at') or '-'}", flush=True)


def _print_run(run: dict[str, Any]) -> None:
    print(run["handle"] or f"{run['state']}\t{run['reason'] or '-'}", flush=True)
