"""Who waits for which job, and how they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakValueDictionary

import msgspec

from mainspring.jobs.compaction import compact

if TYPE_CHECKING:
    from mainspring.ids import Handles
    from mainspring.jobs.model import Job

SHARED_RESULT_BYTES: Final = 65_536
"""Bytes of a result of which there is one copy, for as long as it is being sent to anybody."""


class Listener(Protocol):
    """A client that waits for a job: how it hears of its progress and its end."""

    gone: bool
    """It has left, and waits for nothing any more, whatever it asked for is still under way."""

    def data(self, handle: bytes, data: bytes) -> None:
        """Part of the result."""

    def warning(self, handle: bytes, data: bytes) -> None:
        """A warning."""

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        """How far the worker is."""

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """The job has its outcome: ``job.state``, ``job.result``, ``job.error``; ``exception`` as a plain worker sent it."""

    def unknown(self, handle: bytes) -> None:
        """The job had ended while there was no room to tell it, and its outcome is no longer kept."""

    def has_room(self) -> bool:
        """Return whether it can be sent the outcome of another job: not while it has too much to read."""


class Listeners:
    """Job ids to listeners; also the way back, for a listener that leaves."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles
        self._by_job: dict[int, list[Listener]] = {}
        self._by_listener: dict[Listener, set[int]] = {}
        self._large: WeakValueDictionary[int, Job] = WeakValueDictionary()
        self.withheld: dict[Listener, dict[int, None]] = {}
        """The jobs that have ended, or may have, and of which listeners are told once they have room."""

    def add(self, job_id: int, listener: Listener, *, repeat: bool = False) -> None:
        """A listener waits for a job, unless it is gone.

        It is told once, or, where it waits ``repeat``, once for each time it said so.
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
        """Return the jobs that somebody waits for."""
        return list(self._by_job)

    def of(self, job_id: int) -> list[Listener]:
        """Return who waits for a job."""
        return self._by_job.get(job_id, [])

    def listens(self, job_id: int, listener: Listener) -> bool:
        """Return whether a listener still waits for a job."""
        return job_id in self._by_listener.get(listener, ())

    def waits(self, *listeners: Listener) -> bool:
        """Return whether any of some listeners waits for a job."""
        return any(listener in self._by_listener for listener in listeners)

    def remove(self, job_id: int, listener: Listener) -> None:
        """A listener no longer waits for a job."""
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
        """Return who waits for a job, for the last time."""
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
        """A listener that is gone waits for fewer jobs, by so many at most; returns those that nobody waits for any more."""
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
        """Tell everybody who waits for a job that it has ended, and has room for it.

        From others a result that the store keeps is withheld: they go on waiting, and it is looked up again when they have room.
        ``handle`` is the job's, where it is known. ``asked`` is the id under which they wait, where that one has joined the job.
        The outcome of a job that no store has is told to all: ``is_kept`` is False.
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
        """Return an ended job whose large result is being sent to somebody, by the id that was asked for."""
        return self._large.get(job_id)

    def tidy(self) -> None:
        """Give back the memory of what nobody waits for any more."""
        compact(self._by_job)

    def __len__(self) -> int:
        return len(self._by_job)
