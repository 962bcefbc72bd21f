"""``mainspring submit``: submit a job and, by default, wait for its result."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from mainspring.api.submitting import JobOptions
from mainspring.cli.calls import NOTHING, Given, name_argument, no_worker, takes
from mainspring.cli.display import EXIT_DONE, print_error, print_json, printable
from mainspring.cli.job_output import follow_job, view_of, waiting_for, write_outcome
from mainspring.cli.options import (
    DURATION_OPTION,
    LOCAL,
    Json,
    ServerOptions,
    args_of,
    plain,
)
from mainspring.client.options import Options, Retry, check_request_key
from mainspring.client.session import Request
from mainspring.errors import UsageError
from mainspring.jobs.user_data import check_tags
from mainspring.namespaces import name_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.client.blocking import Client
    from mainspring.client.outcomes import Notice, Outcome

HINT_DELAY = 2.0
"""Seconds after which the command explains why a job has not started."""


@takes(JobOptions)
def submit(
    function: Annotated[str, Parameter(help="The function to run.")],
    argument: Annotated[
        str | None,
        Parameter(
            name="ARGS",
            help="The arguments of the job: text, or - for standard input.",
            show_default=False,
            allow_leading_hyphen=True,
        ),
    ] = None,
    /,
    *,
    args: Annotated[
        str | None, plain("--args", "The arguments, in place of ARGS.", metavar="ARGS", allow_leading_hyphen=True)
    ] = None,
    background: Annotated[
        bool, plain("--background", "Print the job's handle and do not wait for its result.", alias="-b", negative="")
    ] = False,
    follow: Annotated[
        bool,
        plain("--follow", "While the job runs, show its progress and the lines that it logs.", negative=""),
    ] = False,
    given: Given = NOTHING,
    unique: Annotated[
        str,
        plain(
            "--unique",
            "A name for this work. If a job of the same function and unique has not ended, the command joins it instead of"
            " submitting a second one.",
        ),
    ] = "",
    request_key: Annotated[
        str | None,
        plain(
            "--request-key",
            "A key of this submit, kept for a day. A repeated command with the same key joins its job, even if that has ended.",
        ),
    ] = None,
    timeout: Annotated[
        float | None, plain("--timeout", "Wait at most this long for the result.", **DURATION_OPTION)
    ] = None,
    max_attempts: Annotated[
        int | None,
        plain(
            ("--max-attempts", "--attempts"),
            "How often to run the job, with growing waits between attempts, before it counts as failed.",
        ),
    ] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Submit a job, wait for it, and write its raw result to standard output.

    If you interrupt the command while it waits, the job still runs. On a terminal, standard error shows the job's progress.

    With --follow, lines of the job's log go to standard error, on a terminal above a progress bar.

    If no worker has registered the function, a message says so after 2 seconds, or at once with --background.

    For a task in Python, the arguments are JSON: an object is passed as keyword arguments, an array as positional arguments, and
    any other value as the only argument.

    With --json, the command prints one object with the job's handle, its outcome, and its result or error.

    EXAMPLES
      mainspring submit reverse "some text"
      mainspring submit thumbnail '{"path": "cat.png", "width": 200}' --unique cat-200
      tar c photos | mainspring submit archive - --background
      mainspring submit report --run-at 2030-01-31T12:00:00Z --background

    EXIT CODES
      0 the job succeeded, or was accepted with --background
      1 it failed, was cancelled or expired
      2 wrong usage
      3 no server
      4 the server no longer has its result
      5 --timeout is over, and the job continues; or the server has not answered in --request-timeout
    """
    if follow and background:
        raise UsageError("--follow and --background exclude each other: give only one of them")
    options = Options(
        **options_of(given),
        retry=None if max_attempts is None else Retry(max_attempts=max_attempts),
        request_key=None if request_key is None else check_request_key(request_key, "--request-key"),
    )
    client = server.client()
    request = Request(
        name_bytes(name_argument(function)),
        name_bytes(name_argument(unique)),
        options.wire(),
        args_of(argument, args) or b"",
        request_key is not None,
    )
    submitted = client.submit(request)
    joined = {"joined": submitted.joined} | ({"skipped": True} if submitted.skipped else {})
    if background:
        if json:
            print_json({"handle": submitted.handle} | joined)
        else:
            print(submitted.handle, flush=True)
        _hint(client, function)
        return EXIT_DONE
    if follow:
        _hint(client, function)
        return _follow(server, submitted.handle, timeout, json=joined if json else None)
    return write_result(client, submitted.handle, timeout, json=joined if json else None, function=function)


def options_of(given: Given) -> dict[str, Any]:
    """Return options of a job as the client has them."""
    options = dict(given)
    if "run_at" in options:
        options["run_at"] = options["run_at"].timestamp()
    if "tags" in options:
        options["tags"] = check_tags(options["tags"], "--tag")
    return options


def _follow(server: ServerOptions, handle: str, timeout: float | None, *, json: Mapping[str, Any] | None) -> int:
    """Follow a job, and write its raw result; the rest is as in `write_result`."""
    with waiting_for(handle, timeout, json), view_of(handle, sys.stderr, json=False) as view:
        outcome = follow_job(server.aio(), handle, view, timeout)
    return write_outcome(handle, outcome, json=json)


def _hint(client: Client, function: str) -> None:
    sentence = no_worker(client, function)
    if sentence is not None:
        print_error(sentence)


def write_result(
    client: Client,
    handle: str,
    timeout: float | None,
    *,
    json: Mapping[str, Any] | None,
    function: str | None = None,
) -> int:
    """Wait for a job, show its progress on a terminal, and write its raw result.

    With ``json``, write a JSON object with these keys added instead, whether the job has succeeded, failed or not ended in
    time. With ``function``, print a hint after `HINT_DELAY` seconds if no worker has registered it.

    Raises JobError if the job did not succeed and TimeoutError if it has not ended in time.
    """
    with waiting_for(handle, timeout, json):
        progress = _Progress(handle) if sys.stderr.isatty() else None
        try:
            if function is None or (timeout is not None and timeout <= HINT_DELAY):
                outcome = client.outcome(handle, timeout, on_notice=progress)
            else:
                outcome = _outcome_with_hint(client, handle, timeout, function, progress)
        finally:
            if progress is not None:
                progress.erase()
    return write_outcome(handle, outcome, json=json)


def _outcome_with_hint(
    client: Client, handle: str, timeout: float | None, function: str, progress: _Progress | None
) -> Outcome:
    try:
        return client.outcome(handle, HINT_DELAY, on_notice=progress)
    except TimeoutError:
        if progress is not None:
            progress.erase()
        _hint(client, function)
    return client.outcome(handle, None if timeout is None else timeout - HINT_DELAY, on_notice=progress)


class _Progress:
    """Shows a job's progress in one line of the terminal."""

    def __init__(self, handle: str) -> None:
        self._write(f"waiting for {printable(handle)}")

    def __call__(self, notice: Notice) -> None:
        if notice.kind == "progress":
            share = f" ({100 * notice.numerator // notice.denominator} %)" if notice.denominator else ""
            text = f": {printable(notice.data.decode('utf-8', 'replace'))}" if notice.data else ""
            self._write(f"{notice.numerator} of {notice.denominator}{share}{text}")
        elif notice.kind == "warning":
            self._write("")
            print(f"warning: {printable(notice.data.decode('utf-8', 'replace'))}", file=sys.stderr, flush=True)

    def erase(self) -> None:
        """Clear the line."""
        self._write("")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
