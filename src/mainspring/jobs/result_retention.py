"""The early end of results: jobs of some functions are deleted sooner after their success than others."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from mainspring.jobs.store import DeleteEnded
from mainspring.namespaces import namespace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mainspring.jobs.argument_rules import ArgumentRules
    from mainspring.jobs.model import Job
    from mainspring.storage.commit_queue import CommitQueue

MOST: Final = 1_000_000
"""Jobs that a node remembers, with 16 bytes each; others stay for the retention of all jobs."""
PER_STEP: Final = 2_000
"""Jobs that are deleted in one step."""


class _Queue:
    """The succeeded jobs of a function, in the order in which they are due."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.due = array("d")
        self.ids = array("q")


class ResultRetention:
    """Deletes succeeded jobs of functions whose workers declare how long their results are kept.

    The node that has run a job deletes it. It does not remember over a restart which jobs are to be deleted: these stay for the
    retention of all jobs. It sets in ``rules`` whether each success has to be noted.
    """

    def __init__(self, commits: CommitQueue, monotonic: Callable[[], float], rules: ArgumentRules) -> None:
        self._commits = commits
        self._monotonic = monotonic
        self._rules = rules
        self._queues: dict[bytes, _Queue] = {}
        self._number = 0

    def declare(self, seconds: Mapping[bytes, float | None]) -> None:
        """Set the seconds for which the results of functions are kept; None: as those of others. It applies to later ends."""
        for function, kept in seconds.items():
            present = self._queues.get(function)
            if kept is None:
                if present is not None:
                    present.seconds = 0
            elif present is None:
                self._queues[function] = _Queue(kept)
            else:
                present.seconds = kept
        self._rules.notes_all(any(queue.seconds for queue in self._queues.values()))

    def seconds_of(self, function: bytes) -> float | None:
        """Return the seconds for which results of a function are kept; None: as those of others."""
        queue = self._queues.get(function)
        return queue.seconds or None if queue is not None else None

    def note(self, job: Job) -> None:
        """Note a stored job that succeeds."""
        queue = self._queues.get(job.function)
        if queue is None or not queue.seconds or self._number >= MOST:
            return
        if job.options is not None and job.options.keep_unique:
            return  # a submit may join it as long as it is kept
        due = self._monotonic() + queue.seconds
        # A declaration may have become shorter. Then it applies when the jobs before are due.
        queue.due.append(max(due, queue.due[-1]) if queue.due else due)
        queue.ids.append(job.id)
        self._number += 1

    def run_once(self) -> None:
        """Delete jobs that are due, at most `PER_STEP`."""
        if not self._number:
            return
        now, left = self._monotonic(), PER_STEP
        for function, queue in list(self._queues.items()):
            due = min(bisect_right(queue.due, now), left)
            if due:
                for job_id in queue.ids[:due]:
                    # A job that has not ended yet, because the store is not available, is refused and stays.
                    self._commits.put(DeleteEnded(job_id, namespace_of(function)), _ignore, _ignore)
                del queue.due[:due], queue.ids[:due]
                self._number -= due
                left -= due
            if not queue.seconds and not queue.ids:
                del self._queues[function]


def _ignore(_: object) -> None:
    """Do nothing."""
