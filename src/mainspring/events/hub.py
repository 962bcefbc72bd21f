"""A hub that publishes the changes of jobs to subscribers of the same process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Container


class Identified(Protocol):
    """A job, or anything else with an id."""

    @property
    def id(self) -> int:
        """Its number."""


class _EveryJob:
    """The ids of all jobs."""

    def __contains__(self, job_id: object) -> bool:
        return True


_EVERY_JOB: Final = _EveryJob()


class Hub:
    """Publishes jobs to the subscribers of single jobs, and to those of all jobs.

    Publishers look at ``active`` and then at ``wanted`` first, and create nothing that nobody gets. Otherwise many pages that
    each show one job would cost every other job a call for each page.
    """

    def __init__(self) -> None:
        self._of_all: dict[Callable[[Any], None], None] = {}
        self._of_one: dict[int, dict[Callable[[Any], None], None]] = {}
        self.active = False
        self.wanted: Container[int] = self._of_one
        """The ids of the jobs whose changes somebody gets: no method, because it is asked at each change of each job."""

    def subscribe(self, subscriber: Callable[[Any], None], of: int | None = None) -> None:
        """Call a function with each change from now on: of one job, or of all."""
        (self._of_all if of is None else self._of_one.setdefault(of, {}))[subscriber] = None
        self._changed()

    def unsubscribe(self, subscriber: Callable[[Any], None], of: int | None = None) -> None:
        """Stop calling a function that was subscribed with the same ``of``."""
        subscribers = self._of_all if of is None else self._of_one.get(of, {})
        subscribers.pop(subscriber, None)
        if of is not None and not subscribers:
            self._of_one.pop(of, None)
        self._changed()

    def _changed(self) -> None:
        self.active = bool(self._of_all or self._of_one)
        self.wanted = _EVERY_JOB if self._of_all else self._of_one

    def publish(self, job: Identified) -> None:
        """Call the job's subscribers; they must not raise."""
        for subscriber in (*self._of_all, *self._of_one.get(job.id, ())):
            subscriber(job)
