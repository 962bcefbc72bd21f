"""Observers of the changes of runs: the port of a store, and the node that follows the runs of its store by it.

The log has lines about runs that have just been parked, and about histories that have become long. A root job ends with the close
of its last run (`ended_root`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from mainspring.jobs.model import Job, failure
from mainspring.jobs.model import State as JobState
from mainspring.workflows import history
from mainspring.workflows.draft import warning

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.workflows.history import Event
    from mainspring.workflows.model import Limits, Parked, Status
    from mainspring.workflows.reading import Unread
    from mainspring.workflows.store import RunRow


class Changed(NamedTuple):
    """A run that a transaction has changed, as it is after it."""

    run: int
    root: int
    namespace: str
    type: str
    version: str
    status: Status
    events: int
    history_bytes: int
    due_us: int
    """The earliest timer or timeout; 0 if there is none."""
    parked_us: int
    decision: int
    """The job of the open decision task; 0 if there is none."""
    new_events: int = 0
    new_bytes: int = 0
    parked: Parked | None = None
    """Why the transaction has parked it; None if it has not."""
    was_parked: bool = False
    """Whether it was parked before the transaction."""
    about: bytes = b""
    """The report of its decider (``model.About``), if the transaction has changed it."""


class RunObserver(Protocol):
    """A node's side of the slice."""

    def errands_stored(self) -> None:
        """Do the stored errands soon, by `workflows.store.RunErrands`. It is called on the node's thread, after a commit."""

    def holds_asked(self) -> None:
        """Look for requests for slots of resources: runs have asked for some, or have given some back."""

    def appended(self, runs: Sequence[Changed]) -> None:
        """Process the changes of a committed group, on the node's thread, before the outcomes of the group are delivered."""

    def not_read(self, runs: Sequence[Unread]) -> None:
        """Note the runs that a committed group has left as they are, because this node cannot read them."""


TERMINATED = "WorkflowTerminated"
"""The type of the error of a terminated run."""
TIMED_OUT = "Timeout"
"""The type of the error of a run that took too long: as of a job."""


def ended_root(row: RunRow, close: Event) -> Job | None:
    """Return the end of the root job of a run that an event closes; None if the chain goes on."""
    state, result, error = JobState.FAILED, b"", b""
    match close:
        case history.WorkflowExecutionCompleted():
            state, result = JobState.SUCCEEDED, close.result
        case history.WorkflowExecutionFailed():
            error = close.details or failure(close.reason or "WorkflowFailed", "the workflow has failed")
        case history.WorkflowExecutionCanceled():
            state, error = JobState.CANCELLED, close.details
        case history.WorkflowExecutionTerminated():
            why = close.reason or close.cause
            error = failure(TERMINATED, f"the run was terminated: {why}" if why else "the run was terminated")
        case history.WorkflowExecutionTimedOut():
            error = failure(TIMED_OUT, "the run took longer than its execution timeout")
        case _:
            return None
    row.output_size = len(result)
    ended_us = row.closed_us or close.at_us
    return Job(row.root, row.type.encode(), b"", state=int(state), ended_us=ended_us, result=result, error=error)


QUIET: Final = 60.0
"""Seconds between two lines about the runs of one version: a bad deployment parks all of them."""

_log_of_parked = structlog.get_logger("mainspring.workflows")


class NewlyParked:
    """Logs the first run of each version that is parked, at most once a minute. ``handle_of``: of a root job."""

    def __init__(self, handle_of: Callable[[int], bytes], monotonic: Callable[[], float]) -> None:
        self._handle_of = handle_of
        self._monotonic = monotonic
        self._logged: dict[tuple[str, str], float] = {}

    def check(self, run: Changed) -> None:
        """Log a run that its last transaction has parked."""
        if run.parked is None:
            return
        now, version = self._monotonic(), (run.type, run.version)
        if now - self._logged.get(version, -QUIET) < QUIET:
            return
        self._logged[version] = now
        key = f"{self._handle_of(run.root).decode()}@{run.run}"
        _log_of_parked.warning(
            "a run is parked",
            run=key,
            type=run.type,
            version=run.version,
            kind=run.parked.kind,
            problem=run.parked.message,
            do=f"`mainspring workflows show {key}` prints the reason, `mainspring workflows list --parked` the other parked runs",
        )


_log_of_histories = structlog.get_logger("mainspring.workflows")


class LongHistories:
    """Logs a run once when its history has many events, and once when it has many bytes. ``handle_of``: of a root job."""

    def __init__(self, limits: Limits, handle_of: Callable[[int], bytes]) -> None:
        self._limits = limits
        self._handle_of = handle_of

    def check(self, run: Changed) -> None:
        """Log a run with a long history, if its last transaction has made it long."""
        problem = warning(self._limits, run.events, run.history_bytes, run.new_events, run.new_bytes)
        if problem:
            handle = self._handle_of(run.root).decode()
            _log_of_histories.warning(
                "the history of a run is long", run=f"{handle}@{run.run}", type=run.type, problem=problem
            )
