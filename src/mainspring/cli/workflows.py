"""``mainspring workflows``: start, list, show and follow runs, and send them signals and other requests."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from cyclopts import App, Parameter

from mainspring.api.workflows import (
    AnyStatus,
    Cancel,
    ChildPolicyName,
    History,
    List,
    Show,
    Signal,
    Start,
    Terminate,
    UnbegunStatus,
    Unpark,
)
from mainspring.cli.calls import call, print_answer
from mainspring.cli.display import print_json, print_rows, print_table, printable
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.options import DURATION_OPTION, LOCAL, Json, ServerOptions, plain, reading
from mainspring.cli.run_views import EVENT_COLUMNS, EventRows, print_run
from mainspring.cli.submit import parse_time, write_result
from mainspring.cli.table_fit import AS_AGE, LEFT_OUT, Step
from mainspring.cli.workflow_following import UNFINISHED, follow_run
from mainspring.cli.workflow_histories import Key, export, replay
from mainspring.cli.workflow_versions import versions, workers
from mainspring.errors import UsageError

COLUMNS: Final = (
    "handle",
    "workflow_id",
    "type",
    "version",
    "status",
    "started_at",
    "closed_at",
    "events",
    "waits_for",
)
SHRINK_STEPS: Final[tuple[Step, ...]] = (
    {"started_at": AS_AGE, "closed_at": AS_AGE},
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
FOLLOW_INTERVAL: Final = 0.5
"""Seconds between two requests of ``history --follow``."""

Reason = Annotated[str, plain("--reason", "A text to store in the history.")]

workflows = App(name="workflows", help="Start, list, show, signal, cancel and end runs of workflows.", version_flags=())


def parse_json(text: str) -> bytes:
    """Return JSON unchanged; ``-`` reads it from standard input. Raises UsageError for other text."""
    data = sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"the input is not JSON ({error}); write text in double quotes inside single ones: '\"text\"'"
        ) from None
    return data


@workflows.command
def start(
    name: Annotated[str, Parameter(help="The workflow to run.")],
    /,
    *,
    id: Annotated[  # noqa: A002 - the option's name
        str,
        plain(
            "--id",
            "The workflow id, by default the handle. If a run with this id is open, the command joins it instead of starting"
            " a second one.",
        ),
    ] = "",
    args: Annotated[
        str | None,
        plain("--args", "The arguments as JSON, or - for standard input.", metavar="JSON", allow_leading_hyphen=True),
    ] = None,
    version: Annotated[str, plain("--version", "The version of the workflow, by default the newest.")] = "",
    timeout: Annotated[
        float | None,
        plain("--timeout", "End the run if it lasts longer; by default as the workflow defines.", **DURATION_OPTION),
    ] = None,
    priority: Annotated[
        Literal["high", "normal", "low"], Parameter(name="--priority", help="Runs of a higher priority go on first.")
    ] = "normal",
    wait: Annotated[bool, plain("--wait", "Wait for the result and write it to standard output.", negative="")] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Start a run of a workflow, and print its handle and its workflow id.

    The arguments are JSON: an object is passed as keyword arguments, an array as positional arguments, and any other value as
    the only argument.

    If you interrupt the command while it waits, the run goes on.

    EXAMPLES
      mainspring workflows start order --id order-17 --args '[17, ["cat", "owl"]]'
      mainspring workflows start report --wait

    EXIT CODES
      0 started; with --wait, the run succeeded
      1 with --wait, the run failed, was cancelled or was ended
      2 wrong usage
      3 no server
      4 no worker has ever registered the workflow, or its version
    """
    payload = msgspec.UNSET if args is None else parse_json(args)
    request = Start(name, id, version, timeout, priority, payload_base64=payload)
    client = server.client()
    started = call(client, request)
    if wait:
        more = {key: started[key] for key in ("run", "workflow_id", "joined")}
        return write_result(client, started["handle"], None, json=more if json else None)
    if json:
        print_json(started)
    else:
        print(f"{started['handle']}\t{printable(started['workflow_id'])}", flush=True)
    return EXIT_DONE


@workflows.command(name="list")
def list_runs(
    *,
    open: Annotated[bool, plain("--open", "List only open runs.", negative="")] = False,  # noqa: A002
    closed: Annotated[bool, plain("--closed", "List only closed runs.", negative="")] = False,
    parked: Annotated[
        bool,
        plain("--parked", "List only parked runs: their code cannot make the next decision.", negative=""),
    ] = False,
    stranded: Annotated[
        bool,
        plain(
            "--stranded",
            "List only stranded runs: they have waited for a minute, because no worker with their version is connected.",
            negative="",
        ),
    ] = False,
    type: Annotated[str | None, plain("--type", "List only runs of this workflow.")] = None,  # noqa: A002
    id: Annotated[str | None, plain("--id", "List only runs with this workflow id.")] = None,  # noqa: A002
    status: Annotated[
        AnyStatus | None,
        plain(
            "--status",
            "List only runs with this status; scheduled and pending runs have not begun, because their start is delayed or"
            " the workflow is paused.",
        ),
    ] = None,
    since: Annotated[
        float | None,
        plain(
            "--since",
            "List only runs that started at this time or later, such as 2030-01-31T12:00:00Z.",
            converter=reading(parse_time),
            metavar="TIME",
        ),
    ] = None,
    limit: Annotated[int, Parameter(name="--limit", help="The most runs to list, up to 1000.")] = 100,
    before: Annotated[
        str | None, plain("--before", "List only runs older than the run with this handle: the next page.")
    ] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """List runs, newest first.

    Give at most one of --open, --closed, --parked, --stranded and --status.

    On a terminal, the command prints a table with the columns that fit. In a pipe or file, it prints a line with the columns'
    names, then a line per run with tabs between all columns. With --json, it prints an array.

    EXAMPLES
      mainspring workflows list --parked
      mainspring workflows list --type order --since 2030-01-31T12:00:00Z --json
    """
    request = List(open, closed, parked, stranded, type, id, status, since, limit, before)
    print_rows(COLUMNS, call(server.client(), request)["runs"], json=json, steps=SHRINK_STEPS)
    return EXIT_DONE


@workflows.command
def show(
    key: Key,
    /,
    *,
    follow: Annotated[
        bool, plain("--follow", "Print a line for each change, until the run is closed.", negative="")
    ] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Show all details of a run: its open activities, children and timers, its signals, its progress, and why it is parked.

    With --follow, the command prints status, number of events, progress and waits_for, with tabs between them, now and after each
    change; with --json, too, all details, an object per line.

    If a run is parked because its code makes other decisions than its history has recorded, the command prints both sides.

    EXIT CODES
      0 shown, 3 no server, 4 no such run
    """
    if not follow:
        return print_answer(server.client(), Show(key), print_run, json=json)
    follow_run(server.client(), key, json=json)
    return EXIT_DONE


@workflows.command
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
        page = call(client, History(key, first, native=not json))
        key = page.get("run") or key  # the next page of the same run, whatever run the handle means then
        new = page["events"] if json else [rows.row(event) for event in page["events"]]
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
        time.sleep(FOLLOW_INTERVAL)
    if not follow and json:
        print_json(events)
    elif not follow:
        print_table(EVENT_COLUMNS, events)
    return EXIT_DONE


def _print_lines(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        sys.stdout.write("\t".join(printable(row[column]) for column in EVENT_COLUMNS) + "\n")
    sys.stdout.flush()


@workflows.command(usage="mainspring workflows signal KEY NAME [JSON | -] [OPTIONS]")
def signal(
    key: Key,
    name: Annotated[str, Parameter(help="The name of the signal.")],
    value: Annotated[
        str | None,
        Parameter(
            name="JSON",
            help="The value of the signal as JSON, by default none, which the code receives as None; - for standard input.",
            show_default=False,
            allow_leading_hyphen=True,
        ),
    ] = None,
    /,
    *,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Send a signal to a run.

    The command prints nothing. When it has ended, the signal is on disk, and the run takes it in the order of arrival. If the run
    has not begun, it takes the signal when it begins; a note on standard error says so.

    EXAMPLES
      mainspring workflows signal order-17 approved '{"by": "eva"}'

    EXIT CODES
      0 sent, 1 the run is closed, or its history is full, 2 wrong usage, 3 no server, 4 no such run
    """
    if not name:
        raise UsageError("the signal has no name: give the name with which the code declares it")
    request = Signal(key, name, payload_base64=msgspec.UNSET if value is None else parse_json(value))
    return print_answer(server.client(), request, _print_unbegun, json=json)


@workflows.command
def cancel(key: Key, /, *, reason: Reason = "", json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Ask a run to cancel itself, and print its handle and status.

    The run's code can clean up: it stays "open" until it has ended. To end it at once, use mainspring workflows terminate.

    EXIT CODES
      0 asked, or canceled, 1 the run is closed, 3 no server, 4 no such run
    """
    return print_answer(server.client(), Cancel(key, reason), _print_reached, json=json)


@workflows.command
def terminate(
    key: Key,
    /,
    *,
    reason: Reason = "",
    children: Annotated[
        ChildPolicyName | None,
        Parameter(
            name="--children",
            help="The fate of its open children: they are terminated, asked to cancel themselves, or go on. By default their"
            " own child policies say so.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """End a run at once, without its code, and print its handle and status.

    Its activities that have not started are cancelled, and the workers of the others are asked to stop. The children of its
    children follow the child policies that their own parents have chosen.

    EXIT CODES
      0 ended, 1 the run is closed, 3 no server, 4 no such run
    """
    return print_answer(server.client(), Terminate(key, reason, children), _print_reached, json=json)


@workflows.command(usage="mainspring workflows unpark KEY | --all")
def unpark(
    key: Annotated[str | None, Parameter(help="The run: its handle or its workflow id.", show_default=False)] = None,
    /,
    *,
    all: Annotated[bool, plain("--all", "Unpark all runs.", negative="")] = False,  # noqa: A002 - the option's name
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Let the code of a parked run try again, and print the number of runs.

    A parked run goes on by itself when a worker with other code connects. Use this command after you have changed something
    else, such as a file that the code reads.

    EXIT CODES
      0 done, even if the run was not parked, 2 wrong usage, 3 no server, 4 no such run
    """
    if (key is None) is not all:
        raise UsageError("give a run, or --all for all parked runs; mainspring workflows list --parked lists them")
    return print_answer(server.client(), Unpark(key, all), lambda answer: print(answer["number"]), json=json)


def _print_unbegun(run: dict[str, Any]) -> None:
    """Explain what becomes of a signal to a run that has not begun."""
    if run["status"] in get_args(UnbegunStatus):
        print(
            f"({printable(run['handle'])} is {run['status']}: its run takes the signal when it begins. If a worker ends the job"
            " as a task, the signal is deleted.)",
            file=sys.stderr,
            flush=True,
        )


def _print_reached(run: dict[str, Any]) -> None:
    print(f"{run['handle']}\t{run['status']}", flush=True)


workflows.command(export)
workflows.command(replay, usage="mainspring workflows replay FILE|KEY... FILE.py[:NAME] [OPTIONS]")
workflows.command(versions)
workflows.command(workers)
