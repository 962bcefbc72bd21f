"""A peer as a worker: what it runs and is ready for, and how dispatch reaches it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mainspring.api.submitting import LONG_NAME
from mainspring.faces.gearman.assignments import extended_assignment, plain_assignment
from mainspring.faces.gearman.reading import UNREAD
from mainspring.jobs.held import Worker
from mainspring.jobs.model import FUNCTION_LIMIT
from mainspring.wire.gearman.packets import Type, response

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.face import GearmanFace
    from mainspring.faces.gearman.outbox import Outbox, Slot
    from mainspring.faces.gearman.reading import Reading
    from mainspring.jobs.held import Ability, Held

_NOOP = response(Type.NOOP)
NO_JOB = response(Type.NO_JOB)


class WorkerSide:
    """The worker that a peer is, from its first word as such; ``name`` returns what people know it by."""

    __slots__ = ("_face", "_name", "_outbox", "_places", "_reading", "_service", "assigns", "grabs", "worker")

    def __init__(self, face: GearmanFace, reading: Reading, outbox: Outbox, name: Callable[[], str]) -> None:
        self._face = face
        self._service = face.service
        self._reading = reading
        self._outbox = outbox
        self._name = name
        self.worker: Worker | None = None
        self.assigns: int = Type.JOB_ASSIGN
        """How this worker is handed jobs: as it asked last."""
        self.grabs: deque[Slot] = deque()
        """The places of the answers to those requests for a job that wait for one, oldest first."""
        self._places = 0
        """Jobs that this worker is ready for, and is not sent because it has too much to read."""

    # ---- requests of the peer ----

    def as_worker(self) -> Worker:
        """Return this peer as a worker; it becomes one with its first word as such."""
        worker = self.worker
        if worker is None:
            worker = self.worker = Worker(self)
        return worker

    def register(self, function: bytes, ability: Ability) -> None:
        """This worker can run a function; it gets an error where it has too many."""
        worker = self.as_worker()
        limit = self._face.settings.functions
        if len(function) > FUNCTION_LIMIT:
            self._refuse(b"ARGUMENT_TOO_LARGE", LONG_NAME.encode())
        elif len(worker.abilities) >= limit and self._service.queue_of(function) not in worker.abilities:
            self._refuse(b"TOO_MANY_FUNCTIONS", b"a worker registers for at most %d functions" % limit)
        elif not self._service.admits(function):
            self._refuse(b"TOO_MANY_FUNCTIONS", self._service.too_many_functions().encode())
        else:
            self._service.register(worker, function, ability)

    def _refuse(self, code: bytes, message: bytes) -> None:
        self._outbox.send(response(Type.ERROR, code, message))

    def take(self, places: int) -> None:
        """This worker is ready for so many more jobs, once it has read those that were sent to it."""
        if self._reading.paused_for(UNREAD):
            self._places += places
        else:
            self._service.ready(self.as_worker(), places)

    def take_none(self) -> None:
        """This worker is ready for no jobs."""
        self._places = 0
        self._service.withdraw(self.as_worker())

    def running(self, handle: bytes) -> Held | None:
        """Return the job that this worker has under a handle."""
        return self.worker.running.get(handle) if self.worker is not None else None

    # ---- changes of the connection ----

    def hold_back(self) -> None:
        """The peer does not read what it is sent: hand it no more jobs."""
        worker = self.worker
        if worker is not None and worker.streams:
            self._places += worker.credit
            self._service.withdraw(worker)

    def go_on(self) -> None:
        """The peer has read: hand it the jobs that were held back."""
        if self._places:
            places, self._places = self._places, 0
            self.take(places)

    def gone(self) -> None:
        """The connection has ended: its jobs go to other workers."""
        if self.worker is not None:
            self._service.gone(self.worker)

    # ---- how dispatch reaches it ----

    def wake(self) -> None:
        """Send NOOP."""
        self._outbox.write(_NOOP)

    def assign(self, held: Held) -> None:
        """Hand a job over at once, in the way that the worker asked for it.

        It does not wait for its place among the answers: until those are known, it might not be this worker's any more.
        """
        worker = self.worker
        streams = worker is not None and worker.streams
        self._outbox.write(
            extended_assignment(held, self._service) if streams else plain_assignment(held, self.assigns)
        )
        if self.grabs:
            self._outbox.fill(self.grabs.popleft(), b"")

    def no_job(self) -> None:
        """Answer the oldest request for a job that waited for the store, in its place."""
        self._outbox.fill(self.grabs.popleft(), NO_JOB)

    def name(self) -> str:
        """Return the client id, or the address where it has none."""
        return self._name()

    def stop(self, held: Held, reason: bytes) -> None:
        """Send STOP; a plain worker cannot be told."""
        if self.worker is not None and self.worker.streams:
            self._outbox.write(response(Type.STOP, held.handle, held.lease, reason))
