"""``mainspring functions``: list, limit, pause and resume functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from mainspring.api.functions import (
    Acknowledge,
    LimitFunction,
    ListFunctions,
    PauseFunction,
    ReadErrors,
    ReadFunctionSeries,
    ResumeFunction,
    ShowFunction,
)
from mainspring.cli.calls import NOTHING, Given, call, check_exists, items, print_answer, takes
from mainspring.cli.display import EXIT_DONE, print_fields, print_json, print_table
from mainspring.cli.options import LOCAL, Json, ServerOptions, plain
from mainspring.quantities import format_rate

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
Create = Annotated[bool, plain("--create", "Accept a function that has no jobs, workers or limits yet.", negative="")]

functions = App(name="functions", help="List, limit, pause and resume functions, and show their past.")


@functions.command(name="list")
def list_functions(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the functions with jobs, workers or limits.

    The note "no worker" means that jobs wait, and no worker of any node has registered the function.
    """
    found = items(server.client(), ListFunctions())  # servers of older versions return all in one page, unordered
    listed = sorted(found, key=lambda function: str(function["function"]))
    if json:
        print_json(listed)
    else:
        print_table(COLUMNS, [_shown(function) | {"note": _note(function)} for function in listed])
    return EXIT_DONE


@functions.command
def show(function: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show a function's limits, and how many jobs and workers it has.

    EXIT CODES
      0 shown, 3 no server, 4 no such function
    """
    return print_answer(server.client(), ShowFunction(function), _print, json=json)


@functions.command
@takes(LimitFunction)
def limit(
    function: Name,
    /,
    *,
    given: Given = NOTHING,
    create: Create = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Set the limits of a function. They replace the limits that its workers declare.

    Limits that are not given do not change. The limits apply on all nodes within seconds, until you change them. Jobs that run
    already continue.

    A workflow has no limits: limit the tasks that its runs call.

    EXAMPLES
      mainspring functions limit thumbnail --concurrency 10 --concurrency-per-key 2
      mainspring functions limit mail --rate 100/1m --rate-per-key 10/1m,1
      mainspring functions limit mail --rate none

    EXIT CODES
      0 limited, 3 no server, 4 the function has no jobs, workers or limits: see --create
    """
    request = LimitFunction(function, **given)
    return print_answer(_checked_client(server, function, create=create), request, _print, json=json)


@functions.command
@takes(PauseFunction)
def pause(
    function: Name,
    /,
    *,
    given: Given = NOTHING,
    create: Create = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Pause a function: start no more of its jobs. Running jobs continue; clients can still submit jobs, which wait.

    The pause applies on all nodes within seconds, and across restarts, until you resume the function or the time of --until.

    If the function is a workflow, its open runs go on, and no other run begins.

    EXIT CODES
      0 paused, 3 no server, 4 the function has no jobs, workers or limits: see --create
    """
    return print_answer(
        _checked_client(server, function, create=create), PauseFunction(function, **given), _print, json=json
    )


@functions.command
def resume(function: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Resume a paused function: its jobs start again."""
    return print_answer(server.client(), ResumeFunction(function), _print, json=json)


@functions.command
@takes(Acknowledge)
def acknowledge(
    function: Name,
    /,
    *,
    given: Given = NOTHING,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Acknowledge the failures of a function: the overview counts no trouble of it until its next failure.

    Its dead letters stay. Not for stores on ZooKeeper.

    EXIT CODES
      0 acknowledged, 3 no server, 4 no such function
    """
    return print_answer(server.client(), Acknowledge(function, **given), print_fields, json=json)


SERIES_COLUMNS = ("at", "submitted", "succeeded", "failed", "retried", "wait_p50", "wait_p95", "run_p50", "run_p95")
ERROR_COLUMNS = ("number", "type", "last_at", "handle", "message")


@functions.command
def series(
    function: Name,
    /,
    *,
    half_hours: Annotated[
        bool, plain("--half-hours", "Print the last 48 half hours, in place of the last 60 minutes.", negative="")
    ] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Print what happened to a function's jobs in each of the last 60 minutes, at all nodes.

    Nodes write their numbers every 5 seconds. Minutes without jobs are left out, except with --json. The last columns are times
    in the queue and durations of attempts in seconds: half of them, and 95%, were shorter.
    """
    answer = call(server.client(), ReadFunctionSeries(function, "half_hour" if half_hours else "minute"))
    if json:
        print_json(answer)
    else:
        print_table(SERIES_COLUMNS, [_bucket(one) for one in answer["buckets"] if any(_numbers(one))])
    return EXIT_DONE


@functions.command
def errors(function: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Print the failed attempts of a function in the last 24 hours, at all nodes, grouped by type of error.

    The handle and the message are those of the last attempt with this error. Nodes write their numbers every 5 seconds.
    """
    answer = call(server.client(), ReadErrors(function))
    if json:
        print_json(answer)
    else:
        print_table(ERROR_COLUMNS, answer["errors"])
    return EXIT_DONE


def _numbers(bucket: dict[str, Any]) -> list[int]:
    return [number for key, number in bucket.items() if isinstance(number, int) and key != "waiting"]


def _bucket(bucket: dict[str, Any]) -> dict[str, Any]:
    durations = {
        f"{kind}_{key}": None if bucket[kind] is None else f"{bucket[kind][key]:.3g}"
        for kind in ("wait", "run")
        for key in ("p50", "p95")
    }
    return bucket | durations


def _checked_client(server: ServerOptions, function: str, *, create: bool) -> Client:
    """Return a client. Unless ``create``, raises NotFoundError if the function has no jobs, workers or limits."""
    client = server.client()
    if not create:
        check_exists(client, function)
    return client


def _note(function: dict[str, Any]) -> str | None:
    return "no worker" if function["waiting"] and function.get("registered") is False else None


def _shown(function: dict[str, Any]) -> dict[str, Any]:
    rates = {name: format_rate(function[name]) for name in ("rate", "rate_per_key")}
    return function | rates | {"paused": "paused" if function["paused"] else None}


def _print(function: dict[str, Any]) -> None:
    print_fields(_shown(function))
