"""``mainspring jobs``: list, show, watch and change jobs."""

from __future__ import annotations

import base64
import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from mainspring.api import jobs as requests
from mainspring.api.jobs import (
    CancelJob,
    CloneJob,
    DeleteJob,
    ListAttempts,
    ListJobs,
    RetryJob,
    ShowArguments,
    ShowJob,
    UpdateJob,
    WatchJobs,
)
from mainspring.api.request import JobCriteria
from mainspring.cli.calls import (
    NOTHING,
    Given,
    ListSearch,
    add_made,
    arguments_of,
    call,
    print_answer,
    send_each,
    takes,
)
from mainspring.cli.display import (
    AS_AGE,
    EXIT_DONE,
    LEFT_OUT,
    Step,
    print_error,
    print_groups,
    print_json,
    print_rows,
    printable,
    progress_text,
    with_durations,
)
from mainspring.cli.job_output import follow, handle_of, json_text, logs, stream, values
from mainspring.cli.operations import (
    Handle,
    Yes,
    change_jobs,
    takes_operation,
    takes_selection,
)
from mainspring.cli.options import DURATION_OPTION, LOCAL, Cursor, Json, ServerOptions, plain
from mainspring.cli.submit import write_result
from mainspring.errors import MainspringError, UsageError
from mainspring.jobs.user_data import check_tags

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Handles = Annotated[
    tuple[str, ...], Parameter(name="HANDLE", help="The jobs' handles.", negative="", show_default=False)
]


@takes(CancelJob, "reason")
@takes_operation
@takes_selection
def cancel(
    handles: Handles = (),
    /,
    *,
    given: Given = NOTHING,
    selection: Given = NOTHING,
    options: Given = NOTHING,
    yes: Yes = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Cancel jobs: those with the handles, or all that match a filter.

    A job that has not started is cancelled at once. For a running job, the server asks the worker to stop; the job's state stays
    "running" until it has stopped. A job that has ended does not change.

    A run of a workflow is asked to cancel itself, as by mainspring workflows cancel.

    With a filter, the server changes the jobs in an operation, step by step, and the command shows its progress. At a terminal,
    the command asks for confirmation. mainspring operations list shows all operations.

    EXAMPLES
      mainspring jobs cancel H:laptop:1000000000001
      mainspring jobs cancel --function thumbnail --created-before 2030-01-31T12:00:00Z --dry-run
    """
    if not handles or selection or options or yes:
        return change_jobs(server.client(), "cancel", handles, selection, options, yes=yes, json=json, **given)
    return send_each([CancelJob(handle, **given) for handle in handles], "handle", server, json=json)


@takes(RetryJob, "delay", "args")
@takes_operation
@takes_selection
def retry(
    handles: Handles = (),
    /,
    *,
    given: Given = NOTHING,
    selection: Given = NOTHING,
    options: Given = NOTHING,
    yes: Yes = False,
    reason: Annotated[str | None, plain("--reason", "A text to store with the operation.")] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Put failed, cancelled or expired jobs back into the queue, and count their attempts from 1.

    A run of a workflow cannot be retried: start another one with mainspring workflows start.

    The jobs are those with the handles, or all that match a filter. With a filter, the server changes the jobs in an operation,
    step by step, and the command shows its progress. At a terminal, the command asks for confirmation.

    EXAMPLES
      mainspring jobs retry H:laptop:1000000000001
      mainspring jobs retry --state failed --error TimeoutError --rate 100
    """
    if not handles or reason is not None or selection or options or yes:
        if given:
            raise UsageError("--args and --delay are for jobs that are named by their handles")
        return change_jobs(server.client(), "retry", handles, selection, options, yes=yes, reason=reason, json=json)
    return send_each([RetryJob(handle, **given) for handle in handles], "handle", server, json=json)


@takes(UpdateJob, "priority", "run_at", "expires_at", "start_within", "deadline")
def update(
    handles: Handles,
    /,
    *,
    given: Given = NOTHING,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Change the priority or the times of jobs that have not started, or by when jobs should end.

    All other values of the jobs stay as they are. To change a job's arguments or tags, cancel the job and clone it.

    EXAMPLES
      mainspring jobs update H:node:1000000000001 --priority high
      mainspring jobs update H:node:1000000000001 --run-at 2030-01-31T12:00:00Z --expires-at none
      mainspring jobs update H:node:1000000000001 --deadline 2h
    """
    if not given:
        raise UsageError("nothing changes: give --priority, --run-at, --expires-at, --start-within or --deadline")
    return send_each([UpdateJob(handle, **given) for handle in handles], "handle", server, json=json)


@takes(CloneJob)
def clone(
    handle: Handle,
    /,
    *,
    given: Given = NOTHING,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Submit a new job like another one, and print its handle.

    The other job may be in any state. If its arguments are not kept, as those of a job that has succeeded with more than 1 KiB,
    give --args.
    """
    if "delay" in given and "run_at" in given:
        raise UsageError("--delay and --run-at exclude each other: give only one of them")
    if "tags" in given:
        given["tags"] = check_tags(given["tags"], "--tag")
    return print_answer(
        server.client(), CloneJob(handle, **given), lambda answer: print(answer["handle"], flush=True), json=json
    )


@takes_operation
@takes_selection
def delete(
    handles: Handles = (),
    /,
    *,
    selection: Given = NOTHING,
    options: Given = NOTHING,
    yes: Yes = False,
    reason: Annotated[str | None, plain("--reason", "A text to store with the operation.")] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Delete ended jobs with their results: those with the handles, or all that match a filter.

    Jobs that have not ended are not deleted: cancel them first. With a filter, the server deletes the jobs in an operation, step
    by step, and the command shows its progress. At a terminal, the command asks for confirmation.

    EXAMPLES
      mainspring jobs delete --state failed --function thumbnail --dry-run
    """
    if not handles or reason is not None or selection or options or yes:
        return change_jobs(server.client(), "delete", handles, selection, options, yes=yes, reason=reason, json=json)
    return send_each([DeleteJob(handle) for handle in handles], "handle", server, json=json)


FIELD_GROUPS = (
    ("handle", "function", "state", "error"),
    ("attempt", "max_attempts", "worker", "progress"),
    ("created_at", "run_at", "expires_at", "started_at", "ended_at", "timeout"),
    ("start_by", "deadline_at", "overdue_since"),
    ("awaits_until", "completion"),
    ("unique", "priority", "concurrency_key", "tags", "schedule", "fire_time", "run", "input_size", "output_size"),
)
"""The fields of a job that belong together: its state, its attempts, its times, and how it was submitted."""
_PROGRESS = ("done", "total", "text")
_NOTHING: tuple[object, ...] = (None, "", [], 0)
COLUMNS = (
    "handle",
    "function",
    "unique",
    "state",
    "priority",
    "attempt",
    "created_at",
    "started_at",
    "ended_at",
    "error",
)


def _columns(found: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return the columns of a list: since when jobs are overdue, and until when they await their completion, only if one does."""
    return (*COLUMNS, *(name for name in ("overdue_since", "awaits_until") if any(one.get(name) for one in found)))


ATTEMPT_COLUMNS = (
    "number",
    "outcome",
    "started_at",
    "ended_at",
    "duration",
    "node",
    "worker",
    "error_type",
    "error",
)
WORK_COLUMNS = ("number", "state", "key", "meta", "began_at", "looked_at", "problem", "canceller", "answered_at")

TIME_COLUMNS = ("created_at", "started_at", "ended_at")
SHRINK_STEPS: tuple[Step, ...] = (
    {"error": 40},
    dict.fromkeys((*TIME_COLUMNS, "overdue_since", "awaits_until"), AS_AGE),
    {"function": 24, "unique": 16},
    {"priority": LEFT_OUT},
    {"started_at": LEFT_OUT},
    {"unique": LEFT_OUT},
    {"attempt": LEFT_OUT},
    {"ended_at": LEFT_OUT},
    {"function": 12, "error": 20},
    {"created_at": LEFT_OUT},
    {"error": LEFT_OUT},
    {"function": 1},
)
"""The order in which the list shrinks on a terminal. Handles and states stay whole, so that users can copy a handle."""

jobs = App(name="jobs", help="List, show, watch and change jobs.")
jobs.command(logs)
jobs.command(values, usage="mainspring jobs values KEY [NAME] [OPTIONS]")
jobs.command(stream, usage="mainspring jobs stream KEY [NAME] [OPTIONS]")
jobs.command(follow)
jobs.command(cancel)
jobs.command(retry)
jobs.command(update)
jobs.command(clone)
jobs.command(delete)
add_made(jobs, requests)


@jobs.command(name="list")
@takes(JobCriteria)
def list_jobs(
    *,
    given: Given = NOTHING,
    limit: Annotated[int, Parameter(name="--limit", help="The most jobs to list, up to 1000.")] = 100,
    cursor: Cursor = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """List jobs, newest first.

    On a terminal, the command prints a table with the columns that fit. In a pipe or file, it prints a line with the columns'
    names, then a line per job with tabs between all columns. With --json, it prints an array. There is a column overdue_since
    if one of the jobs is overdue.

    The search takes a while if only few of very many jobs match. If you interrupt it, it prints the jobs that it has found
    and how to continue.

    EXAMPLES
      mainspring jobs list --state failed
      mainspring jobs list --function thumbnail --limit 10 --json
      mainspring jobs list --state failed --error TimeoutError --created-after 2030-01-31T12:00:00Z
    """
    search = ListSearch(server.client(), ListJobs(cursor=cursor, limit=limit, **given))
    try:
        search.run()
    except (KeyboardInterrupt, MainspringError):
        if search.next is not None:
            print_rows(_columns(search.found), search.found, json=json, steps=SHRINK_STEPS)
            print_error(f"searched back to jobs of {search.searched_to}; continue with --cursor {search.next}")
        raise
    print_rows(_columns(search.found), search.found, json=json, steps=SHRINK_STEPS)
    search.print_next()
    return EXIT_DONE


@jobs.command
def show(
    handle: Handle,
    /,
    *,
    args: Annotated[bool, plain(("--args", "--arguments"), "Show the job's arguments too.", negative="")] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Show all details of a job, and its attempts.

    Arguments of at most 1 KiB are kept when a job has succeeded, unless the node has other rules (--keep-arguments). Values that
    the node redacts (--redact) are not shown.

    EXIT CODES
      0 shown, 3 no server, 4 no such job
    """
    client = server.client()
    job = call(client, ShowJob(handle))
    with contextlib.suppress(UsageError):  # servers of earlier versions have no records
        job |= {"attempts": call(client, ListAttempts(handle))["attempts"]}
    if args:
        job |= {"arguments": call(client, ShowArguments(handle))}
    if json:
        print_json(job)
    else:
        _print_job(job)
    return EXIT_DONE


@jobs.command
def watch(
    handle: Annotated[str | None, Parameter(help="Watch only this job.", show_default=False)] = None,
    /,
    *,
    function: Annotated[str | None, plain("--function", "Watch only jobs of this function.")] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Print a line for each change of a job's state, until interrupted.

    The server reports only changes that it makes itself. If several nodes share a store, connect to the node of the job's
    worker. With --json, the command prints an object per line.
    """
    client = server.client()
    if handle is not None:
        call(client, ShowJob(handle))  # raises NotFoundError for an unknown handle, which would otherwise wait for ever
    try:
        for event in client.events(WatchJobs.call, arguments_of(WatchJobs(function, handle))):
            if json:
                print_json(event)
            elif "missed" in event:
                print(f"({event['missed']} changes were missed: this command read too slowly)", file=sys.stderr)
            else:
                _print_change(event)
    except KeyboardInterrupt:
        pass
    return EXIT_DONE


@jobs.command
def result(
    key: Annotated[
        str,
        Parameter(
            name="HANDLE|KEY",
            help="The job's handle, such as H:node:1000000000001; or the workflow id of a run, which then has the result.",
        ),
    ],
    /,
    *,
    timeout: Annotated[
        float | None, plain("--timeout", "Wait at most this long for the job to end.", **DURATION_OPTION)
    ] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Wait for a job to end and write its raw result to standard output.

    EXIT CODES
      0 the job succeeded
      1 it failed, was cancelled or expired
      3 no server
      4 no such job or run, or the server no longer has its result
      5 --timeout is over; the job continues
    """
    client = server.client()
    return write_result(client, handle_of(client, key), timeout, json={} if json else None)


def _print_job(job: dict[str, Any]) -> None:
    traceback, attempts = job.pop("traceback", None), job.pop("attempts", None)
    arguments, works = job.pop("arguments", None), job.pop("works", None)
    print_groups(_groups(with_durations(job, "timeout")))
    if traceback:
        print("\n" + "\n".join(_safe(line) for line in traceback.splitlines()))
    if arguments is not None:
        print(f"\narguments: {_arguments_text(arguments)}")
    if attempts:
        print()
        print_rows(ATTEMPT_COLUMNS, attempts, json=False)
    if works:
        print()
        shown = [one | {"meta": None if one["meta"] is None else json_text(one["meta"])} for one in works]
        print_rows(WORK_COLUMNS, shown, json=False)


def _completion_text(token: dict[str, Any]) -> str:
    """Return the newest completion token of a job as one line."""
    text = f"token {token['number']}: {token['state']}; asked for at {token['since']}, until {token['expires_at']}"
    if token["alive_until"]:
        text += f", if a sign of life comes by {token['alive_until']}"
    if token["late_answers"]:
        number = token["late_answers"]
        text += f"; {number} late answer{'s' * (number > 1)}, the last at {token['last_late_at']}"
    return text


def _groups(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the fields of a job in groups, without the empty ones; those of later versions are the last group."""
    left = {name: value for name, value in job.items() if value not in _NOTHING and name not in _PROGRESS}
    if job.get("total") or job.get("text"):
        left["progress"] = progress_text({"done": job["done"], "total": job["total"], "text": job.get("text")})
    if job.get("completion"):
        left["completion"] = _completion_text(job["completion"])
    for names in FIELD_GROUPS:
        yield {name: left.pop(name) for name in names if name in left}
    yield left


def _arguments_text(arguments: dict[str, Any]) -> str:
    """Return arguments on one line."""
    if "encoded" in arguments:
        return printable(arguments["encoded"])
    if "value" in arguments:
        return printable(msgspec.json.encode(arguments["value"]).decode())
    if "payload" in arguments:
        return printable(base64.b64decode(arguments["payload"]).decode("utf-8", "backslashreplace"))
    size = arguments["size"]
    if arguments["redacted"]:
        return f"{size} bytes, which the node withholds because they are not JSON"
    if arguments["kept"]:
        return f"{size} bytes, too many to show" if size else "none"
    return f"{size} bytes, which are no longer kept"


def _safe(line: str) -> str:
    return printable(line) if line else ""


def _print_change(job: dict[str, Any]) -> None:
    columns = ("handle", "function", "state", "attempt", "error")
    print("\t".join(printable(job.get(column)) for column in columns), flush=True)
