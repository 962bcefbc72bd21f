"""The client for threads: one socket, shared by all threads of a process without a thread of its own.

Whoever waits for an answer reads the socket, for everybody: the first one polls while the others sleep on the
condition, and passes the place on when its own answer has come. Where one thread waits, an answer costs no hand-over.
After a fork, the child forgets the socket, which belongs to its parent, and connects anew.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.client.batches import awaiting, submitting
from mainspring.client.outcomes import not_ended
from mainspring.client.patience import CONNECT_TIMEOUT, RECONNECT_PATIENCE, Patience, unreachable
from mainspring.client.refusals import why
from mainspring.client.session import Request, Session, Slot, Tray
from mainspring.client.sockets import tune
from mainspring.client.streaming import EventBuffer
from mainspring.client.waiting import announced
from mainspring.errors import ConnectionLostError, ServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mainspring.client.addresses import Address
    from mainspring.client.outcomes import Answer, Notice, Outcome, Submitted
    from mainspring.client.session import Wait
    from mainspring.client.streaming import JobEvent

T = TypeVar("T")

READ_SIZE = 1 << 18


class Client:
    """Talks to the first of ``servers`` that can be reached.  Thread-safe and fork-safe; connects when first needed.

    All methods raise ConnectionLostError where no server can be reached or the connection ended at a bad moment, and
    ServerError where the peer does not speak the extension.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        patience: float = RECONNECT_PATIENCE,
    ) -> None:
        self.servers = tuple(servers)
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._patience_seconds = patience
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition(threading.Lock())
        self._session = Session()
        self._socket: socket.socket | None = None
        self._unsent: memoryview | None = None
        self._blocked = False  # the kernel takes no more bytes for now
        self._reading = False  # a thread has the reader's place
        self._connecting = False
        self._agree_by = 0.0
        self._turn = 0
        """The server to begin with: those before it have been tried in this round, and said nothing of use."""
        self._patience = Patience(self._patience_seconds)

    # What users ask.

    def submit(self, request: Request) -> Submitted:
        """Submit one job and return when it is on disk.  Raises RefusedError where the server refuses it."""
        frame = request.frame()
        with self._ours() as session:
            tray = session.submit([frame], safe=bool(request.unique))
        answer = self._await(tray, None)[0]
        if isinstance(answer, ServerError):
            raise answer
        return answer

    def submit_many(self, requests: Iterable[Request]) -> Iterator[list[Answer]]:
        """Submit jobs in windows that overlap, and give the answers of each window in order."""
        for tray in submitting(requests, self._submit):
            yield self._await(tray, None)

    def outcome(
        self, handle: str, timeout: float | None = None, *, hear: Callable[[Notice], None] | None = None
    ) -> Outcome:
        """Wait until a job has ended, through lost connections.  Raises TimeoutError.

        ``hear`` is called with what the job tells meanwhile, in whatever thread reads; it must not use this client.
        """
        with self._ours() as session:
            wait = session.wait(handle, hear)
        try:
            return self._await_job(wait, timeout)
        except TimeoutError:
            raise not_ended(handle, timeout) from None
        finally:
            self._forget([wait])

    def stream(self, handle: str, timeout: float | None = None) -> Iterator[JobEvent | Outcome]:
        """Give the events that a job sends from now on, and then its outcome.  Raises TimeoutError."""
        events = EventBuffer()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._ours() as session:
            wait = session.wait(handle, events.add)
        try:
            while True:
                left = None if deadline is None else deadline - time.monotonic()
                if not wait.done and (not events or (left is not None and left <= 0)):
                    self._await_more(wait, events, left, timeout)
                with self._changed:
                    event = events.take()
                if event is None:
                    yield wait.take()
                    return
                yield event
        finally:
            self._forget([wait])

    def outcomes(self, handles: Iterable[str], timeout: float | None = None) -> Iterator[Outcome]:
        """Give the outcomes of many jobs in order, asking for many at once.  Raises TimeoutError; ``timeout`` is for all."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with contextlib.closing(awaiting(handles, self._wait, self._forget)) as waits:
            for wait in waits:
                try:
                    outcome = self._await_job(wait, None if deadline is None else deadline - time.monotonic())
                except TimeoutError:
                    raise TimeoutError(f"job {wait.handle.decode()} has not ended in time") from None
                yield outcome

    def call(self, method: str, params: dict[str, Any] | None = None, timeout: float | None = None) -> Any:
        """Call a method of the protocol and return its value.

        Raises UsageError, NotFoundError, ConflictError or ServerError as the server answers, and TimeoutError.
        """
        with self._ours() as session:
            call = session.call(method, params)
        return self._await(call, timeout)

    def events(self, method: str, params: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Call a method and give its events, without end; ConnectionLostError ends it."""
        events: deque[dict[str, Any]] = deque()
        with self._ours() as session:
            call = session.call(method, params, events.append)
        self._await(call, None)
        while True:
            self._until(lambda: bool(events) or call.error is not None, None)
            while events:
                yield events.popleft()
            if call.error is not None:
                raise call.error

    def close(self) -> None:
        """End the connection; whoever waits gets a ConnectionLostError.  The client can be used again."""
        if self._pid == os.getpid():
            with self._changed:
                self._hang_up()
                self._session.abandon(ConnectionLostError("the client was closed"))
                self._changed.notify_all()

    # Inside.

    @contextlib.contextmanager
    def _ours(self) -> Iterator[Session]:
        """Hold the session of this process, on a connection that has not visibly ended."""
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            if self._socket is not None and not self._reading:
                # An idle connection may have ended long ago: to see it before writing spares an unknown outcome.
                self._read()
            yield self._session

    def _submit(self, frames: list[bytes], safe: bool) -> Tray:
        """Submit a window, and write of it what can be written without waiting."""
        with self._ours() as session:
            tray = session.submit(frames, safe=safe)
            if self._socket is not None:
                self._write()
        return tray

    def _wait(self, handles: list[str]) -> list[Wait]:
        with self._ours() as session:
            return [session.wait(handle) for handle in handles]

    def _forget(self, waits: Iterable[Wait]) -> None:
        with self._changed:
            self._session.forget(waits)

    def _await(self, slot: Slot[T], timeout: float | None) -> T:
        if not slot.done:
            self._until(lambda: slot.done, timeout)
        return slot.take()

    def _await_job(self, wait: Wait, timeout: float | None) -> Outcome:
        """Wait for a job's end. Where a task waits, its worker is notified."""
        if wait.done:
            return wait.take()
        with announced(wait.handle.decode(), partial(self._refuse, wait)):
            return self._await(wait, timeout)

    def _await_more(self, wait: Wait, events: EventBuffer, left: float | None, timeout: float | None) -> None:
        """Wait for the next event of a job or for its end. Where a task waits, its worker is notified.

        ``left`` seconds of ``timeout`` are left. Raises TimeoutError where none are, also where events have come since.
        """
        if left is None or left > 0:
            with announced(wait.handle.decode(), partial(self._refuse, wait)), contextlib.suppress(TimeoutError):
                self._until(lambda: wait.done or bool(events), left)
                return
        raise not_ended(wait.handle.decode(), timeout)

    def _refuse(self, wait: Wait, error: BaseException) -> None:
        """End a wait with an error, in whatever thread it waits."""
        with self._changed:
            if wait.done:
                return
            self._session.forget([wait])
            wait.reject(error)
            self._changed.notify_all()
            if self._reading and self._socket is not None:
                # The waiting thread may be the one that polls the socket: an answer wakes it.
                self._session.ping()
                self._write()

    def _until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Keep the connection going until something is done.  Raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not done():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                if self._socket is None:
                    self._connect(left)
                    continue
                self._write()
                wanted = (0 if self._reading else select.POLLIN) | (select.POLLOUT if self._blocked else 0)
                if wanted and self._socket is not None:
                    self._poll(self._socket, wanted, left)
                elif self._socket is not None:
                    self._changed.wait(left)

    def _poll(self, sock: socket.socket, wanted: int, left: float | None) -> None:
        """Wait for the socket without holding the lock; read where this thread has the reader's place."""
        reader = bool(wanted & select.POLLIN)
        if not self._session.ready:
            agreeing = self._agree_by - time.monotonic()
            if agreeing <= 0:
                self._lost(ConnectionLostError("the server accepted the connection and said nothing"))
                return
            left = agreeing if left is None else min(left, agreeing)
        poll = select.poll()
        poll.register(sock, wanted)
        self._reading = self._reading or reader
        self._changed.release()
        try:
            poll.poll(None if left is None else left * 1000)
        finally:
            self._changed.acquire()
            if reader:
                self._reading = False
                self._changed.notify_all()
        if reader and sock is self._socket:
            self._read()

    def _connect(self, left: float | None) -> None:
        """Try each server once, in one thread at a time; where none can be reached, wait or tell everybody."""
        if self._connecting:
            self._changed.wait(left)
            return
        self._connecting = True
        self._changed.release()
        try:
            found, failures = self._dial(left)
        finally:
            self._changed.acquire()
            self._connecting = False
            self._changed.notify_all()
        now = time.monotonic()
        if found is not None:
            self._socket = found
            self._unsent = None
            self._agree_by = now + self._connect_timeout
            self._session.connected()
            return
        self._fruitless(ConnectionLostError(unreachable(failures)), left)

    def _fruitless(self, error: ServerError, left: float | None) -> None:
        """Deal with a failed attempt to connect: only those who wait for jobs keep trying, and for a limited time."""
        delay = self._patience.fruitless(self._session, error, time.monotonic())
        self._changed.notify_all()
        if delay is not None:
            self._changed.wait(delay if left is None else min(delay, left))

    def _dial(self, left: float | None) -> tuple[socket.socket | None, list[tuple[Address, OSError]]]:
        failures: list[tuple[Address, OSError]] = []
        timeout = self._connect_timeout if left is None else max(0.001, min(left, self._connect_timeout))
        while self._turn < len(self.servers):
            address = self.servers[self._turn]
            self._turn += 1
            try:
                sock = self._open(address, timeout)
            except OSError as error:
                failures.append((address, error))
            else:
                sock.setblocking(False)
                return sock, failures
        self._turn = 0
        return None, failures

    def _open(self, address: Address, timeout: float) -> socket.socket:
        """Connect to one server.  Raises OSError."""
        if address.path is not None:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(address.path)
            except OSError:
                sock.close()
                raise
            return sock
        sock = socket.create_connection(address, timeout)
        tune(sock)
        if self._tls is None:
            return sock
        try:
            return self._tls.wrap_socket(sock, server_hostname=address.host)
        except OSError:
            sock.close()
            raise

    def _write(self) -> None:
        sock = self._socket
        while sock is not None and sock is self._socket:
            if self._unsent is None:
                output = self._session.take_output()
                if not output:
                    break
                self._unsent = memoryview(output)
            try:
                sent = sock.send(self._unsent)
            except _LATER:
                self._blocked = True
                return
            except OSError as error:
                self._lost(self._end(error))
                return
            self._unsent = self._unsent[sent:] if sent < len(self._unsent) else None
        self._blocked = False

    def _read(self) -> None:
        sock = self._socket
        while sock is not None and sock is self._socket:
            try:
                data = sock.recv(READ_SIZE)
            except _LATER:
                return
            except OSError as error:
                self._lost(self._end(error))
                return
            if not data:
                self._lost(self._end(None))
                return
            try:
                self._session.receive(data)
            except ServerError as error:
                self._hang_up()
                self._session.abandon(error)
                self._changed.notify_all()
                return
            if self._tls is None and len(data) < READ_SIZE:
                return

    def _end(self, error: OSError | None) -> ConnectionLostError:
        """Say why the connection has ended; None: the server ended it."""
        if not self._session.ready:
            # In TLS 1.3 the refusal of a client's certificate arrives here.
            return ConnectionLostError(unreachable([(self.servers[self._turn - 1], error)]))
        if error is None:
            return ConnectionLostError("the server ended the connection; what was under way is unknown")
        return ConnectionLostError(f"the connection to the server broke: {why(error)}")

    def _lost(self, error: ConnectionLostError) -> None:
        agreed = self._session.ready
        self._hang_up()
        self._session.disconnected(error)
        if agreed:
            self._turn = 0
            self._patience.lost(time.monotonic())
            self._changed.notify_all()
        elif self._turn < len(self.servers):
            self._changed.notify_all()  # whoever waits goes on to the next server
        else:
            self._turn = 0
            self._fruitless(error, None)

    def _hang_up(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that polls it
            self._socket.close()
        self._socket = None
        self._unsent = None
        self._blocked = False


_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
