"""Foreground jobs on their way in: they live as long as somebody waits for them.

On a node alone such a job is nowhere but in memory. Where nodes share a store it is stored if other nodes have to know of it: its
clients may be at several of them, or workers at others only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.errors import RefusedError
from mainspring.jobs.model import Job, State
from mainspring.jobs.store import Submit

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError
    from mainspring.events.hub import Hub
    from mainspring.jobs.held import Held
    from mainspring.jobs.intake import Intake, Refused
    from mainspring.jobs.listeners import Listener, Listeners
    from mainspring.jobs.store import Found
    from mainspring.jobs.uniques import Uniques
    from mainspring.jobs.window import Window

_LEASED, _PENDING = int(State.LEASED), int(State.PENDING)


class _Asking(NamedTuple):
    """A foreground job on its way in."""

    job: Job
    listener: Listener
    accepted: Callable[[int], None]
    refused: Refused


class Foreground:
    """Takes foreground jobs into a window, or into a store that others share. ``limit`` bounds their payloads in memory."""

    def __init__(
        self, window: Window, intake: Intake, uniques: Uniques, listeners: Listeners, hub: Hub, *, limit: int
    ) -> None:
        self._window = window
        self._claiming = window.claiming
        self._intake = intake
        self._uniques = uniques
        self._listeners = listeners
        self._hub = hub
        self._limit = limit
        self.look: Callable[[int], None] = lambda _: None
        """Set by the service: look an ended job up and tell who waits for it."""
        self.left: Callable[[list[int]], None] = lambda _: None
        """Set where the store is shared: nobody at this node waits for these jobs any more."""
        self.waited: Callable[[int, int], None] = lambda _job_id, _term: None
        """Set where the store is shared: somebody at this node waits for a job, and that was noted under a term."""
        self.on_the_way: set[int] = set()
        """Jobs that have left this node's memory and are not in the store yet."""

    def asks_the_store(self, job: Job) -> bool:
        """Say whether the store has to hear of a foreground job before it is accepted: it may join one, or run elsewhere."""
        return bool(job.unique) or (self._claiming.shared and not self._has_workers(job.function))

    def _has_workers(self, function: bytes) -> bool:
        queue = self._window.dispatch.queues.get(function)
        return queue is not None and bool(queue.workers)

    def submit(self, job: Job, listener: Listener, accepted: Callable[[int], None], refused: Refused) -> None:
        """Take a job that lives as long as somebody waits for it.

        ``accepted`` is called with its id, or the id of the live job of the same unique that it joins, before the listener
        hears anything.
        """
        window = self._window
        if self._claiming.shared and self.asks_the_store(job):
            self._store(_Asking(job, listener, accepted, refused))
            return
        if job.unique:
            key = (job.function, job.unique)
            known = window.foreground.get(key)
            if known is not None:
                self._listeners.add(known.job.id, listener, again=True)
                accepted(known.job.id)
                return
            if key in self._uniques.questions or window.dispatch.may_live(job.function):
                asking = _Asking(job, listener, accepted, refused)
                self._uniques.ask(key, lambda other: self._answered(asking, other), refused)
                return
        self._hold(_Asking(job, listener, accepted, refused))

    def _answered(self, asking: _Asking, other: Found | None) -> None:
        """The store has said whether a background job has the unique."""
        job = asking.job
        if other is not None:
            self._listeners.add(other.id, asking.listener, again=True)
            asking.accepted(other.id)
        elif (job.function, job.unique) in self._window.foreground:
            self.submit(*asking)
        else:
            self._hold(asking)

    def _hold(self, asking: _Asking) -> None:
        window, job = self._window, asking.job
        if window.foreground_bytes + len(job.payload) > self._limit:
            message = "the foreground jobs that wait here fill the memory given to them"
            asking.refused(RefusedError("QUEUE_ERROR", message))
            return
        if asking.listener.gone:
            asking.accepted(job.id)
            return
        job.input_size = len(job.payload)
        held = window.hold(job, stored=False)
        if job.unique:
            window.foreground[job.function, job.unique] = held
        self._listeners.add(job.id, asking.listener)
        asking.accepted(job.id)
        if self._hub.active:
            self._hub.publish(job)
        window.dispatch.push(held)
        window.serve(held.queue)

    # ---- where others may run it, or join it ----

    def _store(self, asking: _Asking) -> None:
        """Store a foreground job of a client of this node: a worker of any node may run it, and clients of any node join it."""
        window, job = self._window, asking.job
        queue = window.dispatch.known(job.function)
        job.foreground = True
        job.input_size = len(job.payload)
        if queue is not None and self._claiming.admits(queue, job):
            job.state, job.term = _LEASED, window.term
            queue.inflight += 1
            if queue.gate is not None:
                queue.gate.expect(job.key)
        else:
            job.state = _PENDING
            if queue is not None:
                queue.backlog[job.priority] += 1
        term = window.term

        def stored(joined: dict[int, Found]) -> None:
            other = joined.get(job.id)
            job_id = job.id
            if other is not None:
                job_id = other.id
                self._intake.uncount([job], joined)
            self._listeners.add(job_id, asking.listener, again=True)
            asking.accepted(job_id)
            if other is None:
                self._intake.stored([job])
            elif State(other.state).ended:
                self.look(job_id)
            if self._listeners.of(job_id):
                self.waited(job_id, term)
            elif asking.listener.gone:
                self.left([job_id])

        def failed(error: StoreError) -> None:
            self._intake.uncount([job])
            asking.refused(error)

        operation = Submit([job], stored, failed, term)
        operation.size = len(job.payload) + 300
        window.commits.put(operation)

    def pass_on(self, held: Held) -> None:
        """Store a foreground job that waits in memory: nobody here can run it any more, others may."""
        window, job = self._window, held.job
        window.release(held)
        self.on_the_way.add(job.id)
        queue = held.queue
        job.foreground, job.state = True, _PENDING
        queue.backlog[job.priority] += 1
        term = window.term

        def stored(joined: dict[int, Found]) -> None:
            del joined  # it has no unique, or it would not have been in memory
            self.on_the_way.discard(job.id)
            if self._listeners.of(job.id):
                self._intake.stored([job])
                self.waited(job.id, term)
            else:
                self.left([job.id])

        def failed(error: StoreError) -> None:
            del error
            self.on_the_way.discard(job.id)
            self._intake.uncount([job])
            self._back(job)

        window.commits.put(Submit([job], stored, failed, term))

    def _back(self, job: Job) -> None:
        """The store could not take a foreground job: it waits here as before."""
        window = self._window
        job.foreground = False
        if self._listeners.of(job.id):
            held = window.hold(job, stored=False)
            window.dispatch.push(held)
            window.serve(held.queue)
