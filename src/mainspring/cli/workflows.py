"""``mainspring workflows``: start and show runs, and send them signals and other requests. Modules beside it read them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
from cyclopts import App, Parameter
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from mainspring.api.workflows import (
    CancelRun,
    MoveRun,
    PauseRun,
    RerunRun,
    ResetRun,
    ResumeRun,
    ShowRun,
    SignalRun,
    StartRun,
    TerminateRun,
    UnbegunStatus,
    UnparkAllRuns,
    UnparkRun,
)
from mainspring.cli.calls import NOTHING, Given, call, print_answer, takes
from mainspring.cli.display import EXIT_DONE, print_error, print_json, printable
from mainspring.cli.job_output import handle_of
from mainspring.cli.options import DURATION_OPTION, LOCAL, Json, ServerOptions, args_of, plain
from mainspring.cli.submit import write_result
from mainspring.cli.workflow_reading import (
    Key,
    export,
    follow_run,
    history,
    list_runs,
    print_run,
    replay,
    versions,
    workers,
)
from mainspring.errors import MainspringError, UsageError

if TYPE_CHECKING:
    from mainspring.client.blocking import Client

workflows = App(name="workflows", help="Start, list, show, signal, cancel and end runs of workflows.", version_flags=())


def json_of(argument: str | None) -> bytes | UnsetType:
    """Return JSON unchanged, as `args_of` returns arguments. Raises UsageError for other text."""
    data = args_of(argument, None)
    return UNSET if data is None else checked_json(data)


def checked_json(data: bytes | UnsetType) -> bytes | UnsetType:
    """Return JSON unchanged. Raises UsageError for other text."""
    if data is UNSET:
        return UNSET
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"the input is not JSON ({error}); write text in double quotes inside single ones: '\"text\"'"
        ) from None
    return data


@workflows.command(usage="mainspring workflows start NAME [ARGS | -] [OPTIONS]")
@takes(StartRun, "id", "args", "version", "timeout", "priority", "start_within", "deadline")
def start(
    name: Annotated[str, Parameter(help="The workflow to run.")],
    argument: Annotated[
        str | None,
        Parameter(
            name="ARGS",
            help="The arguments as JSON, or - for standard input.",
            show_default=False,
            allow_leading_hyphen=True,
        ),
    ] = None,
    /,
    *,
    given: Given = NOTHING,
    wait: Annotated[bool, plain("--wait", "Wait for the result and write it to standard output.", negative="")] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Start a run of a workflow, and print its handle and its workflow id.

    The arguments are JSON: an object is passed as keyword arguments, an array as positional arguments, and any other value as
    the only argument.

    If you interrupt the command while it waits, the run goes on.

    EXAMPLES
      mainspring workflows start order '[17, ["cat", "owl"]]' --id order-17
      mainspring workflows start report --wait

    EXIT CODES
      0 started; with --wait, the run succeeded
      1 with --wait, the run failed, was cancelled or was ended
      2 wrong usage
      3 no server
      4 no worker has ever registered the workflow, or its version
    """
    if argument is not None and "payload" in given:
        raise UsageError("the arguments are given twice: give ARGS or --args")
    payload = json_of(argument) if argument is not None else checked_json(given.pop("payload", UNSET))
    request = StartRun(name, payload=payload, **given)
    client = server.client()
    started = call(client, request)
    if wait:
        more: dict[str, Any] = {key: started[key] for key in ("run", "id", "joined")}
        return write_result(client, started["handle"], None, json=more if json else None)
    if json:
        print_json(started)
    else:
        print(f"{started['handle']}\t{printable(started['id'])}", flush=True)
    return EXIT_DONE


@workflows.command
def result(
    key: Key,
    /,
    *,
    timeout: Annotated[
        float | None, plain("--timeout", "Wait at most this long for the run to end.", **DURATION_OPTION)
    ] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Wait for a run to end and write its raw result to standard output.

    If the run continues as new, or another attempt follows, the result is that of the last one.

    EXIT CODES
      0 the run succeeded
      1 it failed, was cancelled or was ended
      3 no server
      4 no such run, or the server no longer has its result
      5 --timeout is over; the run goes on
    """
    client = server.client()
    return write_result(client, handle_of(client, key), timeout, json={} if json else None)


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
        return print_answer(server.client(), ShowRun(key), print_run, json=json)
    follow_run(server.client(), key, json=json)
    return EXIT_DONE


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
    has not begun, it takes the signal when it begins; a note on standard error says so, and if the run waits for signals of
    other names only.

    EXAMPLES
      mainspring workflows signal order-17 approved '{"by": "eva"}'

    EXIT CODES
      0 sent, 1 the run is closed, or its history is full, 2 wrong usage, 3 no server, 4 no such run
    """
    if not name:
        raise UsageError("the signal has no name: give the name with which the code declares it")
    request = SignalRun(key, name, payload=json_of(value))
    client = server.client()
    if names := _other_names(client, key, name):
        print(
            f"({printable(key)} waits for {', '.join(map(printable, names))}, and not for {printable(name)}: the signal waits"
            " until the code receives one of this name)",
            file=sys.stderr,
            flush=True,
        )
    return print_answer(client, request, _print_unbegun, json=json)


@workflows.command
@takes(CancelRun)
def cancel(key: Key, /, *, given: Given = NOTHING, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Ask a run to cancel itself, and print its handle and status.

    The run's code can clean up: it stays "open" until it has ended. To end it at once, use mainspring workflows terminate.

    EXIT CODES
      0 asked, or cancelled, 1 the run is closed, 3 no server, 4 no such run
    """
    return print_answer(server.client(), CancelRun(key, **given), _print_reached, json=json)


@workflows.command
@takes(TerminateRun)
def terminate(
    key: Key,
    /,
    *,
    given: Given = NOTHING,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """End a run at once, without its code, and print its handle and status.

    Its activities that have not started are cancelled, and the workers of the others are asked to stop. The children of its
    children follow the child policies that their own parents have chosen.

    EXIT CODES
      0 ended, 1 the run is closed, 3 no server, 4 no such run
    """
    return print_answer(server.client(), TerminateRun(key, **given), _print_reached, json=json)


@workflows.command(usage="mainspring workflows move KEY --version VERSION [OPTIONS]")
@takes(MoveRun)
def move(
    key: Key,
    /,
    *,
    given: Given,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Give a run another version, and print its handle and status.

    This is for runs that wait for a version without workers, such as after a rollback. It works as long as the run's code has
    recorded nothing. The run continues as new: its handle, its workflow id, its arguments and its signals stay.

    EXIT CODES
      0 moved, or it has the version, 1 the run is closed, has not begun, or its code has made decisions, 3 no server,
      4 no such run or version
    """
    return print_answer(server.client(), MoveRun(key, **given), _print_reached, json=json)


@workflows.command(usage="mainspring workflows reset KEY --before CALL | --last | … [OPTIONS]")
@takes(ResetRun)
def reset(
    key: Key,
    /,
    *,
    given: Given = NOTHING,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Make one of a run's decisions anew: a new run of the same workflow id repeats the decisions before it.

    The command first shows on standard error what the new run keeps and what it repeats, then prints its handle and its key. With
    --dry-run it only shows it, and changes nothing.

    An open run goes on as the new one, which its clients and its parent wait for. Its activities and children are ended. A closed
    run stays as it is.

    EXAMPLES
      mainspring workflows reset order-17 --last --dry-run
      mainspring workflows reset order-17 --before charge#2 --reason 'the price was wrong'

    EXIT CODES
      0 reset, 1 there is no such decision, or the workflow id has another open run, 2 wrong usage, 3 no server, 4 no such run
    """
    client = server.client()
    request = ResetRun(key, **given)
    planned = call(client, replace(request, dry_run=True))
    if not request.dry_run:
        print(_forked_text(planned), file=sys.stderr, flush=True)
        # The decision that was shown, and of the run that was shown: both may have gone on meanwhile.
        shown = replace(request, key=planned["source"], event=planned["event"], before=None, first=False, last=False)
        return print_answer(client, shown, _print_forked, json=json)
    if json:
        print_json(planned)
    else:
        print(_forked_text(planned), flush=True)
    return EXIT_DONE


@workflows.command(usage="mainspring workflows rerun KEY [OPTIONS]")
@takes(RerunRun, "args", "from_call", "repeat", "version", "drop_signals", "dry_run", "reason")
def rerun(
    key: Key,
    /,
    *,
    skip: Annotated[
        tuple[str, ...],
        plain(
            "--skip",
            "Give this call a result, which is JSON; it does not execute, whatever its arguments are.",
            metavar="CALL=JSON",
            negative="",
        ),
    ] = (),
    given: Given = NOTHING,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Run a workflow again with the results that a run of it has: a new run of the same workflow id, with today's code.

    Each call whose function and arguments are those of a call that has succeeded gets its result at once. The others execute:
    those that have failed, those with other arguments, and new ones. The command first shows on standard error what the new run
    has, then prints its handle and its key. With --dry-run it only shows it, and changes nothing.

    An open run goes on as the new one, which its clients and its parent wait for. Its activities and children are ended. A closed
    run stays as it is.

    EXAMPLES
      mainspring workflows rerun order-17 --dry-run
      mainspring workflows rerun order-17 --args '[17, ["cat"]]'
      mainspring workflows rerun order-17 --from charge#2 --skip 'notify=null'

    EXIT CODES
      0 begun, 1 there is no such call, or the workflow id has another open run, 2 wrong usage, 3 no server,
      4 no such run or version
    """
    payload = checked_json(given.pop("payload", UNSET))
    client = server.client()
    request = RerunRun(key, payload=payload, skip=_results(skip), **given)
    planned = call(client, replace(request, dry_run=True))
    if not request.dry_run:
        print(_forked_text(planned), file=sys.stderr, flush=True)
        return print_answer(client, replace(request, key=planned["source"]), _print_forked, json=json)
    if json:
        print_json(planned)
    else:
        print(_forked_text(planned), flush=True)
    return EXIT_DONE


def _results(given: tuple[str, ...]) -> dict[str, Any]:
    """Return the results of calls, each of which is given as ``CALL=JSON``. Raises UsageError."""
    results: dict[str, Any] = {}
    for text in given:
        name, sign, result = text.partition("=")
        if not sign or not name:
            raise UsageError(
                f"--skip {text!r}: write the call and its result as CALL=JSON, such as 'charge#2=\"paid\"'"
            )
        checked_json(result.encode())
        results[name] = msgspec.json.decode(result)
    return results


def _forked_text(forked: dict[str, Any]) -> str:
    """Return what a fork has, in lines."""
    results = _calls(forked["results"][::-1], forked["all_results"])
    repeated = _calls(forked["repeated"], forked["all_repeated"])
    if not forked["event"]:
        lines = [
            f"{printable(forked['source'])}: runs again with its results",
            f"takes over the results of {results}",
            f"executes, if the code calls it: {repeated}, and calls with other arguments",
            f"gets a given result: {_calls(forked['given'], len(forked['given']))}",
            f"repeats {forked['signals']} signals and drops {forked['dropped_signals']}",
        ]
        return "\n".join(lines)
    lines = [
        f"{printable(forked['source'])}: the decision of event {forked['event']} is made anew",
        f"keeps {forked['kept']} events and drops {forked['dropped']}; keeps the results of {results}",
        f"executes again, if the code calls it: {repeated}",
        f"repeats {forked['signals']} later signals and drops {forked['dropped_signals']}",
    ]
    return "\n".join(lines)


_MOST_CALLS = 20


def _calls(names: list[str], number: int) -> str:
    shown = ", ".join(map(printable, names[:_MOST_CALLS]))
    return f"{shown} and {number - _MOST_CALLS} more" if number > _MOST_CALLS else shown or "nothing"


def _print_forked(forked: dict[str, Any]) -> None:
    print(f"{forked['handle']}\t{forked['run']}", flush=True)


@workflows.command
@takes(PauseRun)
def pause(key: Key, /, *, given: Given = NOTHING, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Pause a run, and print its handle and status.

    Until it is resumed, workers get no decision of it, and none of its waiting activities starts. Those that run go on. It takes
    signals, and records timers and timeouts as they come. For a run that is paused, this changes the reason and the end.

    EXAMPLES
      mainspring workflows pause order-17 --reason "the bank is down" --until 2030-01-31T12:00:00Z

    EXIT CODES
      0 paused, 1 the run is closed or has not begun, 2 wrong usage, 3 no server, 4 no such run
    """
    return print_answer(server.client(), PauseRun(key, **given), _print_reached, json=json)


@workflows.command
def resume(key: Key, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Resume a paused run, and print its handle and status. Everything that has waited for it is due.

    EXIT CODES
      0 resumed, also if it was not paused, 1 the run is closed or has not begun, 3 no server, 4 no such run
    """
    return print_answer(server.client(), ResumeRun(key), _print_resumed, json=json)


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
    return print_answer(server.client(), UnparkAllRuns() if key is None else UnparkRun(key), _print_unparked, json=json)


def _print_unparked(answer: dict[str, Any]) -> None:
    print(answer["number"], flush=True)
    if not answer["number"]:
        print_error("no run is parked: nothing was changed")


def _other_names(client: Client, key: str, name: str) -> list[str]:
    """Return the names of the signals that an open run waits for, if it waits for some and the given name is none of them."""
    try:
        receives: list[str] = call(client, ShowRun(key)).get("receives") or []
    except MainspringError:  # the signal is refused for the same reason, or is another permission
        return []
    return [] if name in receives else receives


def _print_unbegun(run: dict[str, Any]) -> None:
    """Explain what becomes of a signal to a run that has not begun."""
    if run["status"] in get_args(UnbegunStatus):
        print(
            f"({printable(run['handle'])} is {run['status']}: its run takes the signal when it begins. If a worker ends the job"
            " as a task, the signal is deleted.)",
            file=sys.stderr,
            flush=True,
        )


def _print_resumed(run: dict[str, Any]) -> None:
    _print_reached(run)
    if run["repeated"]:
        print_error("the run was not paused: nothing was changed")


def _print_reached(run: dict[str, Any]) -> None:
    print(f"{run['handle']}\t{run['status']}", flush=True)


workflows.command(list_runs, name="list")
workflows.command(history)
workflows.command(export)
workflows.command(replay, usage="mainspring workflows replay FILE|KEY... FILE.py[:NAME] [OPTIONS]")
workflows.command(versions)
workflows.command(workers)
