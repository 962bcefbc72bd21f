"""A hub that publishes the changes of jobs to subscribers of the same process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Identified(Protocol):
    """A job, or anything else with an id."""

    @property
    def id(self) -> int: ...


class Hub:
    """Publishes jobs to the subscribers of single jobs, and to those of all jobs.

    Publishers ask ``active`` and then `wants` first, and create nothing that nobody gets: many pages that each show one job must not
    cost all other jobs a call for each page.
    """

    def __init__(self) -> None:
        self._of_all: dict[Callable[[Any], None], None] = {}
        self._of_one: dict[int, dict[Callable[[Any], None], None]] = {}
        self.active = False

    def subscribe(self, subscriber: Callable[[Any], None], of: int | None = None) -> None:
        """Call a function with each change from now on: of one job, or of all."""
        (self._of_all if of is None else self._of_one.setdefault(of, {}))[subscriber] = None
        self.active = True

    def unsubscribe(self, subscriber: Callable[[Any], None], of: int | None = None) -> None:
        """Stop calling a function that was subscribed with the same ``of``."""
        subscribers = self._of_all if of is None else self._of_one.get(of, {})
        subscribers.pop(subscriber, None)
        if of is not None and not subscribers:
            self._of_one.pop(of, None)
        self.active = bool(self._of_all or self._of_one)

    def wants(self, job_id: int) -> bool:
        """Return whether somebody gets the changes of a job."""
        return job_id in self._of_one or bool(self._of_all)

    def publish(self, job: Identified) -> None:
        """Call the job's subscribers; they must not raise."""
        for subscriber in (*self._of_all, *self._of_one.get(job.id, ())):
            subscriber(job)
