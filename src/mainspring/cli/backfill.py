"""``mainspring schedules backfill``: run a schedule for its past fire times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter

from mainspring.api.backfills import Backfill
from mainspring.cli.bulk import follow, number_of
from mainspring.cli.calls import call
from mainspring.cli.display import print_json
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.options import LOCAL, TIME_OPTION, Json, ServerOptions, at_least, count, plain


def backfill(
    name: Annotated[str, Parameter(help="The schedule's name.")],
    /,
    *,
    first: Annotated[
        float, plain("--from", "The first time that may run, such as 2030-01-31T12:00:00Z.", **TIME_OPTION)
    ],
    last: Annotated[float | None, plain("--to", "The last time that may run; by default now.", **TIME_OPTION)] = None,
    most: Annotated[
        int | None,
        plain(
            "--max",
            "Run nothing if the range has more times than this.",
            metavar="TIMES",
            **at_least(0, count, str, "is no number of times"),
        ),
    ] = None,
    rate: Annotated[float | None, plain("--rate", "Run at most this many times per second.", metavar="TIMES")] = None,
    reason: Annotated[str | None, plain("--reason", "A text to store with the operation.")] = None,
    dry_run: Annotated[
        bool, plain("--dry-run", "Only count the times in the range, and show ten.", negative="")
    ] = False,
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
    request = Backfill(
        name=name,
        from_=_time(first),
        to=None if last is None else _time(last),
        max=most,
        dry_run=dry_run,
        reason=reason or "",
        rate=rate,
    )
    begun = call(client, request)
    if not dry_run:
        return follow(client, begun["id"], json=json)
    if json:
        print_json(begun)
        return EXIT_DONE
    print(f"backfill: {number_of(begun['matched'], 'time', is_least=begun['at_least'])}; nothing was run")
    for time in begun["times"]:
        print(time)
    return EXIT_DONE


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
