"""``mainspring events``: what has happened to jobs, runs, schedules and other objects."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from mainspring.api.events import END, FollowEvents, ListCursors, ListEvents, ListEventTypes, RemoveCursor
from mainspring.api.jobs import LONGEST_WAIT
from mainspring.api.request import PAGE_LIMIT
from mainspring.cli.calls import NOTHING, Given, call, items, print_answer, takes
from mainspring.cli.display import EXIT_DONE, print_error, print_fields, print_json, print_rows, printable
from mainspring.cli.options import LOCAL, Json, ServerOptions, plain
from mainspring.client.session import delays
from mainspring.errors import ConnectionLostError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.client.blocking import Client

COLUMNS: Final = ("id", "time", "type", "function", "about", "data")
CURSOR_COLUMNS: Final = ("name", "place", "last", "function", "tag", "types")
TYPE_COLUMNS: Final = ("type", "about", "fields")

events = App(name="events", help="List and follow what happens to jobs, runs, schedules and other objects.")
cursors = App(name="cursors", help="List and remove the cursors of programs that read events.")
events.command(cursors)


@events.command(name="list")
@takes(ListEvents)
def list_events(
    *,
    given: Given = NOTHING,
    limit: Annotated[int, Parameter(name="--limit", help="The most to list.")] = 100,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """List the newest events, newest first.

    Events are recorded only if somebody wants them: a listener, a webhook, a program, or mainspring events follow. A server
    keeps them for its --event-retention, by default 7 days.

    EXAMPLES
      mainspring events list --type 'job.*' --function 'pay*'
      mainspring events list --job H:laptop:3000000000017 --json

    EXIT CODES
      0 listed, 2 there is no such type, 3 no server
    """
    found = list(items(server.client(), ListEvents(**given), limit))
    print_rows(COLUMNS, found if json else [_row(event) for event in found], json=json)
    return EXIT_DONE


@events.command
@takes(FollowEvents)
def follow(
    *,
    given: Given = NOTHING,
    after: Annotated[
        str | None, plain("--after", "Begin behind the event with this id; without it, with those from now on.")
    ] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Print events as they happen, each on a line, until you interrupt the command.

    If the connection ends, the command goes on behind the last event, at any server of the store. If events were deleted
    meanwhile, it says so. With --json, it prints an object per event; the id of the last one is a value for --after.

    EXAMPLES
      mainspring events follow --type job.failed --type run.failed
      mainspring events follow --json --after 4711 >> events.ndjson

    EXIT CODES
      2 there is no such type, 3 no server
    """
    request = ListEvents(**given, after=after or END, limit=PAGE_LIMIT)
    for event in _following(server.client(), request):
        if json:
            print_json(event)
        else:
            row = _row(event)
            sys.stdout.write(" ".join(printable(row[name]) for name in COLUMNS if row[name]) + "\n")
            sys.stdout.flush()
    return EXIT_DONE


def _following(client: Client, request: ListEvents) -> Iterator[dict[str, Any]]:
    """Yield events without end. Raises the error of the first request; later ones are repeated while no server answers."""
    answer = call(client, request)
    waits, is_lost = delays(), False
    while True:
        yield from answer["items"]
        request.after, request.order, request.wait = answer["last"], None, LONGEST_WAIT
        try:
            answer = call(client, request)
        except ConnectionLostError as error:
            if not is_lost:
                print_error(f"{error}; the command goes on behind event {request.after} when a server answers")
            is_lost = True
            time.sleep(next(waits))
            answer = {"items": [], "last": request.after}
            continue
        except NotFoundError as error:
            print_error(str(error))
            request.after, request.order, request.wait = None, "oldest", 0.0
            answer = call(client, request)
        waits, is_lost = delays(), False


def _row(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event as people read it: the object that it is about in one column, and its data in another."""
    data = {name: " ".join(value) if isinstance(value, list) else value for name, value in event["data"].items()}
    return event | {"about": event["job"] or event["subject"], "data": data or None}


@events.command
def types(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the types of events, with the fields that each has."""
    found = list(items(server.client(), ListEventTypes()))
    shown = found if json else [one | {"fields": " ".join(one["fields"])} for one in found]
    print_rows(TYPE_COLUMNS, shown, json=json)
    return EXIT_DONE


@cursors.command(name="list")
def list_cursors(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the cursors of programs that read events, with the number of the last event that each has read.

    Events are recorded for a cursor until you remove it.
    """
    found = list(items(server.client(), ListCursors()))
    print_rows(CURSOR_COLUMNS, found if json else [_cursor(one) for one in found], json=json)
    return EXIT_DONE


@cursors.command
def remove(
    name: Annotated[str, Parameter(help="The name of the cursor.")],
    /,
    *,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Remove a cursor. A program that still uses it begins anew.

    EXIT CODES
      0 removed, 3 no server, 4 no such cursor
    """
    return print_answer(server.client(), RemoveCursor(name), lambda one: print_fields(_cursor(one)), json=json)


def _cursor(one: dict[str, Any]) -> dict[str, Any]:
    return one | {"types": " ".join(one["types"])}
