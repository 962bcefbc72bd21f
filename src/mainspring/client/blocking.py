"""The blocking client: the same session as the asyncio client, on a connection that all threads share."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.client.awaited_jobs import announced
from mainspring.client.batches import awaiting, submitting
from mainspring.client.outcomes import no_answer_error, not_ended_error
from mainspring.client.pending_replies import longest_wait
from mainspring.client.reconnect_policy import CONNECT_TIMEOUT, RECONNECT_TIMEOUT, REQUEST_TIMEOUT
from mainspring.client.shared_connection import SharedConnection
from mainspring.client.streaming import EventBuffer
from mainspring.errors import ServerError
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mainspring.client.addresses import Address
    from mainspring.client.outcomes import Answer, Notice, Outcome, Submitted
    from mainspring.client.pending_replies import PendingReply, SubmitBatch, Wait
    from mainspring.client.session import Request
    from mainspring.client.streaming import JobEvent

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
