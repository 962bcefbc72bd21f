"""The tables of a node's memory: jobs, leased from the store or in the foreground, and the clients that wait for jobs.

The tables are passive. Their callers decide which jobs are assigned, claimed or given back, and which listeners are notified.

`Context` has the objects that all parts of the jobs slice share. `Uniques` queries the store for live uniques.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

import msgspec

from mainspring.clock import Clock  # noqa: TC001 - mypyc evaluates the types of a named tuple
from mainspring.events import Hub  # noqa: TC001
from mainspring.ids import Handles, Term, job_ids
from mainspring.jobs.admission import AdmissionQueue
from mainspring.jobs.dispatch import Dispatch  # noqa: TC001
from mainspring.jobs.held import Held, compact
from mainspring.jobs.store import FindUnique
from mainspring.namespaces import ANY, DEFAULT, namespace_of
from mainspring.storage.commit_queue import CommitQueue  # noqa: TC001
from mainspring.turns_of_loop import LongWork, Timers  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError
    from mainspring.jobs.admission import OpenAccount
    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import Found


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
        if job.unique:
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


SHARED_RESULT_BYTES: Final = 65_536
"""Bytes of a result from which on all clients share one copy while it is being sent."""


class Listener(Protocol):
    """A client that waits for a job: the calls with its progress and its end."""

    gone: bool
    """It has left, and waits for no job, even if its requests are still in progress."""

    def data(self, handle: bytes, data: bytes) -> None:
        """Part of the result."""

    def warning(self, handle: bytes, data: bytes) -> None:
        """A warning."""

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        """The progress of the worker."""

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """The job has ended: ``job.state``, ``job.result``, ``job.error``; ``exception`` as a plain worker sent it."""

    def unknown(self, handle: bytes) -> None:
        """The job ended while the client had no room for its outcome, which is no longer kept."""

    def has_room(self) -> bool:
        """Return whether another outcome may be sent: not while the client has too much to read."""


class Listeners:
    """Maps job ids to listeners, and listeners to their jobs."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles
        self._by_job: dict[int, list[Listener]] = {}
        self._by_listener: dict[Listener, set[int]] = {}
        self._large: WeakValueDictionary[int, Job] = WeakValueDictionary()
        self.several_namespaces = False
        """Whether clients or workers of other namespaces than ``default`` have connected to this node."""
        self.withheld: dict[Listener, dict[int, None]] = {}
        """By listener, the jobs that have ended, or may have, and that are looked up once the listener has room."""

    def expect_namespaces(self) -> None:
        """Prepare for jobs of several namespaces, from now on."""
        self.several_namespaces = True

    @property
    def namespace(self) -> str:
        """Return the namespace of all jobs that listeners may wait for.

        With several ones, `Clients.wait` adds a listener only once the namespace of its job is known.
        """
        return ANY if self.several_namespaces else DEFAULT

    def add(self, job_id: int, listener: Listener, *, repeat: bool = False) -> None:
        """Add a listener of a job, unless it is gone.

        It is notified once, or, with ``repeat``, once for each call.
        """
        if listener.gone:
            return
        listeners = self._by_job.get(job_id)
        if listeners is None:
            self._by_job[job_id] = [listener]
        elif repeat or listener not in listeners:
            listeners.append(listener)
        jobs = self._by_listener.get(listener)
        if jobs is None:
            self._by_listener[listener] = {job_id}
        else:
            jobs.add(job_id)

    def jobs(self) -> list[int]:
        """Return the jobs that have listeners."""
        return list(self._by_job)

    def of(self, job_id: int) -> list[Listener]:
        """Return the listeners of a job."""
        return self._by_job.get(job_id, [])

    def listens(self, job_id: int, listener: Listener) -> bool:
        """Return whether a listener waits for a job."""
        return job_id in self._by_listener.get(listener, ())

    def waits(self, *listeners: Listener) -> bool:
        """Return whether any of some listeners waits for a job."""
        return any(listener in self._by_listener for listener in listeners)

    def remove(self, job_id: int, listener: Listener) -> None:
        """Remove a listener of a job."""
        jobs = self._by_listener.get(listener)
        if jobs is None or job_id not in jobs:
            return
        jobs.discard(job_id)
        if not jobs:
            del self._by_listener[listener]
        others = [other for other in self._by_job[job_id] if other is not listener]
        if others:
            self._by_job[job_id] = others
        else:
            del self._by_job[job_id]

    def pop(self, job_id: int) -> list[Listener]:
        """Remove and return the listeners of a job."""
        listeners = self._by_job.pop(job_id, None)
        if listeners is None:
            return []
        for listener in listeners:
            jobs = self._by_listener.get(listener)
            if jobs is not None:
                jobs.discard(job_id)
                if not jobs:
                    del self._by_listener[listener]
        return listeners

    def leave(self, listener: Listener, most: int) -> list[int]:
        """Remove a departed listener from at most ``most`` jobs; return those without listeners now."""
        alone: list[int] = []
        jobs = self._by_listener.get(listener)
        if jobs is None:
            return alone
        for _ in range(min(most, len(jobs))):
            job_id = jobs.pop()
            others = [other for other in self._by_job[job_id] if other is not listener]
            if others:
                self._by_job[job_id] = others
            else:
                del self._by_job[job_id]
                alone.append(job_id)
        if not jobs:
            del self._by_listener[listener]
        return alone

    def notify(
        self,
        job: Job,
        exception: bytes | None = None,
        *,
        handle: bytes | None = None,
        asked: int | None = None,
        is_kept: bool = True,
    ) -> None:
        """Notify the listeners of a job that it has ended, if they have room for the outcome.

        From the others the outcome is withheld: they continue to wait, and it is looked up again when they have room. A job that
        is in memory alone (``is_kept`` is False) is reported to all. ``handle`` is the job's handle, if the caller has it.
        ``asked`` is the id under which the listeners wait, if that job has joined this one.
        """
        if asked is not None and asked != job.id:
            job = msgspec.structs.replace(job, id=asked)
        listeners = self.pop(job.id)
        if not listeners:
            return
        if len(job.result) > SHARED_RESULT_BYTES:
            self._large[job.id] = job
        if handle is None:
            handle = self._handles.of(job.id)
        for listener in listeners:
            if is_kept and not listener.has_room():
                self.add(job.id, listener, repeat=True)
                self.withhold(job.id, listener)
            else:
                listener.ended(handle, job, exception)

    def withhold(self, job_id: int, listener: Listener) -> None:
        """Look a job up for a listener once it has room."""
        if not listener.gone:
            self.withheld.setdefault(listener, {})[job_id] = None

    def under_way(self, job_id: int) -> Job | None:
        """Return an ended job whose large result is being sent to a client, by the id that was requested."""
        return self._large.get(job_id)

    def tidy(self) -> None:
        """Free the memory of deleted entries."""
        compact(self._by_job)

    def __len__(self) -> int:
        return len(self._by_job)


if TYPE_CHECKING:
    Key = tuple[bytes, bytes]
    """A function and a unique."""
    Answer = Callable[[Found | None], None]
    Failed = Callable[[StoreError], None]


class _Question:
    __slots__ = ("asking", "overtaken")

    def __init__(self, first: tuple[Answer, Failed]) -> None:
        self.asking = [first]
        self.overtaken = False
        """A job with this unique was sent to the store after the query."""


class Uniques:
    """Sends one query for each unique, however many callers wait for it, and repeats it if the answer may be outdated."""

    def __init__(self, commits: CommitQueue) -> None:
        self._commits = commits
        self.questions: dict[Key, _Question] = {}

    def ask(self, key: Key, answer: Answer, failed: Failed) -> None:
        """Query the store; further calls with the same key share the answer, in their order."""
        question = self.questions.get(key)
        if question is not None:
            question.asking.append((answer, failed))
            return
        self.questions[key] = _Question((answer, failed))
        self._find(key)

    def _find(self, key: Key) -> None:
        def found(outcome: list[Found | None]) -> None:
            other = outcome[0]
            question = self.questions[key]
            if other is None and question.overtaken:
                question.overtaken = False
                self._find(key)
                return
            del self.questions[key]
            for answer, _ in question.asking:
                answer(other)

        def not_found(error: StoreError) -> None:
            for _, failed in self.questions.pop(key).asking:
                failed(error)

        self._commits.put(FindUnique([key]), found, not_found)

    def overtake(self, key: Key) -> None:
        """Note that a job of this function and unique was sent to the store; the counts include it already.

        A query in progress for that unique has to be repeated: its answer may be older.
        """
        question = self.questions.get(key)
        if question is not None:
            question.overtaken = True


class Context(NamedTuple):
    """Passive objects without references to the parts that use them. Each part copies what it needs when it is created."""

    table: JobTable
    dispatch: Dispatch
    commits: CommitQueue
    timers: Timers
    clock: Clock
    handles: Handles
    listeners: Listeners
    hub: Hub
    uniques: Uniques
    slices: LongWork
