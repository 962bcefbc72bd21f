"""Output of a job's result: its bytes for people and pipes, or a JSON object for programs."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from mainspring.api.workflows import Show
from mainspring.cli.calls import call
from mainspring.cli.display import print_json
from mainspring.cli.failures import EXIT_DONE, print_error
from mainspring.client.outcomes import failure
from mainspring.errors import JobFailed, NotFoundError, UsageError
from mainspring.jobs.results import decoded
from mainspring.quantities import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mainspring.client.blocking import Client
    from mainspring.client.outcomes import Outcome


def handle_of(client: Client, key: str) -> str:
    """Return the handle of the job or run that a handle, a handle with the number of a run, or a workflow id names.

    Raises NotFoundError if no run has the workflow id.
    """
    if key.startswith("H:"):
        return key.partition("@")[0]
    try:
        return str(call(client, Show(key))["handle"])
    except UsageError:  # a store without workflows
        raise NotFoundError(f"{key} is no handle of a job: give one, such as H:node:1000000000001") from None


def print_raw(data: bytes) -> None:
    """Write a result unchanged. On a terminal, add a newline, so that the prompt begins on its own line."""
    sys.stdout.buffer.write(data)
    if data and not data.endswith(b"\n") and sys.stdout.isatty():
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


def describe(handle: str, outcome: Outcome | None) -> dict[str, Any]:
    """Return the JSON object for a job's outcome; None: the job has not ended. docs/reference/cli.md lists the keys."""
    described: dict[str, Any] = dict.fromkeys(
        ("handle", "state", "attempt", "result", "encoding", "error", "traceback")
    )
    described["handle"] = handle
    if outcome is not None:
        described |= {"state": outcome.state, "attempt": outcome.attempt}
        if outcome.state == "succeeded":
            described["encoding"], described["result"] = decoded(outcome.data)
        if outcome.error is not None:
            parts = (outcome.error.type, outcome.error.message)
            described["error"] = ": ".join(part for part in parts if part) or None
            described["traceback"] = outcome.error.traceback
    return described


@contextlib.contextmanager
def waiting_for(handle: str, timeout: float | None, json: Mapping[str, Any] | None) -> Iterator[None]:
    """Explain, if the wait for a job in this block ends before the job, that the job continues."""
    try:
        yield
    except TimeoutError:
        assert timeout is not None
        if json is not None:
            print_json({**describe(handle, None), **json})
        raise TimeoutError(
            f"job {handle} has not ended within {format_duration(timeout)}; {_continues(handle)}"
        ) from None
    except KeyboardInterrupt:
        print_error(f"job {handle} has not ended; {_continues(handle)}")
        raise


def write_outcome(handle: str, outcome: Outcome, *, json: Mapping[str, Any] | None) -> int:
    """Write a raw result, or with ``json`` an object with these keys added. Raises JobError if the job did not succeed."""
    if json is not None:
        print_json({**describe(handle, outcome), **json})
    error = failure(outcome)
    if error is not None:
        if isinstance(error, JobFailed) and not error.type_name:
            raise JobFailed(handle, "WORK_FAIL", "the worker gave no reason", None, error.attempt)
        raise error
    if json is None:
        print_raw(outcome.data)
    return EXIT_DONE


def _continues(handle: str) -> str:
    return f"it continues; wait for it with: mainspring jobs result {handle}"
