"""The end of a run's code: jobs and compensations that must have ended before the run closes.

A cancelled job ends as its mode requires (`client.options.CancelMode`, `job.WorkflowJob.cancel`). When the main task has ended,
the tasks that it leaves are cancelled, and with them the jobs that they wait for. The run closes when the jobs of mode ``wait``,
and the compensations of sagas, have ended. The close deletes the jobs of other open activities, except those of mode ``abandon``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.deciding.loop import SHIELDED

if TYPE_CHECKING:
    from mainspring.deciding.job import WorkflowJob


class Closing:
    """The reasons to delay the close of a run."""

    def __init__(self) -> None:
        self.begun = False
        """Whether the main task has ended."""
        self.compensating = 0
        """The number of sagas that are running their compensations."""
        self.failure: Exception | None = None
        """The failure of compensations for which no task waits."""
        self._jobs: dict[WorkflowJob[Any], None] = {}
        """Open jobs of mode ``wait``, in order."""

    def add(self, job: WorkflowJob[Any]) -> None:
        """Let the close wait for a new job, if its mode is ``wait``."""
        if job.waits and not SHIELDED.get():
            self._jobs[job] = None
            job.add_done_callback(self._remove)

    def begin(self) -> None:
        """Cancel the jobs that the close waits for, whether a task waits for them or not."""
        self.begun = True
        for job in list(self._jobs):
            job.cancel()

    @property
    def delayed(self) -> bool:
        """Whether a job or a compensation delays the close."""
        return bool(self._jobs or self.compensating)

    def _remove(self, job: Any) -> None:
        self._jobs.pop(job, None)
