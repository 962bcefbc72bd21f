"""Clients that wait for the ends of jobs, which may be in this node's memory, held by another node, or only in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.store import Find
from mainspring.namespaces import ANY, DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.errors import StoreError
    from mainspring.jobs.context import Context
    from mainspring.jobs.listeners import Listener
    from mainspring.jobs.model import Job
    from mainspring.jobs.outcome_reader import OutcomeReader
    from mainspring.jobs.serving import Serving
    from mainspring.jobs.subscriptions import Subscriptions

RETRY_DELAY = 0.25
"""Seconds after which a failed lookup is repeated."""
LEAVE_STEP = 500
"""Jobs of a departed client that one step processes: the client may have waited for hundreds of thousands."""


class Waits:
    """Adds and removes waiting clients. ``subscriptions`` is given if the store is shared."""

    def __init__(
        self, context: Context, serving: Serving, outcomes: OutcomeReader, subscriptions: Subscriptions | None
    ) -> None:
        self._table, self._commits, self._listeners = context.table, context.commits, context.listeners
        self._clock, self._timers, self._slices = context.clock, context.timers, context.slices
        self._serving = serving
        self._outcomes = outcomes
        self._subscriptions = subscriptions

    def wait(
        self,
        job_id: int,
        listener: Listener,
        unknown: Callable[[], None],
        looked_up: Callable[[], None] = lambda: None,
        namespace: str = DEFAULT,
    ) -> None:
        """Notify a listener when a job has ended, at once if it has; call ``unknown`` if the namespace has no such job.

        ``looked_up`` is called once, when the lookup in the store is done or not needed.
        """
        held = self._table.find(job_id)
        if held is not None:
            if held.is_in(namespace):
                self._listeners.add(job_id, listener)
                looked_up()
            else:
                looked_up()
                unknown()
        elif not self._listeners.several_namespaces or namespace == ANY:
            self._look(job_id, listener, unknown, looked_up)
        else:
            self._check(job_id, listener, unknown, looked_up, namespace)

    def _check(
        self,
        job_id: int,
        listener: Listener,
        unknown: Callable[[], None],
        looked_up: Callable[[], None],
        namespace: str,
    ) -> None:
        """Wait for a stored job once the store has it in the namespace: a listener gets all that its job reports."""

        def found(jobs: dict[int, Job]) -> None:
            if job_id in jobs:
                self._wait(job_id, listener, unknown, looked_up)
            else:
                looked_up()
                unknown()

        def failed(error: StoreError) -> None:
            # A failed lookup does not mean an unknown job: a client would submit that job again.
            del error
            self._timers.at(
                self._clock.monotonic() + RETRY_DELAY,
                lambda: self._check(job_id, listener, unknown, looked_up, namespace),
            )

        if not listener.gone:
            self._commits.put(Find([job_id], 0, namespace), found, failed)

    def _wait(
        self, job_id: int, listener: Listener, unknown: Callable[[], None], looked_up: Callable[[], None]
    ) -> None:
        if self._table.find(job_id) is not None:
            self._listeners.add(job_id, listener)
            looked_up()
        else:
            self._look(job_id, listener, unknown, looked_up)

    def _look(
        self, job_id: int, listener: Listener, unknown: Callable[[], None], looked_up: Callable[[], None]
    ) -> None:
        """Look a job up that is not in memory."""
        self._listeners.add(job_id, listener)

        def is_unknown() -> None:
            self._listeners.remove(job_id, listener)
            unknown()

        self._outcomes.look(job_id, is_unknown, looked_up)

    def has_room(self, listener: Listener) -> None:
        """Resume the lookups of a listener whose buffer was full."""
        self._outcomes.has_room(listener)

    def gone(self, listener: Listener) -> None:
        """Remove a departed client, and drop the waiting foreground jobs that it alone waited for."""
        listener.gone = True
        if self._leave(listener):
            self._slices.run(self._leave_all(listener))

    def _leave_all(self, listener: Listener) -> Iterator[None]:
        while self._leave(listener):
            yield

    def _leave(self, listener: Listener) -> bool:
        """Remove a departed client from some of its jobs; return whether there are more."""
        alone = self._listeners.leave(listener, LEAVE_STEP)
        for job_id in alone:
            held = self._table.find(job_id)
            if held is not None and not held.stored and not held.adopting and held.worker is None:
                self._serving.release(held)
        if self._subscriptions is not None and alone:
            self._subscriptions.left(alone)
        if self._listeners.waits(listener):
            return True
        self._outcomes.gone(listener)
        return False
