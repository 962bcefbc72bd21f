"""``mainspring operations``: list, show, follow and abort operations on many jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from mainspring.api.operations import Abort, Jobs, List, Show
from mainspring.cli.bulk import follow as follow_operation
from mainspring.cli.calls import call, items, print_answer
from mainspring.cli.display import print_fields, print_rows, printable
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.options import LOCAL, Json, ServerOptions, plain

if TYPE_CHECKING:
    from mainspring.cli.table_fit import Step

COLUMNS = ("id", "action", "state", "done", "matched", "created_at", "ended_at", "created_by", "reason")
SHRINK_STEPS: tuple[Step, ...] = ({"reason": 30},)

Name = Annotated[str, Parameter(name="OPERATION", help="The operation, such as op-1000000000001.")]

operations = App(name="operations", help="List, show and abort operations on many jobs.")


@operations.command(name="list")
def list_operations(
    *,
    limit: Annotated[int, Parameter(name="--limit", help="The most operations to list, up to 1000.")] = 100,
    before: Annotated[
        str | None, plain("--before", "List only operations that were started before this one: the next page.")
    ] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """List operations, newest first. The server keeps them as long as dead letters."""
    answer = call(server.client(), List(limit=limit, before=before))
    print_rows(COLUMNS, answer["operations"], json=json)
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
        return follow_operation(server.client(), operation, json=json)
    return print_answer(server.client(), Show(operation), _print, json=json)


@operations.command
def jobs(operation: Name, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the jobs that an operation has changed, or could not change, with their outcomes."""
    print_rows(("handle", "outcome"), list(items(server.client(), Jobs(operation), "jobs")), json=json)
    return EXIT_DONE


@operations.command
def abort(
    operation: Name,
    /,
    *,
    reason: Annotated[str | None, plain("--reason", "A text to store with the operation.")] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """End an operation early. Jobs that it has changed stay changed."""
    return print_answer(server.client(), Abort(operation, reason or ""), _print, json=json)


def _print(operation: dict[str, Any]) -> None:
    failures = operation.pop("failures", [])
    print_fields(operation)
    for failure in failures:
        print(f"  {failure['handle']}  {failure['outcome']}  {printable(failure['message'])}")
