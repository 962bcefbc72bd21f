"""Listeners: the clients that wait for jobs, and their notification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakValueDictionary

import msgspec

from mainspring.jobs.compaction import compact
from mainspring.namespaces import ANY, DEFAULT

if TYPE_CHECKING:
    from mainspring.ids import Handles
    from mainspring.jobs.model import Job

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
