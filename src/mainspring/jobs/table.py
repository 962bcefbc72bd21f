"""The table of the jobs in a node's memory: leased from the store or in the foreground, waiting or running.

The table is passive. Its callers decide which jobs are assigned, claimed or given back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.ids import Term, job_ids
from mainspring.jobs.admission import AdmissionQueue
from mainspring.jobs.compaction import compact
from mainspring.jobs.held import Held
from mainspring.namespaces import namespace_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.clock import Clock
    from mainspring.ids import Handles
    from mainspring.jobs.accounts import OpenAccount
    from mainspring.jobs.dispatch import Dispatch
    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.model import Job


class JobTable:
    """Jobs by handle, foreground jobs by their uniques, and admission queues.

    ``accounts`` returns the function that opens a function's accounts.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        clock: Clock,
        handles: Handles,
        accounts: Callable[[FunctionQueue], OpenAccount],
    ) -> None:
        self._dispatch = dispatch
        self._clock = clock
        self._handles = handles
        self._accounts = accounts
        self.term = Term(0)
        """The term under which the node holds stored jobs; 0 while it has none."""
        self.next_id: Callable[[], int] = job_ids(self.term)
        """Returns the id of a new job. While the node has no term, ids of its last term remain valid."""
        self.held: dict[bytes, Held] = {}
        self.foreground: dict[tuple[bytes, bytes], Held] = {}
        """Foreground jobs with a unique, by function and unique."""
        self.foreground_bytes = 0
        """Bytes of the payloads of foreground jobs that are in memory alone."""
        self.on_the_way: set[int] = set()
        """Foreground jobs that have left the table and are not in the store yet."""

    def begin(self, term: Term) -> None:
        """Hold jobs under a new term from now on."""
        self.term = term
        self.next_id = job_ids(term)

    def fenced(self) -> None:
        """The node's term has ended."""
        self.term = Term(0)

    def find(self, job_id: int) -> Held | None:
        """Return a job by its id."""
        return self.held.get(self._handles.of(job_id))

    def has_foreground(self, function: bytes, unique: bytes) -> bool:
        """Return whether a foreground job of a function has a unique."""
        return (function, unique) in self.foreground

    def foreground_of(self, namespace: str, unique: bytes) -> Held | None:
        """Return a foreground job of a namespace by its unique; searches functions or jobs, whichever is fewer."""
        queues, foreground = self._dispatch.queues, self.foreground
        keys = foreground if len(foreground) < len(queues) else ((name, unique) for name in queues)
        found = (key for key in keys if key[1] == unique and key in foreground and namespace_of(key[0]) == namespace)
        return next((foreground[key] for key in found), None)

    def hold(self, job: Job, *, stored: bool) -> Held:
        """Take a job into memory; it is in no queue yet."""
        handle = self._handles.of(job.id)
        queue = self._dispatch.queue(job.function)
        if job.key and queue.admission is None:
            self.admission_of(queue)
        held = self.held[handle] = Held(job, handle, queue, stored=stored)
        if not stored:
            queue.foreground += 1
            self.foreground_bytes += len(job.payload)
        return held

    def release(self, held: Held) -> None:
        """Forget a job that is in no queue."""
        del self.held[held.handle]
        if not held.stored:
            job = held.job
            held.queue.foreground -= 1
            self.foreground_bytes -= len(job.payload)
            if job.unique and self.foreground.get((job.function, job.unique)) is held:
                del self.foreground[job.function, job.unique]

    def has_been_stored(self, held: Held) -> None:
        """Turn a foreground job that was stored into a background one."""
        job = held.job
        del self.foreground[job.function, job.unique]
        held.stored = True
        held.queue.leased += 1
        held.queue.foreground -= 1
        self.foreground_bytes -= len(job.payload)

    def admission_of(self, queue: FunctionQueue) -> AdmissionQueue[Held]:
        """Return a function's admission queue; create it if there is none, and move the function's waiting jobs into it."""
        admission = queue.admission
        if admission is None:
            admission = AdmissionQueue(self._clock, self._accounts(queue))
            waiting = queue.queued()
            for ready in queue.ready:
                ready.clear()
            if queue.prefer is not None:
                queue.prefer.clear()
            queue.dropped = 0
            for worker in queue.workers:
                for held in worker.running.values():
                    if held.queue is queue:
                        admission.count(held.job.key)
                        held.admission = admission
            for held in waiting:
                admission.push(held)
            queue.admission = admission
        return admission

    @staticmethod
    def remove_admission(queue: FunctionQueue) -> None:
        """Remove the admission queue of a function without limits, pause and keys; its jobs return to the plain queue."""
        admission, queue.admission = queue.admission, None
        if admission is not None:
            for held in sorted(admission.queued(), key=lambda held: held.job.id):
                queue.ready_queues()[held.job.priority].append(held)

    def tidy(self) -> None:
        """Free the memory of deleted entries."""
        compact(self.held)
        compact(self.foreground)
