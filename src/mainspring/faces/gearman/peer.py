"""One connection on the Gearman port: bytes to messages to handlers, and answers back in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from mainspring.faces.gearman import administration, clients, extension, workers
from mainspring.faces.gearman.listening import PlainListener, ResultListener
from mainspring.faces.gearman.outbox import Outbox
from mainspring.faces.gearman.outgoing import Outgoing
from mainspring.faces.gearman.outstanding import Outstanding
from mainspring.faces.gearman.reading import UNREAD, Reading
from mainspring.jobs.held import Worker
from mainspring.jobs.model import FUNCTION_LIMIT, UNIQUE_LIMIT, Job, Priority, State
from mainspring.jobs.store import Find
from mainspring.wire.gearman.connection import BAD, FATAL, OVERSIZED, TEXT, Connection
from mainspring.wire.gearman.packets import Type, response

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.face import GearmanFace
    from mainspring.faces.gearman.listings import Listing
    from mainspring.faces.gearman.outbox import Slot
    from mainspring.jobs.held import Ability, Held
    from mainspring.wire.gearman.connection import Message

    Handler = Callable[["Peer", list[bytes]], None]

_BACKGROUND: dict[int, int] = {
    Type.SUBMIT_JOB_BG: Priority.NORMAL,
    Type.SUBMIT_JOB_HIGH_BG: Priority.HIGH,
    Type.SUBMIT_JOB_LOW_BG: Priority.LOW,
}
_PENDING = int(State.PENDING)
_SUBMIT = int(Type.SUBMIT)
_JOB_CREATED = int(Type.JOB_CREATED)


def _bad(peer: Peer, args: list[bytes]) -> None:
    peer.outbox.send(response(Type.ERROR, *args))


def _fatal(peer: Peer, args: list[bytes]) -> None:
    peer.outbox.send(response(Type.ERROR, *args))
    peer.end()


_HANDLERS: dict[int, Handler] = {
    **clients.HANDLERS,
    **workers.HANDLERS,
    **extension.HANDLERS,
    TEXT: administration.command,
    BAD: _bad,
    FATAL: _fatal,
    OVERSIZED: workers.oversized,
}


TLS_REQUIRED = response(Type.ERROR, b"TLS_REQUIRED", b"this port speaks TLS")
"""What is sent in place of a handshake to a client that speaks no TLS."""
_LONG_NAME = b"a function's name has at most %d bytes" % FUNCTION_LIMIT
_ELSEWHERE = b"keep what is larger elsewhere, and submit where it is"


class Peer(asyncio.Protocol):
    """A client, a worker, both, or somebody with a text command."""

    def __init__(self, face: GearmanFace) -> None:
        self.face = face
        self.service = face.service
        self.wire = Connection("server", max_body=face.settings.max_packet)
        self.reading = Reading(self._handle, self.service.timers, self.service.clock)
        self.address = "-"
        self.descriptor = -1
        self.client_id = b"-"
        self.exceptions = face.settings.exceptions
        self.worker: Worker | None = None
        self.assigns: int = Type.JOB_ASSIGN
        """How this worker is handed jobs: as it asked last."""
        self.plain = PlainListener(self)
        self.results = ResultListener(self)
        self.watcher: Callable[[Any], None] | None = None
        self.unanswered = Outstanding(
            face.settings.unanswered,
            face.settings.queued_bytes,
            lambda full: self.reading.pause("unanswered", paused=full),
        )
        self.outgoing = Outgoing(face.settings.unsent_bytes, self._unread)
        self.outbox = Outbox(self.outgoing.write, self.unanswered)
        self.grabs: deque[Slot] = deque()
        """The places of the answers to those requests for a job that wait for one, oldest first."""
        self._batch: list[Job] = []
        self._waits: list[bool] = []
        """For a batch of the extension: which of its submissions wait for their result."""
        self._unstored = Outstanding(
            face.settings.queued_jobs,
            face.settings.queued_bytes,
            lambda full: self.reading.pause("unstored", paused=full),
        )
        self._ahead = 0
        """Submissions that foreground ones have to come after: background ones, and foreground ones that wait for those."""
        self.listing: Listing | None = None
        """The long answer that is on its way to this peer."""
        self._places = 0
        """Jobs that this worker is ready for, and is not sent because it has too much to read."""

    # ---- the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has connected."""
        # uvloop's transports are none of asyncio's by class.
        self.transport = self.reading.transport = transport = cast("asyncio.Transport", transport)
        self.outgoing.connect(transport)
        name = transport.get_extra_info("peername")
        self.address = name[0] if isinstance(name, tuple) else "localhost"
        sock = transport.get_extra_info("socket")
        self.descriptor = sock.fileno() if sock is not None else -1
        self.face.peers[self] = None
        self.face.connections += 1
        self.reading.heard = self.service.clock.monotonic()
        if self.face.paused:
            self.reading.pause("store", paused=True)
        limit = self.face.settings.connections
        if limit and len(self.face.peers) > limit:
            self.face.crowded()
            self.outgoing.write(
                response(Type.ERROR, b"TOO_MANY_CONNECTIONS", b"this server has all the connections it takes")
            )
            self.close()

    def data_received(self, data: bytes) -> None:
        """Handle what one read has brought, as far as it is this peer's turn."""
        self.reading.take(self.wire.receive(data))

    def _handle(self, messages: list[Message]) -> None:
        """Handle messages: runs of background submits as one batch each.

        One read can ask for seconds of work and for answers of any size. So the rest is kept where it has taken its time, or
        where reading is paused meanwhile.
        """
        dispatch = self.service.dispatch
        queues = dispatch.queues
        next_id = self.face.next_id
        largest = self.face.settings.max_value
        reading = self.reading
        monotonic = self.service.clock.monotonic
        end = monotonic() + self.face.settings.slice
        left = iter(messages)
        for kind, args in left:
            priority = _BACKGROUND.get(kind)
            if priority is not None:
                if self._waits:
                    self.submit_batch()
                function, unique, payload = args
                if (
                    unique
                    or not 0 < len(function) <= FUNCTION_LIMIT
                    or dispatch.limited
                    or len(payload) > largest
                    or function not in queues
                ):
                    checked = self.check(function, unique, payload, priority)
                    if checked is None:
                        continue
                    unique = checked
                self._batch.append(Job(next_id(), function, payload, unique, priority, _PENDING))
            elif kind == _SUBMIT:
                if not self._waits:
                    self.submit_batch()
                extension.submit(self, args)
            else:
                if self._batch:
                    self.submit_batch()
                _HANDLERS[kind](self, args)
                if reading.ended:
                    break
                if reading.paused or monotonic() > end:
                    reading.keep(left)
                    break
        if self._batch:
            self.submit_batch()

    def eof_received(self) -> bool:
        """The peer sends no more. It may still read (``echo status | nc``): it gets the answers that are under way."""
        if self.transport.get_extra_info("ssl_object") is not None:
            return False  # TLS has no half-closed connections
        self.end()
        return True

    def end(self) -> None:
        """End the connection once everything is answered that was asked for."""
        if self.outbox:
            self.outbox.write = self._write_the_rest
        else:
            self.close()

    def _write_the_rest(self, data: bytes, owner: object = None) -> None:
        self.outgoing.write(data, owner)
        if not self.outbox and not self.reading.ended:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone: its jobs go to other workers, and foreground jobs that only it waited for are dropped."""
        del exc
        self.reading.end()
        self.outbox.write = self._discard
        self.outgoing.lost()
        self.face.peers.pop(self, None)
        if self.watcher is not None:
            self.service.hub.leave(self.watcher)
        self.service.clients.gone(self.plain)
        self.service.clients.gone(self.results)
        if self.worker is not None:
            self.service.gone(self.worker)

    def pause_writing(self) -> None:
        """The transport has enough for now."""
        self.outgoing.stop()

    def resume_writing(self) -> None:
        """The transport takes more."""
        self.outgoing.go_on()
        if self.listing is not None:
            self.listing.go_on()

    def _unread(self, full: bool) -> None:
        """The peer does not read its answers: stop reading its requests, and hand it no more jobs and outcomes; or go on."""
        self.reading.pause(UNREAD, paused=full)
        if full:
            if self.worker is not None and self.worker.streams:
                self._places += self.worker.credit
                self.service.dispatch.withdraw(self.worker)
            return
        if self._places:
            places, self._places = self._places, 0
            self.take(places)
        self.service.clients.has_room(self.plain)
        self.service.clients.has_room(self.results)

    def busy(self) -> bool:
        """Say whether the peer waits for something, or is a worker."""
        return (
            bool(self.outbox)
            or self.worker is not None
            or self.watcher is not None
            or self.service.listeners.waits(self.plain, self.results)
        )

    def push(self, data: bytes, body: bytes = b"") -> None:
        """Send what the peer did not ask for just now, unless it has left too much unread: then it is disconnected."""
        if self.outgoing.unread > 16 * self.face.settings.unsent_bytes:
            self.outgoing.abort()
            return
        self.outbox.send(data)
        if body:
            self.outbox.send(body, body)

    def close(self) -> None:
        """End the connection once what was written is out."""
        self.reading.end()
        self.outgoing.close()

    def _discard(self, data: bytes, owner: object = None) -> None:
        """The peer is gone."""

    # ---- submitting ----

    def check(
        self, function: bytes, unique: bytes, payload: bytes, priority: int, listener: PlainListener | None = None
    ) -> bytes | None:
        """Return the unique to use, or answer the submission otherwise and return None.

        ``listener`` is given for a foreground job.
        """
        if not function:
            self.refuse(b"INVALID_FUNCTION_NAME", b"a job needs the name of a function")
            return None
        if len(function) > FUNCTION_LIMIT:
            self.refuse(b"ARGUMENT_TOO_LARGE", _LONG_NAME)
            return None
        if len(unique) > UNIQUE_LIMIT:
            self.refuse(b"ARGUMENT_TOO_LARGE", b"Unique value too large")
            return None
        largest = self.face.settings.max_value
        if len(payload) > largest:
            text = b"a payload has %d bytes, and this node's store takes %d: %b" % (len(payload), largest, _ELSEWHERE)
            self.refuse(b"ARGUMENT_TOO_LARGE", text)
            return None
        dispatch = self.service.dispatch
        if function not in dispatch.queues:
            if not dispatch.admits(function):
                self.refuse(b"TOO_MANY_FUNCTIONS", self.face.too_many_functions())
                return None
            dispatch.known(function)  # it counts from now on
        if unique == b"-":
            unique = clients.unique_of_payload(payload) if payload else clients.unique_of_nothing(self.face.next_id())
        if dispatch.limited:
            queue = dispatch.queues.get(function)
            # A foreground job of this unique is joined on the usual way: the store has not heard of it.
            joins = bool(unique) and (function, unique) in self.service.window.foreground
            if queue is not None and not joins and queue.is_full(priority):
                if unique:
                    self._join(function, unique, listener)
                else:
                    self.refuse(b"QUEUE_ERROR", b"Job queue is full")
                return None
        return unique

    def _join(self, function: bytes, unique: bytes, listener: PlainListener | None) -> None:
        """A full queue takes no new job, but can be joined."""
        self.submit_batch()
        slot = self.outbox.reserve()
        handle = self.service.handles.of
        self.service.intake.join(
            function,
            unique,
            listener,
            lambda job_id: self.outbox.fill(slot, response(_JOB_CREATED, handle(job_id))),
            lambda error: self.outbox.fill(slot, response(Type.ERROR, b"QUEUE_ERROR", str(error).encode())),
        )

    def refuse(self, code: bytes, message: bytes) -> None:
        """Answer a submission with an error, in its place."""
        self.submit_batch()
        self.outbox.send(response(Type.ERROR, code, message))

    def gather(self, job: Job, *, wait: bool) -> None:
        """Add a submission of the extension to the batch."""
        self._batch.append(job)
        self._waits.append(wait)

    def submit_batch(self) -> None:
        """Send what has gathered to the store: either Gearman's submissions or the extension's."""
        batch = self._batch
        if not batch:
            return
        self._batch = []
        joins = self.service.intake.joins(batch)
        if self._waits:
            waits, self._waits = self._waits, []
            if joins:
                for job, wait in zip(batch, waits, strict=True):
                    self.store([job], extension.submitted(self, [job], [wait]))
            else:
                self.store(batch, extension.submitted(self, batch, waits))
            return
        now_us = round(self.service.clock.wall() * 1_000_000)
        for job in batch:
            job.created_us = now_us
        if joins:
            for job in batch:
                self.store([job], self._created)
        else:
            self.store(batch, self._created)

    def store(self, jobs: list[Job], answer: Callable[[list[int], dict[int, Any]], bytes]) -> None:
        """Submit background jobs; their answers come in their place."""
        slot = self.outbox.reserve()
        number = len(jobs)
        size = sum([len(job.function) + len(job.payload) for job in jobs])
        self._ahead += number
        self._unstored.add(number, size)

        def stored(data: bytes) -> None:
            self._ahead -= number
            self._unstored.remove(number, size)
            self.outbox.fill(slot, data)

        def refused(error: Exception) -> None:
            stored(response(Type.ERROR, b"QUEUE_ERROR", str(error).encode()) * number)

        self.service.intake.submit(jobs, lambda ids, joined: stored(answer(ids, joined)), refused)

    def submit_foreground(self, job: Job) -> None:
        """Submit a foreground job, behind the background ones that this peer sent before: where workers find them."""
        slot = self.outbox.reserve()
        size = len(job.function) + len(job.payload)
        self._unstored.add(1, size)

        def answer(data: bytes) -> None:
            self._unstored.remove(1, size)
            self.outbox.fill(slot, data)

        def submit() -> None:
            self.service.foreground.submit(
                job,
                self.plain,
                lambda job_id: answer(response(_JOB_CREATED, self.service.handles.of(job_id))),
                lambda error: answer(response(Type.ERROR, b"QUEUE_ERROR", str(error).encode())),
            )

        if not self._ahead:
            submit()
            return
        self._ahead += 1

        def stored(_: object) -> None:
            self._ahead -= 1
            submit()

        self.service.commits.put(Find([], stored, stored))

    def _created(self, ids: list[int], joined: dict[int, Any]) -> bytes:
        if not joined:
            return (self.face.created(ids[0]) * len(ids)) % tuple(ids)
        handle = self.service.handles.of
        return b"".join([response(_JOB_CREATED, handle(job_id)) for job_id in ids])

    # ---- being a worker ----

    def take(self, places: int) -> None:
        """This worker is ready for so many more jobs, once it has read those that were sent to it."""
        if self.reading.paused_for(UNREAD):
            self._places += places
        else:
            self.service.ready(self.as_worker(), places)

    def take_none(self) -> None:
        """This worker is ready for no jobs."""
        self._places = 0
        self.service.dispatch.withdraw(self.as_worker())

    def as_worker(self) -> Worker:
        """Return this peer as a worker; it becomes one with its first word as such."""
        worker = self.worker
        if worker is None:
            worker = self.worker = Worker(workers.WorkerSide(self))
        return worker

    def register(self, function: bytes, ability: Ability) -> None:
        """This worker can run a function; it is told where it has too many."""
        worker = self.as_worker()
        limit = self.face.settings.functions
        if len(function) > FUNCTION_LIMIT:
            self.refuse(b"ARGUMENT_TOO_LARGE", _LONG_NAME)
        elif len(worker.abilities) >= limit and self.service.dispatch.queues.get(function) not in worker.abilities:
            self.refuse(b"TOO_MANY_FUNCTIONS", b"a worker registers for at most %d functions" % limit)
        elif not self.service.dispatch.admits(function):
            self.refuse(b"TOO_MANY_FUNCTIONS", self.face.too_many_functions())
        else:
            self.service.register(worker, function, ability)

    def assign(self, data: bytes) -> None:
        """Hand a job over at once: until other answers are known it might not be this worker's any more."""
        self.outbox.write(data)
        if self.grabs:
            self.outbox.fill(self.grabs.popleft(), b"")

    def no_job(self, data: bytes) -> None:
        """Answer the oldest request for a job that waits for one, in its place."""
        self.outbox.fill(self.grabs.popleft(), data)

    def running(self, handle: bytes) -> Held | None:
        """Return the job that this worker has under a handle."""
        return self.worker.running.get(handle) if self.worker is not None else None
