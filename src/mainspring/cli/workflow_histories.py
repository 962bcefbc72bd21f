"""``mainspring workflows history``, ``export`` and ``replay``: print histories, write them to files, compare them with code."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from mainspring.api.workflows import History
from mainspring.cli.calls import call
from mainspring.cli.display import print_json, print_table, printable
from mainspring.cli.failures import EXIT_DONE, EXIT_FAILED
from mainspring.cli.options import LOCAL, Json, ServerOptions, plain
from mainspring.cli.run_views import EVENT_COLUMNS, EventRows, print_difference
from mainspring.cli.workflow_following import INTERVAL, UNFINISHED
from mainspring.client.histories import read_events
from mainspring.errors import NotFoundError, UsageError
from mainspring.workflows.history_files import (
    decode_history,
    encode_history,
    event_from_json,
    event_to_json,
    redacted_event,
)

if TYPE_CHECKING:
    from mainspring.client.blocking import Client
    from mainspring.deciding.replays import Replayed
    from mainspring.workflows.history_files import HistoryFile
    from mainspring.workflows.model import Parked

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
    from mainspring.worker.workflow_replays import replay_history  # noqa: PLC0415

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
        "workflow_id": found.name,
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
