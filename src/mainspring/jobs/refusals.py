"""The reasons for which clients' requests about single jobs are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.errors import ConflictError, NotFoundError
from mainspring.jobs.model import RUNS, State
from mainspring.namespaces import name_of

if TYPE_CHECKING:
    from mainspring.ids import Handles
    from mainspring.jobs.model import Job


def run_not_retried(subject: str, function: bytes) -> str:
    """Return why a run of a workflow is not retried, and what to do: the same words everywhere."""
    name = name_of(function).decode("utf-8", "replace")
    return (
        f"{subject} is a run of a workflow, and a run cannot be retried: "
        f"start another one with mainspring workflows start {name}"
    )


class Refusals:
    """Makes the errors. They name the job by the id in the request; the job may have joined another one since."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles

    def not_found(self, job_id: int) -> NotFoundError:
        """Refuse a handle without a job, or that of a job of another namespace."""
        return NotFoundError(f"no job has the handle {self._handle(job_id)}")

    def not_retried(self, job_id: int, job: Job) -> ConflictError:
        """Refuse to retry a job that has not ended, has succeeded, or is a run."""
        handle = self._handle(job_id)
        if job.term == RUNS:
            return ConflictError(run_not_retried(handle, job.function))
        return ConflictError(f"{handle} is {_state(job.state)}: only failed, cancelled and expired jobs can be retried")

    def unique_is_live(self, job_id: int, rival: str) -> ConflictError:
        """Refuse to retry a job while another one, whose handle is given, has its unique."""
        return ConflictError(
            f"the unique of {self._handle(job_id)} is live again as {rival}: wait for that job, or cancel it",
            live_handle=rival,
        )

    def in_foreground(self, job_id: int) -> ConflictError:
        """Refuse to change a job that is in memory alone."""
        return ConflictError(
            f"a client waits for {self._handle(job_id)} in the foreground: only stored jobs can be changed"
        )

    def not_changed(self, job_id: int, job: Job, state: int) -> ConflictError:
        """Refuse to change a job that does not wait, because it is in another state."""
        handle = self._handle(job_id)
        if job.term == RUNS:
            return ConflictError(f"{handle} is a run of a workflow, which has begun: only waiting jobs can be changed")
        if state == State.LEASED:
            return ConflictError(f"{handle} is about to run at another node: only waiting jobs can be changed")
        return ConflictError(f"{handle} is {_state(state)}: only waiting jobs can be changed")

    def not_deleted(self, job_id: int, job: Job) -> ConflictError:
        """Refuse to delete a job that has not ended, or is a run."""
        handle = self._handle(job_id)
        if job.term == RUNS and State(job.state).ended:
            return ConflictError(f"{handle} is a run of a workflow, which stays as long as its history")
        return ConflictError(f"{handle} is {_state(job.state)}: only ended jobs can be deleted; cancel it first")

    def _handle(self, job_id: int) -> str:
        return self._handles.of(job_id).decode()


def _state(state: int) -> str:
    return State(state).name.lower()
