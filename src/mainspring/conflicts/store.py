"""The port of submits by a rule: their operations and outcomes, and the table of successors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mainspring.conflicts.rules import REPLACED, Rule
from mainspring.event_log import types
from mainspring.jobs.job_events import of_job
from mainspring.jobs.model import Job, failure
from mainspring.jobs.slices import SliceTransaction
from mainspring.storage.engine import Operation, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mainspring.event_log.interests import NewEvent
    from mainspring.jobs.model import StopRequest
    from mainspring.jobs.store import Cancel, Cancelled, Reschedule, Rescheduled

CANCELLED: Final = failure("Cancelled", REPLACED)
"""The error of a job that a later submit has replaced."""


class SubmitByRule(Operation):
    """Store a new background job with a unique by a rule. Outcome: `Placed`.

    Guard: at most one live job has the unique, and at most one successor waits for it.
    """

    phase = Phase.SLICES
    is_request = True
    brings_jobs = True
    causes = frozenset({types.CANCELLED})
    job: Job
    rule: Rule
    now_us: int

    def __post_init__(self) -> None:
        self.rows = 1
        self.size = 300 + len(self.job.payload)

    def caused(self, outcome: Placed) -> Iterator[NewEvent | None]:
        """Yield the event of a job that was cancelled."""
        if outcome.cancelled is not None and outcome.cancelled.job is not None:
            yield of_job(types.CANCELLED, outcome.cancelled.job, CANCELLED)


class Placed(NamedTuple):
    """The outcome of `SubmitByRule`."""

    id: int
    """The job that stands for the submit: a new one, or one that was there."""
    is_new: bool = False
    skipped: bool = False
    predecessor: int = 0
    """The job for whose end it waits."""
    is_root: bool = False
    """Whether a run of a workflow is to be cancelled: that job."""
    cancelled: Cancelled | None = None
    rescheduled: Rescheduled | None = None
    wake_us: int = 0
    """When a job is due that the submit has released; 0: none."""
    in_memory: bool = False
    """Nothing was done: a foreground job in the node's memory has the unique, and must be stored first."""


class Successor(NamedTuple):
    """A row of the table: a job that waits for the end of another one."""

    job: int
    predecessor: int
    due_us: int
    """When it is to run at the earliest, once it is released."""
    stops: int
    """1 if its predecessor is to be cancelled."""


class ReleaseSuccessors(Operation):
    """Release successors whose predecessors have ended, up to the limit. Outcome: `Released`."""

    phase = Phase.SLICES
    now_us: int
    limit: int = 500

    def __post_init__(self) -> None:
        self.rows = self.limit
        self.urgent = False


class Released(NamedTuple):
    """The outcome of `ReleaseSuccessors`."""

    due_us: list[int]
    """The times at which the released jobs are due."""
    more: bool
    """Whether the limit was reached."""
    any: bool
    """Whether successors wait."""
    stopping: list[tuple[int, bytes]]
    """Some predecessors that are to be cancelled and have not ended, with their functions."""


class ConflictTables(SliceTransaction, Protocol):
    """The table, and changes of jobs, inside a transaction of an engine."""

    async def live(self, function: bytes, unique: bytes) -> Job | None:
        """Return the live job of a unique, and lock it."""

    async def look_up(self, ids: Sequence[int]) -> Mapping[int, Job]:
        """Return jobs by their ids."""

    async def replace(self, job_id: int, payload: bytes) -> None:
        """Give a waiting job other arguments."""

    async def reschedule(self, operation: Reschedule) -> Rescheduled:
        """Do as `jobs.store.Reschedule`."""

    async def cancel(self, operation: Cancel) -> Cancelled:
        """Do as `jobs.store.Cancel`."""

    async def stop(self, job: int, request: StopRequest) -> None:
        """Store a request to cancel a held job (`jobs.store.RequestStop`)."""

    async def put(self, successor: Successor) -> None:
        """Write the row of a successor, in place of an earlier one."""

    async def successor(self, job: int) -> Successor | None:
        """Return the row of a successor."""

    async def ripe(self, limit: int) -> Sequence[Successor]:
        """Return successors whose predecessors have ended, or that have ended themselves.

        Their jobs are locked; those that another transaction has locked are left out.
        """

    async def release(self, job: int, unique: bytes, due_us: int) -> bool:
        """Give a SCHEDULED job a unique and a due time; return False if a live job has the unique."""

    async def delete(self, job: int) -> None:
        """Delete the row of a successor."""

    async def is_any(self) -> bool:
        """Return whether there are successors."""

    async def stopping(self, limit: int) -> Sequence[int]:
        """Return predecessors that are to be cancelled."""
