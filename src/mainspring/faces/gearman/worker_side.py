"""The worker side of a peer: its functions, its readiness for jobs, and the messages of the dispatcher.

A job is assigned with one packet, in plain Gearman or in the extension.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from mainspring.access.caller import LOCAL
from mainspring.api.submitting import LONG_NAME
from mainspring.clock import to_us
from mainspring.faces.gearman.peer_io import UNREAD
from mainspring.faces.gearman.peers import About
from mainspring.jobs import rules
from mainspring.jobs.held import LOST, SILENT, Worker
from mainspring.jobs.model import FUNCTION_LIMIT, OWN_FUNCTION, is_own
from mainspring.namespaces import prefix, split_text
from mainspring.wire.gearman_protocol import Type, original_unique, response

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.face import GearmanFace
    from mainspring.faces.gearman.peer_io import Outbox, Reading, Slot
    from mainspring.faces.gearman.peers import Silence
    from mainspring.jobs.held import Ability, Held
    from mainspring.jobs.service import JobService
    from mainspring.nodes.model import Pace

_NOOP = response(Type.NOOP)
NO_JOB = response(Type.NO_JOB)


class WorkerSide:
    """The worker of a peer, created by its first worker request; ``name`` returns its name for people."""

    __slots__ = (
        "_face",
        "_name",
        "_outbox",
        "_places",
        "_reading",
        "_service",
        "_silence",
        "_sleeps",
        "about",
        "assigns",
        "caller",
        "connected_us",
        "draining",
        "grabs",
        "has_paused",
        "number",
        "pace",
        "prefix",
        "worker",
    )

    def __init__(
        self, face: GearmanFace, reading: Reading, outbox: Outbox, name: Callable[[], str], silence: Silence
    ) -> None:
        self._face = face
        self._silence = silence
        self._service = face.service
        self._reading = reading
        self._outbox = outbox
        self._name = name
        self.worker: Worker | None = None
        self.caller = LOCAL
        """The origin of its requests."""
        self.prefix = b""
        """The bytes before the names of functions in their keys; see ``namespaces``."""
        self.assigns: int = Type.JOB_ASSIGN
        """The packet type of assignments, set by the worker's last request for a job."""
        self.grabs: deque[Slot] = deque()
        """The places of the answers to requests for a job that are pending, oldest first."""
        self._places = 0
        """Jobs that this worker is ready for but does not get yet, because it drains, is silent or has not read its data."""
        self.number = 0
        """Its number among the workers that have connected to this node; 0 without a worker."""
        self.connected_us = 0
        """When it became a worker: microseconds of wall time."""
        self.about = About()
        self.pace: Pace | None = None
        """Its last report about its heartbeats."""
        self.draining = False
        """Whether it gets no more jobs, because an operator asked for that."""
        self.has_paused = False
        """Whether it has withdrawn its last request for jobs: if it ends now, that is no loss."""
        self._sleeps = False
        """Whether a draining worker of plain Gearman waits to be woken."""

    # ---- requests of the peer ----

    def use_namespace(self, namespace: str) -> None:
        """Take the names of functions for names of a namespace from now on."""
        self.prefix = prefix(namespace)

    def as_worker(self) -> Worker:
        """Return this peer's worker; create it on first use."""
        worker = self.worker
        if worker is None:
            worker = self.worker = Worker(self)
            self.number = self._face.next_worker()
            self.connected_us = to_us(self._service.clock.wall())
        return worker

    def describe(self, about: About) -> None:
        """Keep this worker's description of itself."""
        self.as_worker()
        self.about = about

    def report_pace(self, pace: Pace) -> None:
        """Keep a report about this worker's heartbeats. While it is full, it gets no jobs of functions with timeouts of them."""
        self.pace = pace
        self._service.workers.hold_off(self.as_worker(), pace.full)

    def register(self, name: bytes, ability: Ability) -> None:
        """Register this worker for a function of its namespace, or answer with an error if it has too many."""
        worker = self.as_worker()
        limit = self._face.settings.functions
        function = self.prefix + name
        if len(name) > FUNCTION_LIMIT:
            self._refuse(b"ARGUMENT_TOO_LARGE", LONG_NAME.encode())
        elif is_own(name):
            self._refuse(b"INVALID_FUNCTION_NAME", OWN_FUNCTION.encode())
        elif len(worker.abilities) >= limit and self._service.dispatch.queues.get(function) not in worker.abilities:
            self._refuse(b"TOO_MANY_FUNCTIONS", b"a worker registers for at most %d functions" % limit)
        elif not self._service.dispatch.admits(function, self.caller):
            self._refuse(b"TOO_MANY_FUNCTIONS", self._service.roster.too_many(function, self.caller).encode())
        else:
            self._service.workers.register(worker, function, ability)

    def _refuse(self, code: bytes, message: bytes) -> None:
        self._outbox.send(response(Type.ERROR, code, message))

    def ready(self, places: int) -> None:
        """Record that this worker is ready for more jobs, once it has read the data that was sent to it."""
        self.has_paused = False
        if self.draining or self._silence.since_us or self._reading.paused_for(UNREAD):
            self._places += places
        else:
            self._service.workers.ready(self.as_worker(), places)

    def sleep(self) -> bool:
        """Put a worker of plain Gearman to sleep; return True if it must be woken at once."""
        if self.draining:
            self._sleeps = True
            return False
        return self._service.assigner.sleep(self.as_worker())

    def withdraw(self) -> None:
        """Record that this worker is ready for no jobs, as it is before its end."""
        self.has_paused = True
        self._places = 0
        self._service.dispatch.withdraw(self.as_worker())

    def running(self, handle: bytes) -> Held | None:
        """Return the job that this worker runs under a handle."""
        return self.worker.running.get(handle) if self.worker is not None else None

    # ---- requests of operators ----

    def drain(self, draining: bool) -> None:
        """Give this worker no more jobs from now on, or give it jobs again. Its running jobs continue."""
        worker = self.as_worker()
        if draining and not self.draining:
            self.withhold()
            if worker.asleep:
                self._sleeps = True
                self._service.dispatch.rouse(worker)
        elif self.draining and not draining:
            self.draining = False
            if not self._reading.paused_for(UNREAD):
                self.resume()
            if self._sleeps:
                self._sleeps = False
                self.wake()
        self.draining = draining

    def end(self) -> bool:
        """Ask this worker to stop once its jobs have ended; return False if it does not take such requests."""
        if self.about.stops:
            self._outbox.write(response(Type.STOP, b"", b"", b"stop"))
        return self.about.stops

    # ---- changes of the connection ----

    @property
    def silent_us(self) -> int:
        """Return since when the peer is silent, as wall time in microseconds; 0 if it is not."""
        return self._silence.since_us

    def withhold(self) -> None:
        """Assign no more jobs to a peer that does not read its data, or is silent."""
        worker = self.worker
        if worker is not None and worker.streams:
            self._places += worker.credit
            self._service.dispatch.withdraw(worker)

    def resume(self) -> None:
        """Assign the withheld jobs to a peer that has read its data, or has sent something."""
        if self._places:
            places, self._places = self._places, 0
            self.ready(places)

    def gone(self) -> None:
        """End this worker: release its jobs, answer its pending requests for jobs, and assign none from now on."""
        if self.worker is not None:
            self._service.workers.gone(self.worker)
        while self.grabs:
            self.no_job()

    # ---- messages of the dispatcher ----

    def wake(self) -> None:
        """Send NOOP."""
        self._outbox.write(_NOOP)

    def assign(self, held: Held) -> None:
        """Assign a job at once, in the form that the worker has requested.

        The assignment does not wait for earlier answers: until these are complete, the job might be assigned to another worker.
        """
        worker = self.worker
        streams = worker is not None and worker.streams
        self._outbox.write(
            extended_assignment(held, self._service, len(self.prefix))
            if streams
            else plain_assignment(held, self.assigns, len(self.prefix))
        )
        if self.grabs:
            self._outbox.fill(self.grabs.popleft(), b"")

    def no_job(self) -> None:
        """Answer the oldest pending request for a job, in its place."""
        self._outbox.fill(self.grabs.popleft(), NO_JOB)

    def name(self) -> str:
        """Return the client id, or the address of a peer without one."""
        return self._name()

    def stop(self, held: Held, reason: bytes) -> None:
        """Send STOP; plain Gearman has no such message."""
        if self.worker is not None and self.worker.streams:
            if reason == SILENT:
                self._silence.begin(to_us(self._service.clock.wall()))
                reason = LOST
            self._outbox.write(response(Type.STOP, held.handle, held.token, reason))


_JOB_ASSIGN = int(Type.JOB_ASSIGN)
_encode = msgspec.json.Encoder().encode


def plain_assignment(held: Held, kind: int, before: int) -> bytes:
    """Return the packet that assigns a job to a plain worker; ``kind`` is the packet type that its request selects.

    ``before`` is the number of bytes before the function's name in its key.
    """
    job = held.job
    function = job.function[before:] if before else job.function
    if kind == _JOB_ASSIGN:
        return response(_JOB_ASSIGN, held.handle, function, job.payload)
    unique = original_unique(job.unique)
    if kind == Type.JOB_ASSIGN_ALL and job.options is not None and job.options.reducer:
        return response(Type.JOB_ASSIGN_ALL, held.handle, function, unique, job.options.reducer, job.payload)
    return response(Type.JOB_ASSIGN_UNIQ, held.handle, function, unique, job.payload)


def extended_assignment(held: Held, service: JobService, before: int) -> bytes:
    """Return the packet that assigns a job to a worker of the extension; ``before`` is as above."""
    job = held.job
    function = job.function[before:] if before else job.function
    info: dict[str, object] = {
        "attempt": job.attempt + 1,
        "term": service.term,
        "submitted_at": job.created_us / 1_000_000,
    }
    ability = held.ability
    options = job.options
    for name in ("timeout", "heartbeat"):
        seconds = getattr(options, name) if options is not None else None
        if seconds is None and ability is not None:
            seconds = getattr(ability, name)
        if seconds is not None:
            info[name] = seconds
            if name == "timeout":
                info["deadline"] = held.started_us / 1_000_000 + seconds
    if options is not None and options.run is not None:
        info["run"], info["ref"] = str(options.run[0]), options.ref
    if options is not None and options.fire_us:
        info["fire_time"] = options.fire_us / 1_000_000
    if options is not None and options.completion is not None:
        info["completion"] = options.completion
    if options is not None and options.depth:
        info["depth"] = options.depth
    if job.suspects and rules.may_kill_workers(job):
        info["alone"] = True
    if held.slots is not None and held.slots.holds:
        info["resources"] = [
            (split_text(hold.resource)[1], hold.item, hold.units, hold.number) for hold in held.slots.holds
        ]
        if held.slots.metas:
            info["metas"] = [
                (split_text(name)[1], item, msgspec.Raw(meta or b"null")) for name, item, meta in held.slots.metas
            ]
    policy = service.settling.policy(held)
    if policy is not None:
        info["max_attempts"] = policy.max_attempts
        if options is not None and options.retry is not None:
            info["retry"] = policy  # the worker has its own policy already
    return response(Type.ASSIGN, held.handle, held.token, function, job.unique, _encode(info), job.payload)
