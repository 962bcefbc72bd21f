"""``mainspring workflows list``."""

from __future__ import annotations

from typing import Annotated, Final, cast, get_args

from cyclopts import Parameter

from mainspring.api.workflows import AnyStatus, GivenStatus, List
from mainspring.cli.display import print_rows
from mainspring.cli.failures import EXIT_DONE, print_error
from mainspring.cli.list_search import ListSearch
from mainspring.cli.options import LOCAL, TIME_OPTION, Json, ServerOptions, plain, reading
from mainspring.cli.run_views import with_id
from mainspring.cli.table_fit import AS_AGE, LEFT_OUT, Step
from mainspring.errors import MainspringError, SettingsError

COLUMNS: Final = (
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


def _status(text: str) -> GivenStatus:
    """Return a status. Raises SettingsError. Scripts for earlier versions write ``canceled``."""
    if text not in get_args(GivenStatus):
        raise SettingsError(f"{text!r} is no status of a run: use one of {', '.join(get_args(AnyStatus))}")
    return cast("GivenStatus", text)


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
            converter=reading(_status),
        ),
    ] = None,
    since: Annotated[
        float | None,
        plain(
            "--since",
            "List only runs that started at this time or later, such as 2030-01-31T12:00:00Z.",
            **TIME_OPTION,
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

    The search takes a while if only few of very many runs match. If you interrupt it, it prints the runs that it has found
    and the handle at which to continue.

    EXAMPLES
      mainspring workflows list --parked
      mainspring workflows list --type order --since 2030-01-31T12:00:00Z --json
    """
    request = List(open, closed, parked, stranded, type, id, status, since, limit, before)
    search = ListSearch(server.client(), request, rows="runs", place="after")
    try:
        search.run()
    except (KeyboardInterrupt, MainspringError):
        if search.next is not None:
            print_rows(COLUMNS, [with_id(run) for run in search.found], json=json, steps=SHRINK_STEPS)
            print_error(f"searched back to runs of {search.searched_to}; continue with --before {search.next}")
        raise
    print_rows(COLUMNS, [with_id(run) for run in search.found], json=json, steps=SHRINK_STEPS)
    return EXIT_DONE
