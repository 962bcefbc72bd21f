"""Functions whose jobs stand for runs of workflows: the jobs slice's requests to the slice that begins and ends the runs.

A job of such a function is never handed to a worker. Once it is due it becomes a *root job* (``model.RUNS``), at its submission
or later, and that slice ends it. Until then it is stored as any waiting job. A pause of the function keeps runs from beginning,
as it keeps a task's jobs from starting; runs that have begun go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from mainspring.errors import ConflictError
from mainspring.jobs.run_places import RunPlaces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.access.caller import Act
    from mainspring.access.idempotency import KeyedAct
    from mainspring.errors import MainspringError
    from mainspring.jobs.held import FunctionQueue, Worker
    from mainspring.jobs.model import Job
    from mainspring.jobs.run_places import Filled
    from mainspring.jobs.store import Found
    from mainspring.jobs.table import Context
    from mainspring.storage.engine import Operation

    Joined = dict[int, Found]
    """For each job that was not stored (by its id), the one that it joins, as in the outcome of ``Submit``."""

RUNS_AT_ONCE: Final = 250
"""The most pending jobs that become root jobs in one operation."""
RETRY_DELAY: Final = 0.25
"""Seconds after which a failed operation is repeated."""


class Stored(NamedTuple):
    """The outcome of a submission."""

    joined: Joined
    refused: dict[int, str]
    """For each job whose run could not begin, the reason. Nothing of it was stored."""


class Roots(Protocol):
    """The workflows of a node, for its jobs. All methods are called on the node's thread.

    ``Workers.became_root`` has to be called with each function whose jobs stand for runs: at the start of the node, and when
    there is a new one.
    """

    def begin(self, jobs: list[Job], done: Callable[[Joined], None], failed: Callable[[MainspringError], None]) -> None:
        """Store new jobs of such functions, which are due, as root jobs, and begin their runs.

        ``failed`` is called if one of them could not begin; the others may have begun then.
        """

    def beginning(self, jobs: list[Job], act: KeyedAct) -> tuple[Operation, Callable[[Any], Stored]]:
        """Return the operation that does the same for a request with a key, and a function that reads its outcome."""

    def begin_waiting(
        self, function: bytes, limit: int, done: Callable[[int], None], failed: Callable[[MainspringError], None]
    ) -> None:
        """Begin runs for up to ``limit`` pending jobs of a function, in the order of a claim.

        ``done`` is called with the number of jobs that became root jobs; fewer than ``limit`` if no more are pending.
        """

    def fill(
        self,
        function: bytes,
        limit: int,
        keys: Sequence[bytes] | None,
        after: bytes | None,
        done: Callable[[Filled], None],
        failed: Callable[[MainspringError], None],
    ) -> None:
        """See `run_places.FillsPlaces`."""

    async def cancel(self, job_id: int, reason: str, act: Act | None = None) -> str:
        """Cancel the run of a live root job; return the state as ``Clients.cancel``: ``running`` after a request."""

    def goes_on(self, job: Job) -> Worker | None:
        """Return the worker that alone gets a new decision job, at once and without credit; None for other jobs.

        It goes on with the run: its steps run.
        """


def _nobody(job: Job) -> None:
    del job


class RootJobs:
    """Requests to ``roots`` for the jobs of a node. Without ``roots``, no function stands for runs."""

    def __init__(self, context: Context, roots: Roots | None) -> None:
        self._timers, self._clock, self._handles = context.timers, context.clock, context.handles
        self._queues = context.dispatch.queues
        self._roots = roots
        self.goes_on: Callable[[Job], Worker | None] = _nobody if roots is None else roots.goes_on
        """As of `Roots`."""
        self.functions: set[bytes] = set()
        """The functions whose jobs stand for runs."""
        self._places = None if roots is None else RunPlaces(context, roots)
        self._beginning: dict[FunctionQueue, bool] = {}
        """The functions whose pending jobs begin, each with whether more have become pending since."""

    def are_paused(self, function: bytes) -> bool:
        """Return whether the function is paused, so that none of its runs begins."""
        queue = self._queues.get(function)
        return queue is not None and queue.admission is not None and queue.admission.paused

    def due(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs of a batch whose runs begin at once."""
        functions = self.functions
        return [
            job for job in jobs if job.function in functions and not job.due_us and not self.are_paused(job.function)
        ]

    def begin(self, jobs: list[Job], done: Callable[[Joined], None], failed: Callable[[MainspringError], None]) -> None:
        """Store new jobs of such functions as root jobs."""
        _measured(self._roots, jobs).begin(jobs, done, failed)

    def beginning(self, jobs: list[Job], act: KeyedAct) -> tuple[Operation, Callable[[Any], Stored]]:
        """Return the operation that stores new jobs of such functions as root jobs; see `Roots.beginning`."""
        return _measured(self._roots, jobs).beginning(jobs, act)

    def begin_counted(self) -> None:
        """Begin runs for the jobs that are pending at the start of the node, once they are counted."""
        for function in self.functions:
            queue = self._queues.get(function)
            if queue is not None and queue.claimable():
                self.begin_waiting(queue)

    def freed(self, job: Job) -> None:
        """Note that the run of a root job has ended: its place may be another one's."""
        if self._places is not None:
            self._places.freed(job.function, job.key)

    def filled(self, function: bytes, keys: Sequence[bytes], filled: Filled) -> None:
        """Continue what a transaction has begun that stored waiting jobs of a workflow with limits."""
        if self._places is not None:
            self._places.stored(function, keys, filled)

    def tick(self, now: float, *, is_shared: bool) -> None:
        """Do the work that is due."""
        if self._places is not None:
            self._places.tick(now, is_shared=is_shared)

    def begin_waiting(self, queue: FunctionQueue) -> None:
        """Begin runs for the pending jobs of a function until no more are pending, unless the function is paused.

        If the function has limits, as many as they let.
        """
        if self.are_paused(queue.name):
            return
        if self._places is not None and self._places.limits(queue.name) is not None:
            self._places.became_pending(queue.name)
            return
        if queue in self._beginning:
            self._beginning[queue] = True
            return
        assert self._roots is not None, "there are such functions"
        self._beginning[queue] = False

        def done(number: int) -> None:
            if (self._beginning.pop(queue) or number >= RUNS_AT_ONCE) and queue.claimable():
                self.begin_waiting(queue)

        def failed(error: MainspringError) -> None:
            del error  # operations with a waiting client report the store's errors
            self._timers.at(self._clock.monotonic() + RETRY_DELAY, lambda: done(RUNS_AT_ONCE))

        self._roots.begin_waiting(queue.name, RUNS_AT_ONCE, done, failed)

    async def cancel(self, job_id: int, reason: str, act: Act | None = None) -> str:
        """Cancel the run of a live root job. Raises ConflictError."""
        if self._roots is None:
            handle = self._handles.of(job_id).decode()
            raise ConflictError(f"{handle} is a run of a workflow: cancel it at a node that runs workflows")
        return await self._roots.cancel(job_id, reason, act)


def _measured(roots: Roots | None, jobs: Sequence[Job]) -> Roots:
    assert roots is not None, "there are such functions"
    for job in jobs:
        job.input_size = len(job.payload)
    return roots
