"""Outcomes on their way to those who wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

import msgspec

if TYPE_CHECKING:
    from mainspring.ids import Handles
    from mainspring.jobs.listeners import Listener, Listeners
    from mainspring.jobs.model import Job

LARGE: Final = 65_536
"""Bytes of a result of which there is one copy, for as long as it is being sent to anybody."""


class Telling:
    """Tells those who wait for a job that it has ended, those that have room for it.

    From others a result that the store keeps is withheld: they go on waiting, and it is looked up again when they have room.
    """

    def __init__(self, handles: Handles, listeners: Listeners) -> None:
        self._handles = handles
        self._listeners = listeners
        self._large: WeakValueDictionary[int, Job] = WeakValueDictionary()
        self.withheld: dict[Listener, dict[int, None]] = {}
        """The jobs that have ended, or may have, and of which listeners are told once they have room."""

    def tell(
        self,
        job: Job,
        exception: bytes | None = None,
        *,
        handle: bytes | None = None,
        asked: int | None = None,
        is_kept: bool = True,
    ) -> None:
        """Tell everybody who waits for a job that it has ended.

        ``handle`` is the job's, where it is known. ``asked`` is the id under which they wait, where that one has joined the job.
        The outcome of a job that no store has is told to all: ``is_kept`` is False.
        """
        if asked is not None and asked != job.id:
            job = msgspec.structs.replace(job, id=asked)
        listeners = self._listeners.take(job.id)
        if not listeners:
            return
        if len(job.result) > LARGE:
            self._large[job.id] = job
        if handle is None:
            handle = self._handles.of(job.id)
        for listener in listeners:
            if is_kept and not listener.has_room():
                self._listeners.add(job.id, listener, again=True)
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
