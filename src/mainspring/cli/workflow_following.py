"""``mainspring workflows show --follow``: a line for each change of a run."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

from mainspring.api.workflows import Show
from mainspring.cli.calls import call
from mainspring.cli.display import print_json, printable
from mainspring.cli.run_views import progress_text

if TYPE_CHECKING:
    from mainspring.client.blocking import Client

COLUMNS: Final = ("status", "events", "progress", "waits_for")
UNFINISHED: Final = frozenset({"open", "scheduled", "pending"})
"""The statuses of runs that may get more events."""
INTERVAL: Final = 0.5
"""Seconds between two requests."""


def follow_run(client: Client, key: str, *, json: bool) -> None:
    """Print a run now and after each change, until it is closed: a line of columns, or with ``json`` an object."""
    if not json:
        _print(dict(zip(COLUMNS, COLUMNS, strict=True)))
    printed: Any = None
    while True:
        run = call(client, Show(key))
        row = {**run, "progress": progress_text(run.get("progress"))}
        shown = [row["run"], *(row[column] for column in COLUMNS[:3])]  # the time that timers have left always changes
        if shown != printed:
            printed = shown
            if json:
                print_json(run)
            else:
                _print(row)
        if run["status"] not in UNFINISHED:
            return
        time.sleep(INTERVAL)


def _print(row: dict[str, Any]) -> None:
    sys.stdout.write("\t".join(printable(row[column]) for column in COLUMNS) + "\n")
    sys.stdout.flush()
