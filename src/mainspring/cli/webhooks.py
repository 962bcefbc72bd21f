"""``mainspring webhooks``: add, list, show, edit, pause, resume, test and remove webhooks, and deliver events again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from mainspring.api.jobs import ListJobs
from mainspring.api.webhooks import (
    AddWebhook,
    EditWebhook,
    ListWebhooks,
    PauseWebhook,
    RedeliverWebhook,
    RemoveWebhook,
    ResumeWebhook,
    RotateWebhook,
    ShowWebhook,
    TryWebhook,
)
from mainspring.cli.calls import (
    NOTHING,
    Given,
    ListSearch,
    arguments_of,
    call,
    items,
    print_answer,
    takes,
)
from mainspring.cli.display import (
    EXIT_DONE,
    EXIT_FAILED,
    LEFT_OUT,
    Step,
    print_error,
    print_fields,
    print_json,
    print_rows,
)
from mainspring.cli.options import LOCAL, Cursor, Json, ServerOptions, plain
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLUMNS = (
    *("name", "state", "url", "types", "functions", "tags"),
    *("format", "delivered", "behind", "failures", "missed", "paused"),
)
SHRINK_STEPS: tuple[Step, ...] = (
    {"format": LEFT_OUT},
    {"missed": LEFT_OUT, "tags": LEFT_OUT},
    {"types": 24, "functions": 16},
    {"delivered": LEFT_OUT},
    {"paused": 16},
    {"functions": LEFT_OUT},
    {"url": 24},
    {"types": 12},
)
"""The order in which the list shrinks on a terminal. Names stay whole, so that users can copy them."""
DELIVERY_COLUMNS = ("handle", "state", "attempt", "created_at", "ended_at", "error")
TEST_TIMEOUT = 30.0
"""Seconds: a receiver has 20."""

Name = Annotated[str, Parameter(help="The webhook's name.")]
HeaderLines = Annotated[
    tuple[str, ...],
    plain(
        "--header",
        "A header of each message, such as 'X-Team: shop'; may be repeated. Other users of this machine see command lines: put a"
        " header with a secret into a file.",
        negative="",
    ),
]
HeaderFile = Annotated[Path | None, plain("--header-file", "A file with headers, one a line, or - for standard input.")]

webhooks = App(name="webhooks", help="Add, list, change, pause, test and remove webhooks.")


@webhooks.command(name="list")
def list_webhooks(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the webhooks, with how far each one is.

    Events up to the number "delivered" are jobs of the webhook, or were not for it. "behind" counts the later ones that are for
    it, and "failures" the messages that were given up since the last one that was delivered. Events up to "missed" were deleted
    before they could be delivered. URLs are shown without their paths, which may be secrets.
    """
    rows = [one if json else _shown(one) for one in items(server.client(), ListWebhooks())]
    print_rows(COLUMNS, rows, json=json, steps=SHRINK_STEPS)
    return EXIT_DONE


@webhooks.command
def show(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show a webhook. Its secret and the values of its headers are not shown.

    EXIT CODES
      0 shown, 3 no server, 4 no such webhook
    """
    return print_answer(server.client(), ShowWebhook(name), _print, json=json)


@webhooks.command
@takes(AddWebhook)
def add(
    name: Name,
    /,
    *,
    given: Given = NOTHING,
    header: HeaderLines = (),
    header_file: HeaderFile = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Add a webhook for the events from now on, and print its secret, which is shown this once.

    Each event becomes a message, which the nodes send until the receiver answers with 2xx, for 72 hours. The receiver verifies
    it with the secret and a library of Standard Webhooks.

    EXAMPLES
      mainspring webhooks add crm --url https://crm.example.com/events --type "job.*" --function "pay*"
      mainspring webhooks add chat --url "$SLACK_URL" --type job.failed --type run.failed --template slack

    EXIT CODES
      0 added, 1 a webhook of this name exists, 2 wrong usage, 3 no server
    """
    request = AddWebhook(name=name, **{**given, **_headers(header, header_file)})
    return print_answer(server.client(), request, _print_secret, json=json)


@webhooks.command
@takes(EditWebhook)
def edit(
    name: Name,
    /,
    *,
    given: Given = NOTHING,
    header: HeaderLines = (),
    header_file: HeaderFile = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Change the given options of a webhook, and keep the others.

    Given types replace all earlier ones, and so do functions, tags and headers.
    """
    request = EditWebhook(name=name, **{**given, **_headers(header, header_file)})
    if arguments_of(request).keys() == {"name"}:
        raise UsageError("no option to change is given; mainspring webhooks edit --help lists them")
    return print_answer(server.client(), request, _print_state, json=json)


@webhooks.command
@takes(PauseWebhook)
def pause(name: Name, /, *, given: Given = NOTHING, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Pause a webhook: deliver no more events to it until you resume it.

    Events of the pause are delivered once it is resumed, as far as they are kept until then.
    """
    return print_answer(server.client(), PauseWebhook(name, **given), _print_state, json=json)


@webhooks.command
def resume(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Resume a paused webhook. It also gets the events of the pause, within some minutes."""
    return print_answer(server.client(), ResumeWebhook(name), _print_state, json=json)


@webhooks.command(name="test")
def send_test(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Send a message of the type webhook.test now, once, and print what the receiver answers.

    EXIT CODES
      0 the receiver has taken it, 1 it has not, 3 no server, 4 no such webhook
    """
    answer = call(server.client(), TryWebhook(name), TEST_TIMEOUT)
    if json:
        print_json(answer)
    else:
        status = answer["error"] or answer["status"]
        print(f"{answer['name']}\t{status}\t{answer['seconds']:.3f}s\t{answer['excerpt'] or '-'}", flush=True)
    return EXIT_DONE if answer["succeeded"] else EXIT_FAILED


@webhooks.command
@takes(RedeliverWebhook, "since", "until")
def redeliver(
    name: Name,
    handles: Annotated[
        tuple[str, ...], Parameter(name="HANDLE", help="Deliveries, by the handles of their jobs.", negative="")
    ] = (),
    /,
    *,
    given: Given = NOTHING,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Deliver events once more, with the ids that they had: receivers recognise them by these.

    EXAMPLES
      mainspring webhooks redeliver crm H:node:1000000000001
      mainspring webhooks redeliver crm --since 2030-01-31T12:00:00Z --until 2030-01-31T13:00:00Z
    """
    client = server.client()
    requests = [RedeliverWebhook(name, handle=one) for one in handles]
    if given or not requests:
        requests.append(RedeliverWebhook(name, **given))
    for request in requests:
        answer = call(client, request)
        while True:
            if json:
                print_json(answer)
            else:
                print(f"{answer['name']}\t{answer['events']}\t{answer['handle'] or '-'}", flush=True)
            if answer["next"] is None:
                break
            answer = call(client, RedeliverWebhook(name, since=answer["next"], until=request.until))
    return EXIT_DONE


@webhooks.command
def deliveries(
    name: Name,
    /,
    *,
    state: Annotated[
        tuple[str, ...], plain("--state", "Only deliveries in this state; may be repeated.", negative="")
    ] = (),
    limit: Annotated[int, Parameter(name="--limit", help="The most deliveries to show, up to 1000.")] = 100,
    cursor: Cursor = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """List the deliveries of a webhook: the jobs of its function.

    mainspring jobs show HANDLE shows all attempts of one, and its result the answer of the receiver.
    """
    client = server.client()
    function = call(client, ShowWebhook(name))["function"]
    request = ListJobs(function=function, state=list(state) or None, cursor=cursor, limit=limit)
    search = ListSearch(client, request)
    search.run()
    print_rows(DELIVERY_COLUMNS, search.found, json=json)
    search.print_next()
    return EXIT_DONE


@webhooks.command
@takes(RotateWebhook)
def rotate(name: Name, /, *, given: Given = NOTHING, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Give a webhook a new secret, and print it: it is shown this once.

    The old secret signs beside it for --overlap, so that receivers change theirs meanwhile.
    """
    return print_answer(server.client(), RotateWebhook(name, **given), _print_secret, json=json)


@webhooks.command
def remove(name: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Remove a webhook, and cancel its deliveries that wait."""
    return print_answer(server.client(), RemoveWebhook(name), _print_state, json=json)


def _headers(lines: Sequence[str], file: Path | None) -> Given:
    """Return the headers of a request, if some are given. Raises UsageError."""
    if file is not None:
        try:
            text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the file with headers cannot be read: {error}") from None
        lines = [*lines, *(line for line in text.splitlines() if line.strip())]
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise UsageError("a header is written as NAME: VALUE")
        headers[name.strip()] = value.strip()
    return {"headers": headers} if lines else {}


def _shown(one: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, **{name: " ".join(one[name]) for name in ("types", "functions", "tags", "headers")}}


def _print(one: Mapping[str, Any]) -> None:
    print_fields(_shown(one))


def _print_state(one: Mapping[str, Any]) -> None:
    print(f"{one['name']}\t{one['state']}", flush=True)


def _print_secret(one: Mapping[str, Any]) -> None:
    """Print the secret alone, so that a command substitution has it."""
    print(one["secret"], flush=True)
    print_error("keep this secret: it is not shown again")
