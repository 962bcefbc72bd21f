"""``mainspring schedules``: list, add, change, pause and trigger schedules."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Group, Parameter
from msgspec import UNSET

from mainspring.api.declaration import fields_of
from mainspring.api.schedules import (
    CLOCK_NOTES,
    AddSchedule,
    AdoptSchedule,
    EditSchedule,
    ListAllSchedules,
    ListFires,
    NextTimes,
    PauseSchedule,
    PreviewSchedule,
    ReadTimeline,
    RemoveSchedule,
    ResumeSchedule,
    ScheduleHistory,
    ShowSchedule,
    TriggerSchedule,
)
from mainspring.cli.calls import (
    NOTHING,
    Given,
    ListSearch,
    arguments_of,
    call,
    items,
    name_argument,
    no_worker,
    print_answer,
    takes,
)
from mainspring.cli.display import (
    AS_AGE,
    EXIT_DONE,
    LEFT_OUT,
    Step,
    print_error,
    print_fields,
    print_json,
    print_rows,
    with_durations,
)
from mainspring.cli.operations import backfill
from mainspring.cli.options import (
    LOCAL,
    Cursor,
    Json,
    ServerOptions,
    plain,
)
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.client.blocking import Client

TIMING_GROUP = Group("When it runs", sort_key=0)
JOB_GROUP = Group("The job", sort_key=1)


MaxAttempts = Annotated[
    int | None,
    plain(
        ("--max-attempts", "--attempts"),
        "How often to run a job, with growing waits between attempts, before it counts as failed.",
        group=JOB_GROUP,
    ),
]
OF_THE_JOB: Final = ("function", "args", "priority", "timeout", "unique", "expires", "start_within", "deadline", "tags")
takes_schedule: Final = takes(
    AddSchedule, group=dict.fromkeys(fields_of(AddSchedule), TIMING_GROUP) | dict.fromkeys(OF_THE_JOB, JOB_GROUP)
)
"""Gives a command the options of a schedule."""


def with_attempts(given: Given, max_attempts: int | None) -> Given:
    """Return the fields of a schedule with those of its retry policy that have an option."""
    return given if max_attempts is None else {**given, "retry": {"max_attempts": max_attempts}}


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
    "until",
)

SHRINK_STEPS: tuple[Step, ...] = (
    {"next_at": AS_AGE, "last_at": AS_AGE},
    {"app": LEFT_OUT},
    {"when": 24, "function": 16},
    {"waiting": LEFT_OUT},
    {"last_at": LEFT_OUT},
    {"function": LEFT_OUT},
    {"timezone": LEFT_OUT},
    {"when": 8},
)
"""The order in which the list shrinks on a terminal. Names stay whole, so that users can copy them."""

Name = Annotated[str, Parameter(help="The schedule's name.")]
Names = Annotated[
    tuple[str, ...], Parameter(name="NAME", help="The schedules' names.", negative="", show_default=False)
]

schedules = App(name="schedules", help="List, add, change, pause and trigger schedules.")


@schedules.command(name="list")
def list_schedules(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the schedules with their last and next times.

    On a terminal, the command prints a table with the columns that fit. In a pipe or file, it prints a line with the columns'
    names, then a line per schedule with tabs between all columns. With --json, it prints an array.
    """
    print_rows(COLUMNS, list(items(server.client(), ListAllSchedules())), json=json, steps=SHRINK_STEPS)
    return EXIT_DONE


@schedules.command
def show(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show all details of a schedule.

    EXIT CODES
      0 shown, 3 no server, 4 no such schedule
    """
    return print_answer(server.client(), ShowSchedule(name), _print_schedule, json=json)


@schedules.command
@takes_schedule
def add(
    name: Name,
    /,
    *,
    given: Given = NOTHING,
    max_attempts: MaxAttempts = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Add a schedule.

    Give --cron, --every, --at or --parent. The schedule stays until you remove it. (Schedules in an App's code are added when
    its workers start.)

    For a task in Python, the arguments are JSON: an object is passed as keyword arguments, an array as positional arguments, and
    any other value as the only argument.

    EXAMPLES
      mainspring schedules add nightly --cron "30 2 * * *" --timezone Europe/Berlin --function report
      mainspring schedules add poll --every 10s --overlap forbid --args '{"full": false}'
      mainspring schedules add clean --parent nightly --parent poll

    EXIT CODES
      0 added, 1 a schedule of this name exists, 2 wrong usage, 3 no server
    """
    client = server.client()
    request = AddSchedule(name=name, **with_attempts(given, max_attempts))
    print_answer(client, request, _print_state, json=json)
    _warn_of(client, name if request.function is UNSET else request.function)
    return EXIT_DONE


def _warn_of(client: Client, function: str) -> None:
    """Print a sentence if no worker has registered a function: its name may be misspelt."""
    if (sentence := no_worker(client, name_argument(function), "its jobs will wait")) is not None:
        print_error(sentence)


@schedules.command
@takes_schedule
def preview(
    name: Name,
    /,
    *,
    given: Given = NOTHING,
    max_attempts: MaxAttempts = None,
    count: Annotated[int, Parameter(name="--count", help="How many times to print, up to 1000.")] = 10,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Print when a schedule would run, and save nothing.

    The options are those of add. If a schedule of this name exists, they are those of edit.

    Each line has a time on the clock of the schedule's time zone. A second column says if a change of this clock affects the
    time. Lines after an empty one name changes of the clock, and conflicts with other schedules.

    EXIT CODES
      0 printed, 2 wrong usage, 3 no server
    """
    return print_answer(
        server.client(),
        PreviewSchedule(name=name, count=count, **with_attempts(given, max_attempts)),
        _print_preview,
        json=json,
    )


@schedules.command
@takes_schedule
def edit(
    name: Name,
    /,
    *,
    given: Given = NOTHING,
    max_attempts: MaxAttempts = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Change the given options of a schedule, and keep the others.

    The changes apply from now on. If an App's code declares the schedule, the next change in its code replaces them.
    """
    request = EditSchedule(name=name, **with_attempts(given, max_attempts))
    if arguments_of(request).keys() == {"name"}:
        raise UsageError("no option to change is given; mainspring schedules edit --help lists them")
    client = server.client()
    print_answer(client, request, _print_state, json=json)
    if request.function is not UNSET:
        _warn_of(client, request.function)
    return EXIT_DONE


@schedules.command
def pause(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Pause a schedule: skip its times until you resume it. A job that runs now continues."""
    return print_answer(server.client(), PauseSchedule(name), _print_state, json=json)


@schedules.command
def resume(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Resume a paused schedule. Times during the pause stay skipped."""
    return print_answer(server.client(), ResumeSchedule(name), _print_state, json=json)


@schedules.command
def remove(
    names: Names,
    /,
    *,
    children: Annotated[
        bool, plain("--children", "Also remove all schedules that run after it, and those after them.", negative="")
    ] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Remove schedules and keep their history.

    Without --children, a schedule is not removed while others run after it. The schedules of one command are removed in the
    right order. If the code of an App that runs declares a schedule, the code adds it again: remove it there.

    EXAMPLES
      mainspring schedules remove nightly
      mainspring schedules remove nightly --children
    """
    client = server.client()
    for name in _children_first(client, names):
        print_answer(client, RemoveSchedule(name, children=children), _print_state, json=json)
    return EXIT_DONE


def _children_first(client: Client, names: Sequence[str]) -> list[str]:
    """Return names of schedules in an order in which each comes before its parents."""
    waiting = list(dict.fromkeys(names))
    if len(waiting) < 2:
        return waiting
    parents = {one["name"]: one["parents"] for one in items(client, ListAllSchedules())}
    ordered: list[str] = []
    while waiting:
        held = {parent for name in waiting for parent in parents.get(name, ())}
        free = [name for name in waiting if name not in held] or waiting
        ordered += free
        waiting = [name for name in waiting if name not in free]
    return ordered


@schedules.command
@takes(AdoptSchedule)
def adopt(
    names: Names,
    /,
    *,
    given: Given,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Give schedules to the code of an App, as if that had created them.

    Use it for a schedule that was added by hand, or by an App of another name, and that code declares now. The App's workers
    change it to what the code declares, within 20 seconds. A schedule that the code does not declare is removed.

    EXAMPLES
      mainspring schedules adopt nightly --app shop

    EXIT CODES
      0 done, 3 no server, 4 no such schedule
    """
    client = server.client()
    for name in names:
        print_answer(client, AdoptSchedule(name, **given), _print_state, json=json)
    return EXIT_DONE


@schedules.command
def trigger(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Run a schedule now, even if it is paused, and print the handle of the job.

    If the schedule's overlap policy skips or delays the run, the command prints that state instead of a handle.
    """
    return print_answer(server.client(), TriggerSchedule(name), _print_run, json=json)


schedules.command(backfill)


@schedules.command(name="next")
def next_times(
    name: Name,
    /,
    *,
    count: Annotated[int, Parameter(name="--count", help="How many times to print, up to 1000.")] = 10,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Print the next times of a schedule: none if it is paused or runs after parents.

    Each line has a time on the clock of the schedule's time zone, as preview prints it. With --json, the times are in UTC.
    """
    answer = call(server.client(), NextTimes(name, count))
    if json:
        print_json(answer["times"])
    elif "local" in answer:
        _print_times(answer["local"])
    else:  # an older server
        for time in answer["times"]:
            print(time)
    return EXIT_DONE


@schedules.command
def history(
    name: Name,
    /,
    *,
    limit: Annotated[int, Parameter(name="--limit", help="The most times to show, up to 1000.")] = 100,
    cursor: Cursor = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Show the past times of a schedule and their jobs, newest first.

    Each time has a row with its state: fired, joined (a live job with its unique), waiting (for an earlier run) or skipped. A
    skipped time has a reason: misfire, overlap, paused, excluded, parent or removed. More than 100 missed times share a row, up
    to `until`.
    """
    search = ListSearch(server.client(), ScheduleHistory(name, cursor, limit))
    search.run()
    print_rows(RUN_COLUMNS, search.found, json=json)
    search.print_next()
    return EXIT_DONE


HOUR: Final = 3600.0
FIRE_COLUMNS = (
    "fire_time",
    "schedule",
    "state",
    "outcome",
    "reason",
    "handle",
    "node",
    "started_at",
    "ended_at",
    "error",
    "until",
)


@schedules.command
@takes(ListFires)
def fires(
    *,
    given: Given = NOTHING,
    limit: Annotated[int, Parameter(name="--limit", help="The most times to show, up to 1000.")] = 100,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Show the past times of all schedules and their jobs, newest first.

    The states and reasons are those of history. Times of removed schedules are left out.
    """
    request = ListFires(**given)
    print_rows(FIRE_COLUMNS, list(items(server.client(), request, limit)), json=json)
    return EXIT_DONE


@schedules.command
@takes(ReadTimeline, "since", "until", "step")
def timeline(
    *,
    given: Given = NOTHING,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Count the past and the next times of all schedules in a day, or in another time.

    A line has a schedule, the begin of a bucket, and how many times fired there, with the successes and failures among them, how
    many were skipped, and how many are due. Empty buckets are left out. Of a schedule with more than 2,000 past or next times,
    the nearest 2,000 are counted.
    """
    lines = list(items(server.client(), ReadTimeline(**{"step": HOUR, **given})))
    if json:
        print_json(lines)
    else:
        rows = [{"schedule": line["schedule"], **bucket} for line in lines for bucket in line["buckets"]]
        print_rows(("schedule", "at", "fired", "succeeded", "failed", "skipped", "due"), rows, json=False)
    return EXIT_DONE


def _print_schedule(schedule: dict[str, Any]) -> None:
    payload = base64.b64decode(schedule["payload"])
    described = {key: value for key, value in schedule.items() if key not in {"payload", "payload_size"}}
    lists = {key: " ".join(schedule[key]) for key in ("exclude", "parents")}
    retry = schedule.get("retry")
    shown = {
        "args": payload.decode("utf-8", "backslashreplace"),
        "retry": retry and with_durations(retry, "initial", "maximum"),
    }
    print_fields(
        with_durations(
            described | lists | shown,
            "every",
            "jitter",
            "misfire_after",
            "timeout",
            "expires",
            "start_within",
            "deadline",
        )
    )


def _print_state(schedule: dict[str, Any]) -> None:
    print(f"{schedule['name']}\t{schedule['state']}\t{schedule.get('next_at') or '-'}", flush=True)


def _print_times(times: list[dict[str, Any]]) -> None:
    for time in times:
        note = time["note"]
        print(time["local"] if note is None else f"{time['local']}\t{CLOCK_NOTES.get(note, note)}")


def _print_preview(preview: dict[str, Any]) -> None:
    _print_times(preview["times"])
    remarks = [
        f"{change['at']}\tthe clock changes from {change['before']} to {change['after']}"
        for change in preview["clock_changes"]
    ] + [f"{conflict['schedule']}\t{conflict['text']}" for conflict in preview["conflicts"]]
    if remarks:
        print("", *remarks, sep="\n", flush=True)


def _print_run(run: dict[str, Any]) -> None:
    print(run["handle"] or f"{run['state']}\t{run['reason'] or '-'}", flush=True)
