"""Output of a job's result: its bytes for people and pipes, or a JSON object for programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from mainspring.jobs.results import decoded

if TYPE_CHECKING:
    from mainspring.client.outcomes import Outcome


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
