"""``mainspring jobs cancel``, ``retry``, ``update``, ``snooze``, ``clone`` and ``delete``: change jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from msgspec import UNSET

from mainspring.api.job_changes import Clone, Delete, Snooze, Update
from mainspring.api.jobs import Cancel, Retry
from mainspring.cli.bulk import change_jobs
from mainspring.cli.calls import call, print_answer
from mainspring.cli.display import print_json
from mainspring.cli.failures import EXIT_DONE, exit_code, explain, print_error
from mainspring.cli.job_selection import DEFAULT_OPTIONS, NO_SELECTION, Handle, JobSelection, OperationOptions, utc
from mainspring.cli.options import (
    ARGS_NAMES,
    DURATION_OPTION,
    LOCAL,
    TIME_OPTION,
    Expires,
    Json,
    RunAt,
    ServerOptions,
    args_of,
    plain,
)
from mainspring.errors import MainspringError, UsageError
from mainspring.jobs.tags import check_tags

if TYPE_CHECKING:
    from collections.abc import Sequence

Handles = Annotated[
    tuple[str, ...], Parameter(name="HANDLE", help="The jobs' handles.", negative="", show_default=False)
]
Delay = Annotated[float | None, plain("--delay", "Start this long from now, or later.", **DURATION_OPTION)]


def cancel(
    handles: Handles = (),
    /,
    *,
    reason: Annotated[str | None, plain("--reason", "A text to store with the jobs.")] = None,
    selection: JobSelection = NO_SELECTION,
    options: OperationOptions = DEFAULT_OPTIONS,
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
    if not handles or _has_options(selection, options):
        return change_jobs(server.client(), "cancel", handles, selection, options, reason=reason, json=json)
    requests = [Cancel(handle) if reason is None else Cancel(handle, reason) for handle in handles]
    return _each(requests, server, json=json)


def retry(
    handles: Handles = (),
    /,
    *,
    delay: Delay = None,
    args: Annotated[
        str | None,
        plain(
            ARGS_NAMES,
            "Run the jobs with these arguments in place of their own: text, or - for standard input.",
            metavar="ARGS",
            allow_leading_hyphen=True,
        ),
    ] = None,
    selection: JobSelection = NO_SELECTION,
    options: OperationOptions = DEFAULT_OPTIONS,
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
    if not handles or reason is not None or _has_options(selection, options):
        if args is not None or delay is not None:
            raise UsageError("--args and --delay are for jobs that are named by their handles")
        return change_jobs(server.client(), "retry", handles, selection, options, reason=reason, json=json)
    payload = UNSET if args is None else args_of(None, args) or b""
    requests = [Retry(handle, delay=delay, payload=payload) for handle in handles]
    return _each(requests, server, json=json)


def update(
    handles: Handles,
    /,
    *,
    priority: Annotated[
        Literal["high", "normal", "low"] | None, plain("--priority", "The new priority: higher ones start first.")
    ] = None,
    run_at: Annotated[
        float | None,
        plain(
            ("--run-at", "--at"),
            "Start the jobs at this time or later, such as 2030-01-31T12:00:00Z; at once if it is past.",
            **TIME_OPTION,
        ),
    ] = None,
    expires_at: Annotated[
        float | None,
        plain("--expires-at", "End a job as expired if it has not started by this time.", **TIME_OPTION),
    ] = None,
    never_expires: Annotated[
        bool, plain("--never-expires", "Remove the time at which the jobs expire.", negative="")
    ] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Change the priority or the times of jobs that have not started.

    All other values of the jobs stay as they are. To change a job's arguments or tags, cancel the job and clone it.

    EXAMPLES
      mainspring jobs update H:node:1000000000001 --priority high
      mainspring jobs update H:node:1000000000001 --run-at 2030-01-31T12:00:00Z --never-expires
    """
    if expires_at is not None and never_expires:
        raise UsageError("--expires-at and --never-expires exclude each other: give only one of them")
    if priority is None and run_at is None and expires_at is None and not never_expires:
        raise UsageError("nothing changes: give --priority, --run-at, --expires-at or --never-expires")
    expiry = None if never_expires else utc(expires_at) or UNSET
    requests = [Update(handle, utc(run_at) or UNSET, priority or UNSET, expiry) for handle in handles]
    return _each(requests, server, json=json)


def snooze(
    handles: Handles,
    /,
    *,
    delay: Annotated[float, plain("--delay", "Start the jobs this long from now, or later.", **DURATION_OPTION)],
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Postpone jobs that have not started.

    EXAMPLES
      mainspring jobs snooze H:node:1000000000001 --delay 2h
    """
    return _each([Snooze(handle, delay) for handle in handles], server, json=json)


def clone(
    handle: Handle,
    /,
    *,
    args: Annotated[
        str | None,
        plain(
            ARGS_NAMES,
            "The arguments of the new job: text, or - for standard input. By default they are those of the other one.",
            metavar="ARGS",
            allow_leading_hyphen=True,
        ),
    ] = None,
    unique: Annotated[str, plain("--unique", "A unique for the new job. By default it has none.")] = "",
    priority: Annotated[
        Literal["high", "normal", "low"] | None,
        plain("--priority", "The priority. By default it is that of the other job."),
    ] = None,
    delay: Delay = None,
    run_at: RunAt = None,
    expires: Expires = None,
    concurrency_key: Annotated[
        str | None, plain("--concurrency-key", "The key for limits. By default it is that of the other job.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        plain("--tag", "A tag; may be repeated. By default the job has those of the other one.", negative=""),
    ] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Submit a new job like another one, and print its handle.

    The other job may be in any state. If its arguments are not kept, as those of a job that has succeeded with more than 1 KiB,
    give --args.
    """
    if delay is not None and run_at is not None:
        raise UsageError("--delay and --run-at exclude each other: give only one of them")
    request = Clone(
        handle,
        unique,
        priority,
        delay=delay,
        run_at=utc(run_at),
        expires=expires,
        concurrency_key=concurrency_key,
        tags=None if tag is None else check_tags(tag, "--tag"),
        payload=UNSET if args is None else args_of(None, args) or b"",
    )
    return print_answer(server.client(), request, lambda answer: print(answer["handle"], flush=True), json=json)


def delete(
    handles: Handles = (),
    /,
    *,
    selection: JobSelection = NO_SELECTION,
    options: OperationOptions = DEFAULT_OPTIONS,
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
    if not handles or reason is not None or _has_options(selection, options):
        return change_jobs(server.client(), "delete", handles, selection, options, reason=reason, json=json)
    return _each([Delete(handle) for handle in handles], server, json=json)


def _has_options(selection: JobSelection, options: OperationOptions) -> bool:
    """Return whether a command with handles has an option of operations, too."""
    return selection != NO_SELECTION or options != DEFAULT_OPTIONS


def _each(requests: Sequence[Cancel | Retry | Update | Snooze | Delete], server: ServerOptions, *, json: bool) -> int:
    """Send all requests, print each answer or error, and return the exit code of the first error."""
    client = server.client()
    code = EXIT_DONE
    for request in requests:
        try:
            answer = call(client, request)
        except MainspringError as error:
            text = explain(error)
            print_error(text if text.startswith(request.handle) else f"{request.handle}: {text}")
            code = code or exit_code(error)
            continue
        if json:
            print_json(answer)
        else:
            print(f"{answer['handle']}\t{answer['state']}", flush=True)
    return code
