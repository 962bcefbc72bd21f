"""The effects of groups on a node, which come together with the node's notification of the group."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mainspring.jobs.lateness import DueRow
    from mainspring.jobs.model import Job
    from mainspring.jobs.run_places import Filled
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.jobs.store import Rescheduled, Withdrawn


class Attended:
    """Passes the effects of a group to the node when it is notified of it: the store may execute it long before."""

    def __init__(self, following: JobLifecycle) -> None:
        self._following = following
        self._reserved: list[Job] = []
        self._pending: list[Callable[[], None]] = []

    def later(self, function: Callable[[], None]) -> None:
        """Call a function when the node is notified."""
        self._pending.append(function)

    def next_id(self) -> int:
        return self._following.next_id()

    def reserve(self, job: Job, term: int) -> bool:
        if not self._following.reserve(job, term):
            return False
        self._reserved.append(job)
        return True

    def add_times(self, job: Job) -> None:
        self._following.add_times(job)

    def stored(self, jobs: Sequence[Job]) -> None:
        self.later(lambda: self._following.stored(jobs))

    def waits(self, jobs: Sequence[Job], filled: Sequence[tuple[bytes, Sequence[bytes], Filled]]) -> None:
        self.later(lambda: self._following.waits(jobs, filled))

    def dropped(self, jobs: Sequence[Job]) -> None:
        self.later(lambda: self._following.dropped(jobs))

    def cancel(self, ids: Sequence[int], why: str) -> None:
        self.later(lambda: self._following.cancel(ids, why))

    def stop(self, ids: Collection[int], why: str) -> None:
        self.later(lambda: self._following.stop(ids, why))

    def dated(self, rows: Sequence[DueRow]) -> None:
        self.later(lambda: self._following.dated(rows))

    def rescheduled(self, outcomes: Sequence[Rescheduled]) -> None:
        self.later(lambda: self._following.rescheduled(outcomes))

    def begun(self, new: Sequence[Job], taken: Sequence[Job] = ()) -> None:
        self.later(lambda: self._following.begun(new, taken))

    def ended(self, jobs: Sequence[Job]) -> None:
        self.later(lambda: self._following.ended(jobs))

    def withdrawn(self, jobs: Sequence[Withdrawn], *, stop: bool = True) -> None:
        self.later(lambda: self._following.withdrawn(jobs, stop=stop))

    def notify(self, *, committed: bool) -> None:
        """Notify the node of the outcome of a group."""
        reserved, self._reserved = self._reserved, []
        pending, self._pending = self._pending, []
        if not committed:
            self._following.dropped(reserved)
            return
        for notify in pending:
            notify()
