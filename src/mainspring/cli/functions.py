"""``mainspring functions``: limit them, pause them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from mainspring.api.functions import Limit, List, Pause, Resume, Show
from mainspring.cli.asking import ask, print_answer
from mainspring.cli.display import print_fields, print_json, print_table
from mainspring.cli.failures import DONE
from mainspring.cli.options import LOCAL, Json, ServerOptions, plain, reading
from mainspring.cli.registered import check_known
from mainspring.errors import SettingsError
from mainspring.quantities import format_duration, parse_duration

if TYPE_CHECKING:
    from mainspring.client.blocking import Client

COLUMNS = (
    "function",
    "paused",
    "concurrency",
    "concurrency_per_key",
    "rate",
    "rate_per_key",
    "source",
    "waiting",
    "running",
    "workers",
    "note",
)

Name = Annotated[str, Parameter(help="The function's name.")]
Create = Annotated[
    bool, plain("--create", "Also for a function that the server does not know yet, as in scripts.", negative="")
]
_UNSAID = "unsaid"
_RATE = re.compile(r"(\d+)/([^,]+)(?:,(\d+))?")

functions = App(name="functions", help="Look at functions, limit them, pause them.")


def parse_number(text: str) -> int | None:
    """Return a limit: a number, or none."""
    if text == "none":
        return None
    if not text.isdigit() or len(text) > 9:
        raise SettingsError(f"{text!r} is no limit: write a number of jobs, or none")
    return int(text)


def parse_rate(text: str) -> dict[str, Any] | None:
    """Return a rate as the wire has it: ``100/1m``, ``100/1m,20`` where no more than 20 start at once, or none."""
    if text == "none":
        return None
    match = _RATE.fullmatch(text.strip())
    if match is None or len(match[1]) > 9 or len(match[3] or "") > 9:
        raise SettingsError(
            f"{text!r} is no rate: write jobs and a time, such as 100/1m, and a burst if need be: 100/1m,20"
        )
    burst = None if match[3] is None else int(match[3])
    return {"number": int(match[1]), "per": parse_duration(match[2]), "burst": burst}


def format_rate(rate: dict[str, Any] | None) -> str | None:
    """Write a rate as `parse_rate` reads it."""
    if rate is None:
        return None
    burst = "" if rate["burst"] == rate["number"] else f",{rate['burst']}"
    return f"{rate['number']}/{format_duration(rate['per'])}{burst}"


_NUMBER: dict[str, Any] = {"converter": reading(parse_number), "metavar": "JOBS"}
_RATES: dict[str, Any] = {"converter": reading(parse_rate), "metavar": "JOBS/DURATION"}


@functions.command(name="list")
def list_functions(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the functions that the server knows, with their limits and pauses.

    "no worker" is noted where jobs wait and no worker of any node has registered the function.
    """
    known = _all(server.client())
    if json:
        print_json(known)
    else:
        print_table(COLUMNS, [_shown(function) | {"note": _note(function)} for function in known])
    return DONE


def _all(client: Client) -> list[dict[str, Any]]:
    """Return all functions, in the order of their names. A node of an older version answers without pages."""
    known: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        answer = ask(client, List(after=after))
        known += answer["functions"]
        if answer.get("next") is None:
            return sorted(known, key=lambda function: str(function["function"]))
        after = answer["next"]


@functions.command
def show(function: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show a function's limits, and what it has to do.

    EXIT CODES
      0 shown, 3 no server, 4 no such function
    """
    return print_answer(server.client(), Show(function), _print, json=json)


@functions.command
def limit(
    function: Name,
    /,
    *,
    concurrency: Annotated[
        Any, plain("--concurrency", "How many of its jobs run at the same time, or none.", **_NUMBER)
    ] = _UNSAID,
    concurrency_per_key: Annotated[
        Any, plain(("--concurrency-per-key", "--per-key"), "The same for the jobs of one key.", **_NUMBER)
    ] = _UNSAID,
    rate: Annotated[
        Any, plain("--rate", "How many start in time: 100/1m, or 100/1m,20 to start 20 at once at most.", **_RATES)
    ] = _UNSAID,
    rate_per_key: Annotated[Any, plain("--rate-per-key", "The same for the jobs of one key.", **_RATES)] = _UNSAID,
    unlimited: Annotated[bool, plain("--unlimited", "No limit, whatever its workers declare.", negative="")] = False,
    declared: Annotated[bool, plain("--declared", "What its workers declare, again.", negative="")] = False,
    create: Create = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Limit a function, in place of what its workers declare; what is not said stays as it is.

    It holds on the whole fleet within seconds, and until it is said otherwise. Jobs that run already run on.

    EXAMPLES
      mainspring functions limit thumbnail --concurrency 10 --concurrency-per-key 2
      mainspring functions limit mail --rate 100/1m --rate-per-key 10/1m,1
      mainspring functions limit mail --rate none

    EXIT CODES
      0 limited, 3 no server, 4 no such function: without --create its jobs, workers or limits have to be known
    """
    asked: dict[str, Any] = {"concurrency": concurrency, "concurrency_per_key": concurrency_per_key}
    asked |= {"rate": rate, "rate_per_key": rate_per_key}
    given = {name: value for name, value in asked.items() if value != _UNSAID}
    request = Limit(function, **given, unlimited=unlimited, declared=declared)
    return print_answer(_knowing(server, function, create=create), request, _print, json=json)


@functions.command
def pause(function: Name, /, *, create: Create = False, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Let no more jobs of a function start. What runs runs on; new jobs are taken and wait.

    It holds on the whole fleet within seconds, and over restarts, until it is resumed.

    EXIT CODES
      0 paused, 3 no server, 4 no such function: without --create its jobs, workers or limits have to be known
    """
    return print_answer(_knowing(server, function, create=create), Pause(function), _print, json=json)


@functions.command
def resume(function: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Let jobs of a paused function start again."""
    return print_answer(server.client(), Resume(function), _print, json=json)


def _knowing(server: ServerOptions, function: str, *, create: bool) -> Client:
    """Return a client. Raises NotFoundError where its server does not know the function, unless ``create``."""
    client = server.client()
    if not create:
        check_known(client, function)
    return client


def _note(function: dict[str, Any]) -> str | None:
    return "no worker" if function["waiting"] and function.get("registered") is False else None


def _shown(function: dict[str, Any]) -> dict[str, Any]:
    rates = {name: format_rate(function[name]) for name in ("rate", "rate_per_key")}
    return function | rates | {"paused": "paused" if function["paused"] else None}


def _print(function: dict[str, Any]) -> None:
    print_fields(_shown(function))
