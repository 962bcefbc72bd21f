"""Changes of many jobs: count them, ask for confirmation, start the operation, and show its progress."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from mainspring.api.job_filters import JobCriteria
from mainspring.api.operations import ActionName, Show, Start
from mainspring.cli.calls import call
from mainspring.cli.display import print_fields, print_json, print_table, printable
from mainspring.cli.failures import EXIT_DONE, EXIT_FAILED, print_error
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mainspring.cli.job_selection import JobSelection, OperationOptions
    from mainspring.client.blocking import Client

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
    selection: JobSelection,
    options: OperationOptions,
    *,
    reason: str | None,
    json: bool,
) -> int:
    """Change the jobs with some handles, or those that match the criteria; return the exit code."""
    criteria = selection.criteria()
    if handles and criteria != JobCriteria():
        raise UsageError("name jobs by their handles or by a filter, not by both")
    if not handles and criteria == JobCriteria():
        raise UsageError("name the jobs: by handles, or by a filter such as --function or --state")
    request = Start(
        action,
        filter=None if handles else criteria,
        handles=list(handles) or None,
        expect=options.expect,
        reason=reason or "",
        rate=options.rate,
    )
    if options.dry_run or _has_user(options):
        counted = call(client, replace(request, dry_run=True))
        if options.dry_run:
            _print_count(action, counted, json=json)
            return EXIT_DONE
        if not counted["matched"]:
            print_error(NOTHING_MATCHES)
            return EXIT_DONE
        if not _confirmed(action, counted):
            print_error("nothing was changed")
            return EXIT_FAILED
    return follow(client, call(client, request)["id"], json=json)


def _has_user(options: OperationOptions) -> bool:
    """Return whether a user at a terminal has to confirm."""
    return not options.yes and sys.stdin.isatty()


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


def follow(client: Client, name: str, *, json: bool) -> int:
    """Show the progress of an operation until it ends, and then its result; return the exit code."""
    try:
        with _progress() as show:
            while True:
                operation = call(client, Show(name))
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
