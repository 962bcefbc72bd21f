"""The remote end of a connection on the Gearman port: a client, a worker or an administrator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.faces.gearman.listeners import PlainListener, ResultListener
from mainspring.faces.gearman.outbox import Outbox
from mainspring.faces.gearman.outgoing import Outgoing
from mainspring.faces.gearman.outstanding import Outstanding
from mainspring.faces.gearman.reading import UNREAD, Reading
from mainspring.faces.gearman.submits import Submits
from mainspring.faces.gearman.worker_side import WorkerSide
from mainspring.wire.gearman.connection import Connection
from mainspring.wire.gearman.packets import Type, response

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from mainspring.api.answers.waiting import CallInProgress
    from mainspring.faces.gearman.face import GearmanFace
    from mainspring.jobs.held import Worker
    from mainspring.wire.gearman.connection import Message

UNREAD_FACTOR = 16
"""A peer that leaves this multiple of ``unsent_bytes`` unread is disconnected."""


class Peer:
    """A client, a worker, both, or an administrator; ``handle`` receives its messages."""

    def __init__(self, face: GearmanFace, handle: Callable[[list[Message]], None]) -> None:
        settings = face.settings
        self.face = face
        self.service = face.service
        self.wire = Connection("server", max_body=settings.max_packet)
        self.reading = Reading(handle, self.service.timers, self.service.clock)
        self.address = "-"
        self.descriptor = -1
        self.client_id = b"-"
        self.unanswered = Outstanding(
            settings.unanswered,
            settings.queued_bytes,
            lambda full: self.reading.pause("unanswered", paused=full),
        )
        self.outgoing = Outgoing(settings.unsent_bytes, self._unread)
        self.outbox = Outbox(self.outgoing.write, self.unanswered)
        unread_limit = UNREAD_FACTOR * settings.unsent_bytes
        self.plain = PlainListener(self.outbox, self.outgoing, unread_limit, exceptions=settings.exceptions)
        self.results = ResultListener(self.outbox, self.outgoing, unread_limit)
        self.submits = Submits(face, self.reading, self.outbox, self.unanswered, self.plain, self.results)
        self.worker_side = WorkerSide(face, self.reading, self.outbox, self.name)
        self.end_watch: Callable[[], None] | None = None
        self.searches: list[CallInProgress] = []
        """Calls in progress that only read, and some that have ended."""

    @property
    def worker(self) -> Worker | None:
        """Return the worker of this peer; None if it is none."""
        return self.worker_side.worker

    def name(self) -> str:
        """Return the client id, or the address of a peer without one."""
        own = self.client_id
        return self.address if own == b"-" else own.decode("utf-8", "backslashreplace")

    def busy(self) -> bool:
        """Return whether the peer waits for an answer or is a worker."""
        return (
            bool(self.outbox)
            or self.worker is not None
            or self.end_watch is not None
            or self.service.waits(self.plain, self.results)
        )

    def as_worker(self) -> Worker:
        """Return this peer's worker; create it on first use."""
        return self.worker_side.as_worker()

    def refuse(self, code: bytes, message: bytes) -> None:
        """Answer with an error."""
        self.outbox.send(response(Type.ERROR, code, message))

    # ---- the connection ----

    def connected(self, transport: asyncio.Transport) -> None:
        """Use a transport from now on."""
        self.reading.connect(transport)
        self.outgoing.connect(transport)
        name = transport.get_extra_info("peername")
        self.address = name[0] if isinstance(name, tuple) else "localhost"
        sock = transport.get_extra_info("socket")
        self.descriptor = sock.fileno() if sock is not None else -1

    def _unread(self, full: bool) -> None:
        """Stop reading from a peer that does not read its answers, and send it no jobs and outcomes; or resume both."""
        self.reading.pause(UNREAD, paused=full)
        if full:
            self.worker_side.withhold()
            return
        self.worker_side.resume()
        self.service.has_room(self.plain)
        self.service.has_room(self.results)

    def end(self) -> None:
        """End the connection once all requests are answered."""
        if self.outbox:
            self.outbox.divert(self._write_the_rest)
        else:
            self.close()

    def _write_the_rest(self, data: bytes, owner: object = None) -> None:
        self.outgoing.write(data, owner)
        if not self.outbox and not self.reading.ended:
            self.close()

    def close(self) -> None:
        """End the connection once the written data is sent."""
        self.reading.end()
        self.outgoing.close()

    def lost(self) -> None:
        """Release the jobs of a disconnected peer, and drop the foreground jobs that only it waited for."""
        self.reading.end()
        self.outbox.divert(self._discard)
        self.outgoing.lost()
        if self.end_watch is not None:
            self.end_watch()
        for search in self.searches:
            search.end()
        self.service.client_gone(self.plain)
        self.service.client_gone(self.results)
        self.worker_side.gone()

    def _discard(self, data: bytes, owner: object = None) -> None:
        """Write nothing, because the peer has disconnected."""
