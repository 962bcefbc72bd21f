"""``mainspring submit``: hand in a job and, unless told otherwise, wait for its result."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from mainspring.cli.display import printable
from mainspring.cli.failures import DONE
from mainspring.cli.options import DURATION, LOCAL, ServerOptions, plain, reading
from mainspring.client.options import Options, Retry
from mainspring.client.outcomes import failure
from mainspring.client.session import Request
from mainspring.errors import JobFailed, SettingsError, UsageError
from mainspring.server.quantities import format_duration

if TYPE_CHECKING:
    from mainspring.client.blocking import Client
    from mainspring.client.outcomes import Notice


def parse_time(text: str) -> float:
    """Return seconds since 1970 for ``2030-01-31T12:00:00Z``; without a zone the machine's own holds.

    Raises SettingsError.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise SettingsError(f"{text!r} is no time: write it as 2030-01-31T12:00:00Z") from None


def submit(
    function: Annotated[str, Parameter(help="The function to run.")],
    payload: Annotated[
        str,
        Parameter(
            help="What to run it on: text, or - for standard input.", show_default=False, allow_leading_hyphen=True
        ),
    ] = "",
    /,
    *,
    background: Annotated[
        bool, plain("--background", "Print the job's handle and do not wait.", alias="-b", negative="")
    ] = False,
    priority: Annotated[Literal["high", "normal", "low"], Parameter(name="--priority")] = "normal",
    unique: Annotated[
        str, plain("--unique", "The name of this work: a live job of the same function and unique is joined.")
    ] = "",
    in_: Annotated[float | None, plain("--in", "Start no earlier than this from now.", **DURATION)] = None,
    at: Annotated[
        float | None,
        plain(
            "--at",
            "Start no earlier than this time, such as 2030-01-31T12:00:00Z.",
            converter=reading(parse_time),
            metavar="TIME",
        ),
    ] = None,
    timeout: Annotated[float | None, plain("--timeout", "Wait no longer than this for the result.", **DURATION)] = None,
    attempts: Annotated[
        int | None, plain("--attempts", "Try so often, with growing waits in between, before the job has failed.")
    ] = None,
    run_timeout: Annotated[
        float | None, plain("--run-timeout", "Longest run of one attempt; it is stopped then.", **DURATION)
    ] = None,
    expires: Annotated[
        float | None, plain("--expires", "Give the job up if it has not started within this time.", **DURATION)
    ] = None,
    server: ServerOptions = LOCAL,
) -> int:
    """Submit a job, wait for it, and write its raw result to standard output.

    The job is durable before anything is printed: it runs also if this command is interrupted while it waits. A task
    in Python takes a JSON object as keyword arguments and a JSON array as positional ones. On a terminal, the job's
    progress is shown on standard error.

    EXAMPLES
      mainspring submit reverse "some text"
      mainspring submit thumbnail '{"path": "cat.png", "width": 200}' --unique cat-200
      tar c photos | mainspring submit archive - --background
      mainspring submit report --at 2030-01-31T12:00:00Z --background

    EXIT CODES
      0 the job succeeded, or was accepted with --background; 1 it failed, was cancelled or expired; 2 wrong usage;
      3 no server; 4 its result is not known any more; 5 --timeout is over: the job goes on
    """
    if in_ is not None and at is not None:
        raise UsageError("--in and --at exclude each other: give one of them")
    options = Options(
        priority=None if priority == "normal" else priority,
        delay=in_,
        run_at=at,
        timeout=run_timeout,
        expires=expires,
        retry=None if attempts is None else Retry(max_attempts=attempts),
    )
    body = sys.stdin.buffer.read() if payload == "-" else payload.encode("utf-8", "surrogateescape")
    client = server.client()
    request = Request(
        function.encode("utf-8", "surrogateescape"), unique.encode("utf-8", "surrogateescape"), options.wire(), body
    )
    submitted = client.submit(request)
    if background:
        print(submitted.handle, flush=True)
        return DONE
    return write_result(client, submitted.handle, timeout)


def write_result(client: Client, handle: str, timeout: float | None) -> int:
    """Wait for a job, show its progress on a terminal, and write its raw result.

    Raises JobError where it did not succeed and TimeoutError where it has not ended in time.
    """
    progress = _Progress(handle) if sys.stderr.isatty() else None
    try:
        outcome = client.outcome(handle, timeout, hear=progress)
    except TimeoutError:
        assert timeout is not None
        raise TimeoutError(
            f"job {handle} has not ended within {format_duration(timeout)}; "
            f"it goes on, and `mainspring jobs result {handle}` waits for it again"
        ) from None
    finally:
        if progress is not None:
            progress.erase()
    error = failure(outcome)
    if error is not None:
        if isinstance(error, JobFailed) and not error.type_name:
            raise JobFailed(handle, "WORK_FAIL", "the worker gave no reason", None, error.attempt)
        raise error
    sys.stdout.buffer.write(outcome.data)
    sys.stdout.buffer.flush()
    return DONE


class _Progress:
    """Shows what a job says in one line of the terminal."""

    def __init__(self, handle: str) -> None:
        self._write(f"waiting for {printable(handle)}")

    def __call__(self, notice: Notice) -> None:
        if notice.kind == "progress":
            share = f" ({100 * notice.numerator // notice.denominator} %)" if notice.denominator else ""
            self._write(f"{notice.numerator} of {notice.denominator}{share}")
        elif notice.kind == "warning":
            self._write("")
            print(f"warning: {printable(notice.data.decode('utf-8', 'replace'))}", file=sys.stderr, flush=True)

    def erase(self) -> None:
        """Leave an empty line."""
        self._write("")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
