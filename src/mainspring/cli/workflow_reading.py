"""Subcommands of ``mainspring workflows`` that read runs, and how they print runs for people."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from mainspring.api.request import PAGE_LIMIT
from mainspring.api.workflows import ListDeciders, ListVersions, ListWorkflowRuns, ReadHistory, RemoveVersion, ShowRun
from mainspring.cli.calls import NOTHING, Given, ListSearch, call, items, print_answer, takes
from mainspring.cli.display import (
    AS_AGE,
    EXIT_DONE,
    EXIT_FAILED,
    LEFT_OUT,
    Step,
    print_error,
    print_fields,
    print_json,
    print_rows,
    print_table,
    printable,
    progress_text,
)
from mainspring.cli.options import LOCAL, Cursor, Json, ServerOptions, plain
from mainspring.client.run import read_events
from mainspring.errors import MainspringError, NotFoundError, UsageError
from mainspring.jobs.model import JobFailure
from mainspring.quantities import format_duration, format_size
from mainspring.workflows.history_json import (
    decode_history,
    encode_history,
    event_from_json,
    event_to_json,
    redacted_event,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mainspring.client.blocking import Client
    from mainspring.worker.workflows.replay_checks import Replayed
    from mainspring.workflows.history_json import HistoryFile
    from mainspring.workflows.model import Parked


EVENT_COLUMNS: Final = ("id", "time", "event", "what")
ACTIVITY_COLUMNS: Final = ("number", "function", "state", "attempt", "worker", "scheduled_at", "handle", "error")
CHILD_COLUMNS: Final = ("number", "type", "id", "handle", "policy")
TIMER_COLUMNS: Final = ("number", "fires_at", "duration", "guards")
HOLD_COLUMNS: Final = ("resource", "state", "units", "item", "number", "since", "lacks", "behind")
MISMATCH_COLUMNS: Final = ("recorded", "code")
LONGEST_TEXT: Final = 200
"""Characters of a payload in a line; ``--json`` prints all."""


def print_run(run: Mapping[str, Any]) -> None:
    """Print all details of a run: fields, then its activities, children and timers, and both sides of a mismatch."""
    plain = {name: value for name, value in run.items() if not isinstance(value, dict | list)}
    lists = {name: ", ".join(run[name]) for name in ("steps", "receives")}
    parked = run.get("parked") or {}
    sizes = {name: format_size(run[name]) for name in ("input_size", "output_size", "history_size")}
    shown: dict[str, Any] = {**plain, **sizes, **lists, "unread": run.get("unread") or None}
    shown["progress"] = progress_text(run.get("progress"))
    shown["parked"] = f"{parked['kind']}: {parked['message']}" if parked else None
    if paused := run.get("paused"):
        shown["paused"] = _pause_text(paused)
    if parked.get("builds"):
        shown["builds"] = ", ".join(parked["builds"])
    print_fields({name: value for name, value in shown.items() if value not in (None, "", False)})
    for name, columns in (
        ("activities", ACTIVITY_COLUMNS),
        ("children", CHILD_COLUMNS),
        ("timers", TIMER_COLUMNS),
        ("holds", HOLD_COLUMNS),
    ):
        if run.get(name):
            print(f"\n{name}")
            print_table(columns, run[name])
    if parked.get("recorded") or parked.get("code"):
        print("\nfirst difference")
        print_difference(parked)


def _pause_text(paused: Mapping[str, Any]) -> str:
    """Return who has paused a run, until when and why, and how many activities wait for it."""
    parts = [f"by {paused['by']}" if paused["by"] else "", f"until {paused['until'] or 'it is resumed'}"]
    text = " ".join(filter(None, parts))
    if paused["held"]:
        text += f", holds {paused['held']} of its activities"
    return f"{text}: {paused['reason']}" if paused["reason"] else text


def print_difference(parked: Mapping[str, Any]) -> None:
    """Print both sides of a mismatch."""
    print_table(("", *MISMATCH_COLUMNS), list(_rows_of_difference(parked)))


def _rows_of_difference(parked: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    recorded, code = parked["recorded"], parked["code"]
    for at in range(max(len(recorded), len(code))):
        yield {
            "": ">" if at == parked["at"] else "",
            "recorded": recorded[at] if at < len(recorded) else "",
            "code": code[at] if at < len(code) else "",
        }


class EventRows:
    """Turns events of a history, in order, into rows with `EVENT_COLUMNS`. It keeps the names of scheduled activities."""

    def __init__(self) -> None:
        self._scheduled: dict[int, str] = {}

    def row(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of an event, which has the form of Amazon SWF."""
        kind: str = event["eventType"]
        attributes: Mapping[str, Any] = event.get(f"{kind[0].lower()}{kind[1:]}EventAttributes", {})
        return {
            "id": event["eventId"],
            "time": _time(event["eventTimestamp"]),
            "event": kind,
            "what": " ".join(self._parts(kind, event["eventId"], attributes)),
        }

    def _parts(self, kind: str, number: int, attributes: Mapping[str, Any]) -> Iterator[str]:
        activity = attributes.get("activityType")
        if activity is not None:
            self._scheduled[number] = f"{activity['name']} #{attributes['activityId']}"
            yield self._scheduled[number]
        elif "activityId" in attributes:
            yield f"#{attributes['activityId']}"
        elif (scheduled := self._scheduled.get(attributes.get("scheduledEventId", 0))) is not None:
            yield scheduled
        if (workflow := attributes.get("workflowType")) is not None:
            yield f"{workflow['name']}@{workflow['version']}"
        if kind != "WorkflowExecutionStarted":
            yield from _other_run(attributes)
        error = _error(attributes.get("details"))
        for name, write in _SHOWN.items():
            if error and name == "reason":
                continue  # the error begins with it
            if attributes.get(name) not in (None, "") and (text := write(attributes[name])):
                yield error if error and name == "details" else text


def _other_run(attributes: Mapping[str, Any]) -> Iterator[str]:
    """Yield the run to which an event sends something, or from which it comes."""
    other = attributes.get("workflowExecution", attributes)
    if name := other.get("workflowId") or other.get("runId"):
        yield name
    if sender := attributes.get("externalWorkflowExecution"):
        yield f"from {sender.get('workflowId') or sender['runId']}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _short(text: Any) -> str:
    line = str(text)
    return line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]}…"


def _error(details: object) -> str:
    """Return the error that details describe, without its traceback; empty if they are none."""
    try:
        found = msgspec.json.decode(str(details), type=JobFailure)
    except msgspec.DecodeError:
        return ""
    return _short(f"{found.type}: {found.message}")


_SHOWN: Final[Mapping[str, Callable[[Any], str]]] = {
    "timerId": lambda number: f"timer #{number}",
    "startToFireTimeout": lambda seconds: format_duration(float(seconds)),
    "signalName": str,
    "markerName": str,
    "function": str,
    "identity": str,
    "attempt": lambda number: f"attempt {number}" if number > 1 else "",
    "cause": str,
    "timeoutType": str,
    "reason": _short,
    "input": _short,
    "result": _short,
    "details": _short,
}
"""The attributes in a line, in order, and how they are written."""

COLUMNS: Final = ("status", "events", "progress", "waits_for")
UNFINISHED: Final = frozenset({"open", "scheduled", "pending"})
"""The statuses of runs that may get more events."""
INTERVAL: Final = 0.5
"""Seconds between two requests."""


def follow_run(client: Client, key: str, *, json: bool) -> None:
    """Print a run now and after each change, until it is closed: a line of columns, or with ``json`` an object."""
    if not json:
        _print_event(dict(zip(COLUMNS, COLUMNS, strict=True)))
    printed: Any = None
    while True:
        run = call(client, ShowRun(key))
        row = {**run, "progress": progress_text(run.get("progress"))}
        shown = [row["run"], *(row[column] for column in COLUMNS[:3])]  # the time that timers have left always changes
        if shown != printed:
            printed = shown
            if json:
                print_json(run)
            else:
                _print_event(row)
        if run["status"] not in UNFINISHED:
            return
        time.sleep(INTERVAL)


def _print_event(row: dict[str, Any]) -> None:
    sys.stdout.write("\t".join(printable(row[column]) for column in COLUMNS) + "\n")
    sys.stdout.flush()


RUN_COLUMNS: Final = (
    "handle",
    "id",
    "type",
    "version",
    "status",
    "started_at",
    "closed_at",
    "events",
    "waits_for",
)
RUN_SHRINK_STEPS: Final[tuple[Step, ...]] = (
    {"started_at": AS_AGE, "closed_at": AS_AGE, "overdue_since": AS_AGE},
    {"waits_for": 40},
    {"type": 24},
    {"version": LEFT_OUT},
    {"events": LEFT_OUT},
    {"handle": LEFT_OUT},
    {"closed_at": LEFT_OUT},
    {"waits_for": 20, "type": 12},
    {"started_at": LEFT_OUT},
    {"waits_for": LEFT_OUT},
    {"type": 1},
)
"""The order in which the list shrinks on a terminal. Workflow ids stay whole, so that users can copy them."""


@takes(ListWorkflowRuns)
def list_runs(
    *,
    given: Given = NOTHING,
    limit: Annotated[int, Parameter(name="--limit", help="The most runs to list, up to 1000.")] = 100,
    cursor: Cursor = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """List runs, newest first.

    Give at most one of --open, --closed, --parked, --paused, --stranded, --overdue and --status. There is a column overdue_since
    if one of the runs is overdue.

    On a terminal, the command prints a table with the columns that fit. In a pipe or file, it prints a line with the columns'
    names, then a line per run with tabs between all columns. With --json, it prints an array.

    The search takes a while if only few of very many runs match. If you interrupt it, it prints the runs that it has found
    and how to continue.

    EXAMPLES
      mainspring workflows list --parked
      mainspring workflows list --type order --since 2030-01-31T12:00:00Z --json
    """
    search = ListSearch(server.client(), ListWorkflowRuns(cursor=cursor, limit=limit, **given))
    try:
        search.run()
    except (KeyboardInterrupt, MainspringError):
        if search.next is not None:
            print_rows(_columns(search.found), search.found, json=json, steps=RUN_SHRINK_STEPS)
            print_error(f"searched back to runs of {search.searched_to}; continue with --cursor {search.next}")
        raise
    print_rows(_columns(search.found), search.found, json=json, steps=RUN_SHRINK_STEPS)
    search.print_next()
    return EXIT_DONE


def _columns(found: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the columns of a list: since when runs are overdue only if one is."""
    return (*RUN_COLUMNS, "overdue_since") if any(one.get("overdue_since") for one in found) else RUN_COLUMNS


Key = Annotated[
    str,
    Parameter(
        help="The run: its handle, such as H:node:1000000000001; a handle with @ and a number, for one run; or its workflow id."
    ),
]


def history(
    key: Key,
    /,
    *,
    first: Annotated[int, Parameter(name="--from", help="The number of the first event to print.")] = 1,
    follow: Annotated[
        bool,
        plain(
            "--follow",
            "Print new events until the run is closed; if it continues as new, those of the next run, too.",
            negative="",
        ),
    ] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Print the history of a run, one event per line.

    In a pipe or file, and with --follow, the columns have tabs between them. With --json, the command prints the events as
    Amazon SWF writes them, in an array; with --follow, an object per line.

    EXIT CODES
      0 printed, 3 no server, 4 no such run
    """
    client, rows, events = server.client(), EventRows(), list[dict[str, Any]]()
    has_head, follows_chain = False, follow and not (key.startswith("H:") and "@" in key)
    while True:
        page = call(client, ReadHistory(key, first, limit=PAGE_LIMIT, native=not json))
        key = page.get("run") or key  # the next page of the same run, whatever run the handle means then
        new = page["items"] if json else [rows.row(event) for event in page["items"]]
        first += len(new)
        if not follow:
            events += new
        elif json:
            for event in new:
                print_json(event)
        else:
            _print_lines(new if has_head else [dict(zip(EVENT_COLUMNS, EVENT_COLUMNS, strict=True)), *new])
            has_head = True
        if page["next"] is not None:
            continue
        if follows_chain and page.get("next_run"):
            key, first, rows = page["next_run"], 1, EventRows()
            continue
        if not follow or page["status"] not in UNFINISHED:
            break
        time.sleep(INTERVAL)
    if not follow and json:
        print_json(events)
    elif not follow:
        print_table(EVENT_COLUMNS, events)
    return EXIT_DONE


def _print_lines(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        sys.stdout.write("\t".join(printable(row[column]) for column in EVENT_COLUMNS) + "\n")
    sys.stdout.flush()


def export(
    key: Key,
    /,
    *,
    output: Annotated[
        Path | None,
        plain(("--output", "-o"), "The file to write; by default standard output.", metavar="FILE"),
    ] = None,
    redact: Annotated[
        bool,
        plain(
            "--redact",
            "Leave out the values of arguments, results, signals and errors. Names, times and the digests of these values stay.",
            negative="",
        ),
    ] = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Write the history of a run as JSON, from which mainspring workflows replay can repeat it.

    EXAMPLES
      mainspring workflows export order-17 -o tests/histories/order-17.json

    EXIT CODES
      0 written, 3 no server, 4 no such run, or it has not begun
    """
    data = _read(server.client(), key, redact=redact)
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    else:
        output.write_bytes(data)
    return EXIT_DONE


def _read(client: Client, key: str, *, redact: bool = False) -> bytes:
    """Return the history of a run at a node, as the file of it."""
    rows = read_events(client, key)
    if not rows:
        raise NotFoundError(f"the run {key} has not begun, so it has no history: wait until it has")
    if redact:
        rows = [event_to_json(redacted_event(event_from_json(row))) for row in rows]
    return encode_history(rows)


def replay(
    *sources: Annotated[
        str,
        Parameter(
            name="HISTORY… APP",
            help="Files of mainspring workflows export, or keys of runs at the server; then the file or module that defines the"
            " App.",
        ),
    ],
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Compare the code of workflows with histories: with files without a server, with runs by their keys.

    The command runs the code of a workflow from its beginning and answers each call from the history. It executes no task and
    no step, and changes nothing. If the code makes other calls than the history has recorded, the command prints both sides of
    the first difference, with up to ten commands before and after it.

    EXAMPLES
      mainspring workflows replay tests/histories/*.json app.py
      mainspring workflows replay order-17 app.py

    EXIT CODES
      0 all agree, 1 code and history differ, 2 wrong usage, or a broken file, 3 no server, 4 no such run
    """
    # Loaded here, because the other commands about workflows do not need the code that runs workflows.
    from mainspring.worker.selector import load_registry  # noqa: PLC0415
    from mainspring.worker.workflows.replay_checks import replay_history  # noqa: PLC0415

    *keys, app = sources or ("",)
    if not keys:
        raise UsageError(
            "give histories, and after them the file of the App: mainspring workflows replay order-17.json app.py"
        )
    client: Client | None = None
    found: list[HistoryFile] = []
    for key in keys:
        if _is_file(key):
            found.append(_read_file(key))
        else:
            client = client or server.client()
            found.append(decode_history(_read(client, key), f"the history of {key}"))
    registry = load_registry(app)
    outcomes = [(one, replay_history(registry, one)) for one in found]
    if json:
        print_json([_to_json(*outcome) for outcome in outcomes])
    else:
        for one, replayed in outcomes:
            _print(one, replayed)
    return EXIT_FAILED if any(replayed.difference for _, replayed in outcomes) else EXIT_DONE


def _read_file(name: str) -> HistoryFile:
    try:
        data = Path(name).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"there is no file {name}: write one with mainspring workflows export KEY -o {name}") from None
    return decode_history(data, name)


def _is_file(key: str) -> bool:
    """Return whether a history is in a file. Keys may contain slashes, but end otherwise than files of histories."""
    return Path(key).exists() or key.endswith(".json") or key.startswith((".", os.sep))


def _print(found: HistoryFile, replayed: Replayed) -> None:
    difference = replayed.difference
    counts = f"{printable(found.name)}: {replayed.events} events, {replayed.decisions} decisions"
    if difference is None:
        print(f"ok {counts}", flush=True)
        return
    print(f"differs {counts}: {printable(difference.message)}")
    if found.redacted:
        print("the history is redacted: the code may have taken another way, because it got no real values")
    if difference.recorded or difference.code:
        print_difference(_sides(difference))
    sys.stdout.flush()


def _to_json(found: HistoryFile, replayed: Replayed) -> dict[str, Any]:
    difference = replayed.difference
    return {
        "id": found.name,
        "type": found.type,
        "version": found.version,
        "events": replayed.events,
        "decisions": replayed.decisions,
        "redacted": found.redacted,
        "difference": None if difference is None else _sides(difference),
    }


def _sides(parked: Parked) -> dict[str, Any]:
    return {
        "kind": parked.kind,
        "message": parked.message,
        "recorded": list(parked.recorded),
        "code": list(parked.code),
        "at": parked.at,
    }


VERSION_COLUMNS: Final = ("type", "version", "open", "parked", "workers", "last_seen_at", "note")
VERSION_SHRINK_STEPS: Final[tuple[Step, ...]] = (
    {"last_seen_at": AS_AGE},
    {"type": 24},
    {"last_seen_at": LEFT_OUT},
    {"type": 1},
)
WORKER_COLUMNS: Final = ("worker", "node", "versions", "state", "runs", "size", "limit", "hits", "replays", "evictions")
WORKER_STEPS: Final[tuple[Step, ...]] = (
    {"versions": 40},
    {"limit": LEFT_OUT},
    {"versions": 20},
    {"evictions": LEFT_OUT},
    {"hits": LEFT_OUT},
    {"node": LEFT_OUT},
    {"versions": 8},
)


def versions(
    name: Annotated[str | None, Parameter(help="List only versions of this workflow.", show_default=False)] = None,
    /,
    *,
    remove: Annotated[
        str | None,
        plain("--remove", "Remove this version of the workflow, which has no open runs and no workers any more."),
    ] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """List the versions of workflows with their open runs and connected workers, newest version first.

    The note "new runs" marks the version with which runs begin if none is stated. The note "not needed" marks versions without
    open runs: you can delete their code, and remove them from this list once no worker has it any more.

    EXAMPLES
      mainspring workflows versions order
      mainspring workflows versions order --remove 1

    EXIT CODES
      0 done
      1 the version is needed
      2 wrong usage
      3 no server
      4 no worker has ever registered the workflow, or its version
    """
    client = server.client()
    if remove is not None:
        if name is None:
            raise UsageError(
                "--remove needs the name of the workflow: mainspring workflows versions NAME --remove VERSION"
            )
        return print_answer(client, RemoveVersion(name, remove), _print_removed, json=json)
    listed = list(items(client, ListVersions(name)))
    print_rows(
        VERSION_COLUMNS,
        listed if json else [row | {"note": _note(row)} for row in listed],
        json=json,
        steps=VERSION_SHRINK_STEPS,
    )
    return EXIT_DONE


def workers(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the connected workers that decide runs, and the runs in their memory.

    The workers of other nodes are shown as of their last heartbeats, at most 200 of each. A worker that is connected to several
    nodes is listed for each of them.

    "runs" and "size" are what a worker process has in memory, "limit" is its --workflow-cache, and "evictions" counts the runs
    that left it because it was full. Of the decisions of a process, "hits" are those of runs in memory, and "replays" those for
    which it replayed a history. These numbers are up to 10 seconds old. The state "full" means that all places for decisions are
    taken: the worker gets no further decision until one of them ends.
    """
    listed = list(items(server.client(), ListDeciders()))
    print_rows(WORKER_COLUMNS, listed if json else [_shown(row) for row in listed], json=json, steps=WORKER_STEPS)
    return EXIT_DONE


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    cache = row["cache"] or {}
    sizes = {"size": cache.get("bytes"), "limit": cache.get("limit")}
    return {
        "worker": row["worker"],
        "node": row.get("node"),
        "versions": " ".join(row["versions"]),
        "state": "draining" if row["draining"] else "full" if row.get("full") else None,
        **{name: cache.get(name) for name in ("runs", "hits", "replays", "evictions")},
        **{name: None if size is None else format_size(size) for name, size in sizes.items()},
    }


def _note(row: dict[str, Any]) -> str | None:
    if row["gets_new_runs"]:
        return "new runs"
    return None if row["needed"] else "not needed"


def _print_removed(row: dict[str, Any]) -> None:
    print(f"{row['type']}\t{row['version']}\t{row['state']}")
