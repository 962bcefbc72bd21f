"""The blocking client: the same session as the asyncio client, on a connection that all threads share.

The connection has no thread of its own. One of the waiting threads is the reader: it polls the socket for all of them, while the
others sleep on the condition. When its own answer has arrived, another waiting thread becomes the reader. A single waiting thread
needs no hand-over. After a fork, the child drops the socket, which belongs to its parent, and opens its own connection.
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

from mainspring.client.inside import announced
from mainspring.client.outcomes import EventBuffer, explain, no_answer_error, not_ended_error
from mainspring.client.session import (
    CONNECT_TIMEOUT,
    RECONNECT_TIMEOUT,
    REQUEST_TIMEOUT,
    ReconnectPolicy,
    Session,
    awaiting,
    longest_wait,
    submitting,
    unreachable_message,
)
from mainspring.client.sockets import open_socket, reset
from mainspring.errors import ConnectionLostError, ServerError
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mainspring.client.environment import Address
    from mainspring.client.outcomes import Answer, JobEvent, Notice, Outcome, Submitted
    from mainspring.client.session import PendingReply, Request, SubmitBatch, Wait

READ_SIZE = 1 << 18


class SharedConnection:
    """A session on the first reachable server of ``servers``.  Thread-safe and fork-safe; connects on first use."""

    def __init__(
        self,
        servers: Sequence[Address],
        tls: ssl.SSLContext | None,
        connect_timeout: float,
        reconnect_timeout: float,
        token: str | None = None,
        namespace: str = DEFAULT,
    ) -> None:
        self._token = token
        self._namespace = namespace
        self._servers = tuple(servers)
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._reconnect_timeout = reconnect_timeout
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        # Reentrant: an interrupt may leave the lock held in this thread, which then closes the connection.
        self._changed = threading.Condition(threading.RLock())
        self._session = Session(self._token, self._namespace)
        self._socket: socket.socket | None = None
        self._unsent: memoryview | None = None
        self._blocked = False  # the kernel accepts no more bytes for now
        self._reading = False  # a thread is the reader
        self._connecting = False
        self._agree_by = 0.0
        self._next_server = 0
        """The index of the next server to try; those before it were tried without success in this round."""
        self._reconnect_policy = ReconnectPolicy(self._reconnect_timeout)

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Lock this process's session, after a check whether its connection has ended."""
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            if self._socket is not None and not self._reading:
                # An idle connection may have ended long ago. Detecting that before a write avoids an unknown outcome.
                self._read()
            yield self._session

    @contextlib.contextmanager
    def locked(self) -> Iterator[Session]:
        """Lock the session, without a check of its connection."""
        with self._changed:
            yield self._session

    def send(self) -> None:
        """Write as much pending output as the socket accepts without waiting. The caller holds the lock."""
        if self._socket is not None:
            self._write()

    def wait_until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Read, write and reconnect until ``done`` returns true.  Raises TimeoutError."""
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
                events = (0 if self._reading else select.POLLIN) | (select.POLLOUT if self._blocked else 0)
                if events and self._socket is not None:
                    self._poll(self._socket, events, left)
                elif self._socket is not None:
                    self._changed.wait(left)

    def refuse(self, wait: Wait, error: BaseException) -> None:
        """End a wait with an error, in any thread."""
        with self._changed:
            if wait.done:
                return
            self._session.forget([wait])
            wait.reject(error)
            self._changed.notify_all()
            if self._reading and self._socket is not None:
                # The waiting thread may be the reader: the answer to a ping wakes it.
                self._session.ping()
                self._write()

    def give_up(self, reply: PendingReply[Any]) -> bool:
        """Drop a request whose caller waits no longer; return whether it was sent.

        A connection without other requests is reset, so that the server drops what it has not begun.
        """
        with self._changed:
            sent = self._session.give_up(reply)
            if sent and self._socket is not None and self._session.is_stale:
                reset(self._socket)
                self._lost(ConnectionLostError("the server did not answer"))
            return sent

    def close(self) -> None:
        """Close the connection; pending requests get a ConnectionLostError.  The next request opens a new one."""
        if self._pid == os.getpid():
            with self._changed:
                self._hang_up()
                self._session.abandon(ConnectionLostError("the client was closed"))
                self._changed.notify_all()

    # Internal.

    def _poll(self, sock: socket.socket, events: int, left: float | None) -> None:
        """Wait for the socket without holding the lock; read if this thread is the reader."""
        reader = bool(events & select.POLLIN)
        if not self._session.ready:
            agreeing = self._agree_by - time.monotonic()
            if agreeing <= 0:
                self._lost(ConnectionLostError("the server accepted the connection and did not answer"))
                return
            left = agreeing if left is None else min(left, agreeing)
        poll = select.poll()
        poll.register(sock, events)
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
        """Try each server once, in one thread at a time. If none can be reached, wait, or answer the requests with an error."""
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
        self._connect_failed(ConnectionLostError(unreachable_message(failures)), left)

    def _connect_failed(self, error: ServerError, left: float | None) -> None:
        """Handle a failed attempt to connect: only waits for jobs are kept, and for a limited time."""
        delay = self._reconnect_policy.connect_failed(self._session, error, time.monotonic())
        self._changed.notify_all()
        if delay is not None:
            self._changed.wait(delay if left is None else min(delay, left))

    def _dial(self, left: float | None) -> tuple[socket.socket | None, list[tuple[Address, OSError]]]:
        failures: list[tuple[Address, OSError]] = []
        timeout = self._connect_timeout if left is None else max(0.001, min(left, self._connect_timeout))
        while self._next_server < len(self._servers):
            address = self._servers[self._next_server]
            self._next_server += 1
            try:
                sock = open_socket(address, self._tls, timeout)
            except OSError as error:
                failures.append((address, error))
            else:
                sock.setblocking(False)
                return sock, failures
        self._next_server = 0
        return None, failures

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
            except _WOULD_BLOCK:
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
            except _WOULD_BLOCK:
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
        """Return the error for the end of the connection; None: the server closed it."""
        if not self._session.ready:
            # In TLS 1.3 the refusal of a client's certificate arrives here.
            return ConnectionLostError(unreachable_message([(self._servers[self._next_server - 1], error)]))
        if error is None:
            return ConnectionLostError("the server closed the connection; the outcome of pending requests is unknown")
        return ConnectionLostError(f"the connection to the server broke: {explain(error)}")

    def _lost(self, error: ConnectionLostError) -> None:
        agreed = self._session.ready
        self._hang_up()
        self._session.disconnected(error)
        if agreed:
            self._next_server = 0
            self._reconnect_policy.connection_lost(time.monotonic())
            self._changed.notify_all()
        elif self._next_server < len(self._servers):
            self._changed.notify_all()  # a waiting thread tries the next server
        else:
            self._next_server = 0
            self._connect_failed(error, None)

    def _hang_up(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that polls it
            self._socket.close()
        self._socket = None
        self._unsent = None
        self._blocked = False


_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

T = TypeVar("T")


class Client:
    """A client of the first reachable server of ``servers``.  Thread-safe and fork-safe; connects on first use.

    All methods raise ConnectionLostError if no server can be reached, or if the connection ended before the answer to a
    request that must not be sent twice. They raise ServerError if the server does not support the extension, and
    NoAnswerError if it has not answered a request within ``request_timeout`` seconds, or within a ``limit`` of the request.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
        request_timeout: float = REQUEST_TIMEOUT,
        token: str | None = None,
        namespace: str = DEFAULT,
    ) -> None:
        self.servers = tuple(servers)
        self._request_timeout = request_timeout
        self._shared = SharedConnection(self.servers, tls, connect_timeout, reconnect_timeout, token, namespace)

    # Requests of users.

    def submit(self, request: Request, limit: float | None = None) -> Submitted:
        """Submit one job and return when it is on disk.  Raises RefusedError if the server refuses it."""
        frame = request.frame()
        with self._shared.session() as session:
            batch = session.submit([frame], safe=request.is_repeatable)
        answer = self._answered(batch, limit)[0]
        if isinstance(answer, ServerError):
            raise answer
        return answer

    def submit_many(self, requests: Iterable[Request], limit: float | None = None) -> Iterator[list[Answer]]:
        """Submit jobs in overlapping windows, and yield the answers of each window in order; the limit is that of a window."""
        for batch in submitting(requests, self._submit):
            yield self._answered(batch, limit)

    def outcome(
        self, handle: str, timeout: float | None = None, *, on_notice: Callable[[Notice], None] | None = None
    ) -> Outcome:
        """Wait until a job has ended, across lost connections.  Raises TimeoutError.

        ``on_notice`` is called with the job's notices, in the thread that reads the socket; it must not use this client.
        """
        with self._shared.session() as session:
            wait = session.wait(handle, on_notice)
        try:
            return self._await_job(wait, timeout)
        except TimeoutError:
            raise not_ended_error(handle, timeout) from None
        finally:
            self._forget([wait])

    def stream(self, handle: str, timeout: float | None = None) -> Iterator[JobEvent | Outcome]:
        """Yield the events that a job sends from now on, and then its outcome.  Raises TimeoutError."""
        events = EventBuffer()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._shared.session() as session:
            wait = session.wait(handle, events.add)
        try:
            while True:
                left = None if deadline is None else deadline - time.monotonic()
                if not wait.done and (not events or (left is not None and left <= 0)):
                    self._await_more(wait, events, left, timeout)
                with self._shared.locked():
                    event = events.pop()
                if event is None:
                    yield wait.result()
                    return
                yield event
        finally:
            self._forget([wait])

    def outcomes(self, handles: Iterable[str], timeout: float | None = None) -> Iterator[Outcome]:
        """Yield the outcomes of many jobs in order, with many requests in flight.

        Raises TimeoutError after ``timeout`` seconds for all of them.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with contextlib.closing(awaiting(handles, self._wait, self._forget)) as waits:
            for wait in waits:
                try:
                    outcome = self._await_job(wait, None if deadline is None else deadline - time.monotonic())
                except TimeoutError:
                    raise TimeoutError(f"job {wait.handle.decode()} has not ended in time") from None
                yield outcome

    def call(self, method: str, params: dict[str, Any] | None = None, limit: float | None = None) -> Any:
        """Call a method of the protocol and return its value.

        Raises UsageError, NotFoundError, ConflictError or ServerError by the code of the server's error.
        """
        with self._shared.session() as session:
            call = session.call(method, params)
        return self._answered(call, limit, longest_wait(params))

    def events(self, method: str, params: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Call a method and yield its events without end, until a ConnectionLostError."""
        events: deque[dict[str, Any]] = deque()
        with self._shared.session() as session:
            call = session.call(method, params, events.append)
        self._answered(call, None)
        while True:
            self._shared.wait_until(lambda: bool(events) or call.error is not None, None)
            while events:
                yield events.popleft()
            if call.error is not None:
                raise call.error

    def close(self) -> None:
        """Close the connection; pending requests get a ConnectionLostError.  The client can be used again."""
        self._shared.close()

    # Internal.

    def _submit(self, frames: list[bytes], safe: bool) -> SubmitBatch:
        """Submit a window, and write as much of it as the socket accepts without waiting."""
        with self._shared.session() as session:
            batch = session.submit(frames, safe=safe)
            self._shared.send()
        return batch

    def _wait(self, handles: list[str]) -> list[Wait]:
        with self._shared.session() as session:
            return [session.wait(handle) for handle in handles]

    def _forget(self, waits: Iterable[Wait]) -> None:
        with self._shared.locked() as session:
            session.forget(waits)

    def _answered(self, reply: PendingReply[T], limit: float | None, more: float = 0.0) -> T:
        """Wait for the answer to a request until its limit; ``more`` seconds longer if the server itself waits."""
        limit = (self._request_timeout if limit is None else limit) + more
        try:
            return self._await(reply, limit)
        except TimeoutError:
            raise no_answer_error(limit, sent=self._shared.give_up(reply)) from None
        finally:
            if not reply.done and not reply.given_up:  # interrupted
                self._shared.give_up(reply)

    def _await(self, reply: PendingReply[T], timeout: float | None) -> T:
        if not reply.done:
            self._shared.wait_until(lambda: reply.done, timeout)
        return reply.result()

    def _await_job(self, wait: Wait, timeout: float | None) -> Outcome:
        """Wait for a job's end. If a task waits, notify its worker."""
        if wait.done:
            return wait.result()
        with announced(wait.handle.decode(), partial(self._shared.refuse, wait)):
            return self._await(wait, timeout)

    def _await_more(self, wait: Wait, events: EventBuffer, left: float | None, timeout: float | None) -> None:
        """Wait for the next event of a job or for its end. If a task waits, notify its worker.

        ``left`` seconds of ``timeout`` remain. Raises TimeoutError if none do, even if events have arrived since.
        """
        if left is None or left > 0:
            with announced(wait.handle.decode(), partial(self._shared.refuse, wait)), contextlib.suppress(TimeoutError):
                self._shared.wait_until(lambda: wait.done or bool(events), left)
                return
        raise not_ended_error(wait.handle.decode(), timeout)
