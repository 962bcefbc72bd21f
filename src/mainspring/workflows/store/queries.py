"""The queries of the workflows slice, and the rows that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from mainspring.storage.query import PageQuery, Query
from mainspring.workflows.model import UNKNOWN_BUILD, Status
from mainspring.workflows.state import Parking, State

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from mainspring.workflows.history import Event  # noqa: F401 - the type of a query's rows
    from mainspring.workflows.model import Definition, Key, Parked  # noqa: F401 - as above


class RunRow(msgspec.Struct):
    """A run without its state and its history: its row in the store."""

    id: int
    root: int
    namespace: str
    workflow_id: str
    type: str
    version: str
    status: Status = Status.OPEN
    started_us: int = 0
    closed_us: int = 0
    events: int = 0
    history_bytes: int = 0
    input_size: int = 0
    output_size: int = 0
    due_us: int = 0
    about: bytes = b""
    """`model.About` as MessagePack."""
    decision: int = 0
    """The job of the open decision task; 0 if there is none."""
    slot: int = 0
    """The hash slot of the root job, and of the jobs of the run."""
    parking: Parking = msgspec.field(default_factory=Parking)
    unread: str = ""
    """Why this version cannot read all of the row; empty if it can. The values that it cannot read are defaults."""

    @property
    def parked(self) -> Parked | None:
        """Return the reason for which it is parked."""
        return self.parking.parked

    @property
    def parked_us(self) -> int:
        """Return since when it is parked; 0 if it is not."""
        return self.parking.parked_us

    @property
    def builds(self) -> tuple[str, ...]:
        """Return the builds whose code could not make a decision of the run, as far as they are known."""
        return tuple(build for build in self.parking.builds if build != UNKNOWN_BUILD)


class ShownRun(NamedTuple):
    """A run with its state."""

    row: RunRow
    state: State
    fault: str = ""
    """Why this node cannot read it; empty if it can. Its state is empty then."""


class ListRuns(PageQuery[ShownRun], frozen=True, kw_only=True):
    """Read runs, the newest first. A page continues after a run's id."""

    namespace: str = "default"
    status: tuple[int, ...] = ()
    """Empty: any."""
    parked: bool = False
    needs_decision: bool = False
    """Only runs whose decision task has a job."""
    type: str | None = None
    workflow_id: str | None = None
    since_us: int = 0


class Unbegun(NamedTuple):
    """A waiting job whose run has not begun."""

    job: Job
    is_workflow: bool
    """Whether a worker has registered its function as a workflow. If not, it may be a task's job."""


Shown = ShownRun | list[Unbegun]
"""The answer to ShowRun: a run; without one, the waiting jobs that may be meant."""


class ShowRun(Query[Shown], frozen=True):
    """Read the run that a key names; without one, the waiting jobs that it may name."""

    key: Key


class ReadHistory(PageQuery["Event"], frozen=True, kw_only=True):
    """Read the events of a run in order: none if it is in another namespace. A page continues after an event's number."""

    run: int
    namespace: str = "default"


class CountParked(Query["dict[tuple[str, str, str], int]"], frozen=True):
    """Count parked runs by namespace, type and version."""


class FindDefinitions(Query["list[Definition]"], frozen=True):
    """Read all definitions."""
