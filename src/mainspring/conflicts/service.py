"""The node's part in submits by a rule: it puts them into groups, and releases successors soon after the ends of other jobs.

A node waits for the predecessors of the successors that it has stored, as a client does. A look every few seconds finds the
others: those of nodes that are gone, or of predecessors whose end no message has reported.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from mainspring.callbacks import Callback, CallInProgress, shielded
from mainspring.clock import to_us
from mainspring.conflicts.rules import REPLACED
from mainspring.conflicts.store import Released, ReleaseSuccessors, SubmitByRule
from mainspring.errors import RefusedError, UsageError
from mainspring.namespaces import ANY, namespace_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.callbacks import Done, Failed
    from mainspring.clock import Clock
    from mainspring.conflicts.rules import Rule
    from mainspring.conflicts.store import Placed
    from mainspring.errors import StoreError
    from mainspring.jobs.held import Held
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService
    from mainspring.storage.commit_queue import CommitQueue

LOOK_INTERVAL: Final = 1.0
"""Seconds between looks while successors wait."""
IDLE_INTERVAL: Final = 10.0
"""Seconds between looks while this node knows of none."""
LOOK_KEY: Final = "successors"
"""The name by which one node is the first that looks."""
FOR_TASKS: Final = "on_conflict and debounce are for tasks: a submit of a workflow joins the open run of its id"
"""The refusal of a rule for a run."""
ROUNDS: Final = 5
"""How often a submit stores a foreground job of its unique before it gives up."""


class ConflictService:
    """Submits by a rule at a node, which calls ``check`` once a second.

    On a shared store ``first`` returns whether this node is the first in line for a name.
    """

    def __init__(
        self, commits: CommitQueue, clock: Clock, service: JobService, *, first: Callable[[str], bool] | None = None
    ) -> None:
        self._commits = commits
        self._clock = clock
        self._service = service
        self._first = first or (lambda _: True)
        self._look_at = clock.monotonic() + LOOK_INTERVAL
        self._is_looking = False
        self._looks_again = False

    # ---- submits ----

    @shielded
    async def submit(self, job: Job, rule: Rule) -> Placed:
        """Store a new background job by a rule, or let a job stand for it. Raises UsageError, StoreError and RefusedError."""
        if job.function in self._service.roots.functions:
            raise UsageError(FOR_TASKS)
        for _ in range(ROUNDS):
            held = self._service.table.foreground.get((job.function, job.unique))
            if held is not None:
                # A job that only a client waits for is stored first: then it is a live job as any.
                await Callback[None](partial(self._store_foreground, held, job))
            placed: Placed = await self._commits.committed(SubmitByRule(job, rule, to_us(self._clock.wall())))
            if not placed.in_memory:
                self._placed(placed, job)
                return placed
        raise RefusedError("QUEUE_ERROR", "a foreground job has the unique of this submit: try again")

    def _store_foreground(self, held: Held, job: Job, done: Done, failed: Failed) -> None:
        self._service.intake.store_foreground(held, job, lambda: done(None), failed)

    def _placed(self, placed: Placed, job: Job) -> None:
        """Count and announce what a submit has changed, and wait for the end of its predecessor."""
        service = self._service
        if placed.cancelled is not None:
            service.stored_changes.cancelled([placed.cancelled])
        if placed.rescheduled is not None:
            service.stored_changes.rescheduled([placed.rescheduled])
        if placed.wake_us:
            service.wake_at(placed.wake_us)
        if placed.is_root:
            self._cancel_run(placed.predecessor, job.function)
        if placed.is_new and placed.predecessor:
            self._look_at = min(self._look_at, self._clock.monotonic() + LOOK_INTERVAL)
            service.waits.wait(placed.predecessor, EndWatch(self.look), self.look, namespace=ANY)

    def _cancel_run(self, job_id: int, function: bytes) -> None:
        """Ask for the end of a run; looks repeat it while the run is open."""
        cancelling = self._service.clients.cancel(job_id, REPLACED, namespace=namespace_of(function))
        CallInProgress(cancelling, lambda _: None, lambda _: None)

    # ---- looks ----

    def check(self, now: float) -> None:
        """Look, if it is time. It is called once a second."""
        if now < self._look_at or self._service.dispatch.paused:
            return
        self._look_at = now + IDLE_INTERVAL
        if self._first(LOOK_KEY):
            self.look()

    def look(self) -> None:
        """Release the successors whose predecessors have ended."""
        if self._is_looking:
            self._looks_again = True
            return
        self._is_looking = True
        self._looks_again = False
        self._commits.put(ReleaseSuccessors(to_us(self._clock.wall())), self._looked, self._not_looked)

    def _looked(self, released: Released) -> None:
        self._is_looking = False
        if released.due_us:
            self._service.wake_at(min(released.due_us))
        for job_id, function in released.stopping:
            self._cancel_run(job_id, function)
        if released.any:
            self._look_at = min(self._look_at, self._clock.monotonic() + LOOK_INTERVAL)
        if released.more or self._looks_again:
            self.look()

    def _not_looked(self, error: StoreError) -> None:
        del error  # the next look repeats it
        self._is_looking = False
        self._look_at = min(self._look_at, self._clock.monotonic() + LOOK_INTERVAL)


class EndWatch:
    """Waits for the end of one job (`jobs.table.Listener`), and ignores what the job sends before it."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self.gone = False
        self._ended = ended

    def data(self, handle: bytes, data: bytes) -> None:
        """Ignore a part of the result."""

    def warning(self, handle: bytes, data: bytes) -> None:
        """Ignore a warning."""

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        """Ignore progress."""

    def has_room(self) -> bool:
        """Return True: nothing is kept."""
        return True

    def unknown(self, handle: bytes) -> None:
        """Look: the job was deleted."""
        del handle
        self._ended()

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """Look once the end is committed."""
        del handle, job, exception
        self._ended()
