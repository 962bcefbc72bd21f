"""Operations on many jobs: ``mainspring operations``, ``schedules backfill``, and all commands that change many jobs.

The jobs are given by handle or by criteria. `change_jobs` counts them, asks for confirmation, starts the operation, and shows
its progress.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, Group, Parameter
from msgspec.structs import replace

from mainspring.api.operations import (
    AbortOperation,
    ActionName,
    Backfill,
    ListOperationJobs,
    ListOperations,
    ShowOperation,
    StartOperation,
)
from mainspring.api.request import JobCriteria
from mainspring.cli.calls import NOTHING, Given, ListSearch, call, items, print_answer, takes
from mainspring.cli.display import (
    EXIT_DONE,
    EXIT_FAILED,
    print_error,
    print_fields,
    print_json,
    print_rows,
    print_table,
    printable,
)
from mainspring.cli.options import LOCAL, Cursor, Json, ServerOptions, plain
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mainspring.cli.display import Step
    from mainspring.client.blocking import Client

FILTER_GROUP = Group("Jobs by filter", sort_key=1)
OPERATION_GROUP = Group("Operation", sort_key=2)

Handle = Annotated[str, Parameter(help="The job's handle, such as H:node:1000000000001.")]
State = Literal["scheduled", "pending", "leased", "running", "succeeded", "failed", "cancelled", "expired"]


Yes = Annotated[bool, plain("--yes", "Do not ask for confirmation at a terminal.", negative="", group=OPERATION_GROUP)]

takes_operation: Final = takes(StartOperation, "dry_run", "expect", "rate", into="options", group=OPERATION_GROUP)
"""Gives a command the options of operations, in its argument ``options``."""
takes_selection: Final = takes(JobCriteria, into="selection", group=FILTER_GROUP)
"""Gives a command the criteria that select jobs, in its argument ``selection``. A job has to meet all of them."""

POLL_DELAY: Final = 0.3
"""Seconds between two requests for the progress of an operation."""
LINE_DELAY: Final = 5.0
"""Seconds between two lines about the progress, where no terminal shows it."""
TYPED_FROM: Final = 100
"""Jobs from which a user confirms by typing their number."""
NOTHING_MATCHES: Final = "no job matches: nothing was changed"
NO_TIMES: Final = "the schedule has no time in this range: nothing was run"
SAMPLE_COLUMNS: Final = ("handle", "function", "state", "created_at", "error")


def change_jobs(
    client: Client,
    action: ActionName,
    handles: Sequence[str],
    selection: Given,
    options: Given,
    *,
    yes: bool,
    json: bool,
    reason: str | None = None,
) -> int:
    """Change the jobs with some handles, or those that match the criteria; return the exit code."""
    criteria = JobCriteria(**selection)
    if handles and criteria != JobCriteria():
        raise UsageError("name jobs by their handles or by a filter, not by both")
    if not handles and criteria == JobCriteria():
        raise UsageError("name the jobs: by handles, or by a filter such as --function or --state")
    request = StartOperation(
        action,
        filter=None if handles else criteria,
        handles=list(handles) or None,
        reason=reason or "",
        **options,
    )
    if request.dry_run or (not yes and sys.stdin.isatty()):
        counted = call(client, replace(request, dry_run=True))
        if request.dry_run:
            _print_count(action, counted, json=json)
            return EXIT_DONE
        if not counted["matched"]:
            print_error(NOTHING_MATCHES)
            return EXIT_DONE
        if not _confirmed(action, counted):
            print_error("nothing was changed")
            return EXIT_FAILED
    return show_progress(client, call(client, request)["id"], json=json)


def number_of(matched: int, noun: str = "job", *, is_least: bool) -> str:
    """Return a number of jobs, or of other things, for people."""
    return f"{'≥ ' if is_least else ''}{matched:,} {noun}{'' if matched == 1 and not is_least else 's'}"


def _print_count(action: str, counted: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(counted)
        return
    matched = number_of(counted["matched"], is_least=counted["at_least"])
    verb = "matches" if matched == "1 job" else "match"
    print(f"{action}: {matched} {verb}; nothing was changed")
    if counted["sample"]:
        print_table(SAMPLE_COLUMNS, counted["sample"])


def _confirmed(action: str, counted: dict[str, Any]) -> bool:
    """Return whether the user at the terminal confirms the operation; many jobs by typing their number."""
    matched = counted["matched"]
    question = f"{action} {number_of(matched, is_least=counted['at_least'])}"
    if matched < TYPED_FROM:
        answer = _ask(f"{question}? [y/N] ")
        return answer.lower() in {"y", "yes"}
    return _ask(f"{question}? Type {matched} to confirm: ").replace(",", "") == str(matched)


def _ask(question: str) -> str:
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def show_progress(client: Client, name: str, *, json: bool) -> int:
    """Show the progress of an operation until it ends, and then its result; return the exit code."""
    try:
        with _progress() as show:
            while True:
                operation = call(client, ShowOperation(name))
                show(operation)
                if operation["state"] != "running":
                    break
                time.sleep(POLL_DELAY)
    except KeyboardInterrupt:
        print_error(f"the operation goes on; end it with: mainspring operations abort {name}")
        raise
    if json:
        print_json(operation)
    else:
        print_result(operation)
        if not operation["matched"]:
            print_error(NO_TIMES if operation["action"] == "backfill" else NOTHING_MATCHES)
    failed = operation["state"] != "done" or bool(operation["failures"])
    return EXIT_FAILED if failed else EXIT_DONE


def print_result(operation: dict[str, Any]) -> None:
    """Print the number of jobs by outcome, and the failures on standard error."""
    fields = {"operation": operation["id"], "state": operation["state"]}
    if operation["why"]:
        fields["why"] = operation["why"]
    print_fields(fields | operation["outcomes"])
    for failure in operation["failures"]:
        print_error(f"{failure['handle']}: {printable(failure['message'])}")


@contextmanager
def _progress() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show the progress on standard error: a bar at a terminal, else a line from time to time."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console  # noqa: PLC0415 - slow to load, and for terminals only
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def show(operation: dict[str, Any]) -> None:
            total = None if operation["at_least"] else operation["matched"]
            text = f"{operation['action']} {operation['done']:,}"
            progress.update(task, completed=operation["done"], total=total, description=text)

        yield show


def _lines() -> Callable[[dict[str, Any]], None]:
    shown_at = time.monotonic()

    def show(operation: dict[str, Any]) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= LINE_DELAY:
            shown_at = time.monotonic()
            noun = "time" if operation["action"] == "backfill" else "job"
            of = number_of(operation["matched"], noun, is_least=operation["at_least"])
            print(f"{operation['id']}: {operation['action']} {operation['done']:,} of {of}", file=sys.stderr)

    return show


COLUMNS = ("id", "action", "state", "done", "matched", "created_at", "ended_at", "created_by", "reason")
SHRINK_STEPS: tuple[Step, ...] = ({"reason": 30},)

Name = Annotated[str, Parameter(name="OPERATION", help="The operation, such as op-1000000000001.")]

operations = App(name="operations", help="List, show and abort operations on many jobs.")


@operations.command(name="list")
def list_operations(
    *,
    limit: Annotated[int, Parameter(name="--limit", help="The most operations to list, up to 1000.")] = 100,
    cursor: Cursor = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """List operations, newest first. The server keeps them as long as dead letters."""
    search = ListSearch(server.client(), ListOperations(cursor, limit))
    search.run()
    print_rows(COLUMNS, search.found, json=json)
    search.print_next()
    return EXIT_DONE


@operations.command
def show(
    operation: Name,
    /,
    *,
    follow: Annotated[bool, plain("--follow", "Show the progress until the operation ends.", negative="")] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Show an operation: its filter, its progress, and the first jobs that it could not change.

    EXIT CODES
      0 shown
      1 --follow, and the operation did not change all of its jobs
      3 no server
      4 no such operation
    """
    if follow:
        return show_progress(server.client(), operation, json=json)
    return print_answer(server.client(), ShowOperation(operation), _print, json=json)


@operations.command
def jobs(operation: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the jobs that an operation has changed, or could not change, with their outcomes."""
    print_rows(("handle", "outcome"), list(items(server.client(), ListOperationJobs(operation))), json=json)
    return EXIT_DONE


@operations.command
@takes(AbortOperation)
def abort(
    operation: Name,
    /,
    *,
    given: Given = NOTHING,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """End an operation early. Jobs that it has changed stay changed."""
    return print_answer(server.client(), AbortOperation(operation, **given), _print, json=json)


def _print(operation: dict[str, Any]) -> None:
    failures = operation.pop("failures", [])
    print_fields(operation)
    for failure in failures:
        print(f"  {failure['handle']}  {failure['outcome']}  {printable(failure['message'])}")


@takes(Backfill)
def backfill(
    name: Annotated[str, Parameter(help="The schedule's name.")],
    /,
    *,
    given: Given,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Run a schedule for its past times that have not run, each once.

    These are times from before the schedule was added, and times that were skipped. Times on excluded days, and times whose
    history was deleted, do not run. The jobs have the past times as their fire times.

    The server runs them in an operation, step by step, and the command shows its progress. If you interrupt the command, the
    operation goes on; mainspring operations abort ends it.

    EXAMPLES
      mainspring schedules backfill nightly --from 2030-01-01T00:00:00Z --dry-run
      mainspring schedules backfill nightly --from 2030-01-01T00:00:00Z --to 2030-01-31T00:00:00Z --max 31

    EXIT CODES
      0 all times have had their turn
      1 they have not: the range has too many, or the operation ended early
      2 wrong usage
      3 no server
      4 no such schedule
    """
    client = server.client()
    request = Backfill(name=name, **given)
    begun = call(client, request)
    if not request.dry_run:
        return show_progress(client, begun["id"], json=json)
    if json:
        print_json(begun)
        return EXIT_DONE
    print(f"backfill: {number_of(begun['matched'], 'time', is_least=begun['at_least'])}; nothing was run")
    for fire_time in begun["times"]:
        print(fire_time)
    return EXIT_DONE
