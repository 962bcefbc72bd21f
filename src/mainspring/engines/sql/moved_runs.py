"""The rows that move with open runs from one SQL store to another.

Ids stay as they are, because events and errands contain ids of jobs and runs. Numbers of functions differ between stores, so
jobs have the keys of their functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mainspring.jobs.model import Job

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "definitions": ("namespace", "name", "version", "definition"),
    "runs": (
        "id", "root", "namespace", "workflow_id", "type", "version", "status", "started_us", "closed_us", "events",
        "history_bytes", "input_size", "output_size", "due_us", "about", "decision", "slot", "parked_us", "builds", "parking",
        "paused_us",
    ),
    "history": ("run", "first", "block"),
    "snapshots": ("run", "history_bytes", "state"),
    "payloads": ("run", "event", "data"),
    "early_signals": ("job", "number", "bytes", "request", "name", "input"),
    "errands": ("errand",),
    "tags": ("namespace", "tag", "job", "created_us"),
    "deadlines": ("job", "kind", "schedule", "due_us"),
    "job_values": ("job", "name", "attempt", "number", "at_us", "value"),
    "job_streams": ("job", "name", "items", "bytes", "part", "writer", "seen", "refused", "at_us"),
    "stream_blocks": ("job", "name", "first", "length", "attempt", "part", "at_us", "items"),
}  # fmt: skip
"""The columns of each table whose rows move unchanged. Jobs and terms have a form of their own."""


class MovedJob(NamedTuple):
    """A live job."""

    job: Job
    keep: bool
    """Whether it was submitted with keep_unique."""
    stopping: bytes | None
    """A request to cancel the held job, as it is stored."""
    attempts: bytes | None
    """Its records of attempts, as they are stored."""


class LeavingRuns(Protocol):
    """The store that runs leave. Nothing there changes while its rows are read."""

    def terms(self) -> Iterator[tuple[int, str]]:
        """Yield all terms of the store, with the names of their nodes."""

    def jobs(self) -> Iterator[MovedJob]:
        """Yield the jobs that move, by their ids."""

    def rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that move of one of `COLUMNS`."""

    def stay(self) -> None:
        """Let the runs go on in this store: the other one does not have them, and will not."""
