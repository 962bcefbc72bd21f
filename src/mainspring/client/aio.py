"""The asyncio client: the same session as the blocking client, on a transport of the running loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from mainspring.client.inside import announced
from mainspring.client.outcomes import CLOSED_WITHOUT_REASON, EventBuffer, explain, no_answer_error, not_ended_error
from mainspring.client.session import (
    CONNECT_TIMEOUT,
    RECONNECT_TIMEOUT,
    REQUEST_TIMEOUT,
    ReconnectPolicy,
    Request,
    Session,
    awaiting,
    longest_wait,
    submitting,
    unreachable_message,
)
from mainspring.client.sockets import connect, reset, tune
from mainspring.errors import ConnectionLostError, ServerError
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from mainspring.client.environment import Address
    from mainspring.client.outcomes import Answer, JobEvent, Notice, Outcome, Submitted
    from mainspring.client.session import PendingReply, SubmitBatch, Wait

T = TypeVar("T")


_RESOLUTION: Final = 0.001
"""Seconds by which a loop may call too early."""


class Deadlines:
    """The deadlines of requests under way, with one timer for all of them: nearly all requests are answered before theirs."""

    def __init__(self) -> None:
        self._all: dict[asyncio.Future[bool], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, answered: asyncio.Future[bool], seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """Set the result of a future of the running loop to False after some seconds, unless it is done."""
        self._all[answered] = at = loop.time() + seconds
        if self._timer is None or at < self._timer.when():
            self._call_at(at, loop)

    def remove(self, answered: asyncio.Future[bool]) -> None:
        """Forget a future."""
        del self._all[answered]

    def _call_at(self, at: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at, self._expire)

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        until = loop.time() + _RESOLUTION
        for answered, at in self._all.items():
            if at <= until and not answered.done():
                answered.set_result(False)
        left = [at for at in self._all.values() if at > until]
        if left:
            self._call_at(min(left), loop)


class AsyncClient:
    """A client of the first reachable server of ``servers``.  Belongs to one event loop; connects on first use.

    Its methods raise the same errors as those of ``mainspring.client.blocking.Client``.
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
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._deadlines = Deadlines()
        self._reconnect_policy = ReconnectPolicy(reconnect_timeout)
        self._session = Session(token, namespace)
        self._current: _Wire | None = None  # the session's connection, with or without an agreed extension
        self._wire: _Wire | None = None  # the same connection, once the extension is agreed
        self._flushing = False
        self._connecting: asyncio.Task[None] | None = None

    # Requests of users.

    async def submit(self, request: Request, limit: float | None = None) -> Submitted:
        """Submit one job and return when it is on disk.  Raises RefusedError if the server refuses it."""
        batch = self._session.submit([request.frame()], safe=request.is_repeatable)
        answer = (await self._answered(batch, limit))[0]
        if isinstance(answer, ServerError):
            raise answer
        return answer

    async def submit_many(self, requests: Iterable[Request], limit: float | None = None) -> AsyncIterator[list[Answer]]:
        """Submit jobs in overlapping windows, and yield the answers of each window in order; the limit is that of a window."""
        for batch in submitting(requests, self._submit):
            yield await self._answered(batch, limit)

    async def outcome(
        self,
        handle: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the error names the job
        *,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> Outcome:
        """Wait until a job has ended, across lost connections.  Raises TimeoutError."""
        wait = self._session.wait(handle, on_notice)
        try:
            async with asyncio.timeout(timeout):
                return await self._await_job(wait)
        except TimeoutError:
            raise not_ended_error(handle, timeout) from None
        finally:
            self._session.forget([wait])

    async def stream(
        self,
        handle: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the error names the job
    ) -> AsyncGenerator[JobEvent | Outcome]:
        """Yield the events that a job sends from now on, and then its outcome.  Raises TimeoutError."""
        events = EventBuffer()
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        wait = self._session.wait(handle, events.add)
        try:
            while True:
                late = deadline is not None and loop.time() >= deadline
                if not wait.done and (late or not events):
                    await self._await_more(wait, events, deadline, timeout)
                if (event := events.pop()) is None:
                    yield wait.result()
                    return
                yield event
        finally:
            self._session.forget([wait])

    async def outcomes(self, handles: Iterable[str]) -> AsyncIterator[Outcome]:
        """Yield the outcomes of many jobs in order, with many requests in flight."""
        with contextlib.closing(awaiting(handles, self._wait, self._session.forget)) as waits:
            for wait in waits:
                yield await self._await_job(wait)

    async def call(self, method: str, params: dict[str, Any] | None = None, limit: float | None = None) -> Any:
        """Call a method of the protocol and return its value; raises the errors of the blocking client's ``call``."""
        return await self._answered(self._session.call(method, params), limit, longest_wait(params))

    async def events(self, method: str, params: dict[str, Any] | None = None) -> AsyncIterator[dict[str, Any]]:
        """Call a method and yield its events without end, until a ConnectionLostError."""
        events: deque[dict[str, Any]] = deque()
        arrived = asyncio.Event()

        def add(event: dict[str, Any]) -> None:
            events.append(event)
            arrived.set()

        call = self._session.call(method, params, add)
        await self._answered(call, None)
        call.listen(arrived.set)
        while True:
            while events:
                yield events.popleft()
            if call.error is not None:
                raise call.error
            arrived.clear()
            await arrived.wait()

    async def close(self) -> None:
        """Close the connection; pending requests get a ConnectionLostError.  The client can be used again."""
        self._session.abandon(ConnectionLostError("the client was closed"))
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await connecting
        wire, self._wire, self._current = self._current, None, None
        if wire is not None:
            wire.close()
            await wire.ended

    # Internal.

    def _submit(self, frames: list[bytes], safe: bool) -> SubmitBatch:
        batch = self._session.submit(frames, safe=safe)
        self._wake()
        return batch

    def _wait(self, handles: list[str]) -> list[Wait]:
        return [self._session.wait(handle) for handle in handles]

    async def _answered(self, reply: PendingReply[T], limit: float | None, more: float = 0.0) -> T:
        """Wait for the answer to a request until its limit; ``more`` seconds longer if the server itself waits."""
        if not reply.done:
            loop = asyncio.get_running_loop()
            answered: asyncio.Future[bool] = loop.create_future()
            limit = (self._request_timeout if limit is None else limit) + more
            self._deadlines.add(answered, limit, loop)
            reply.listen(lambda: None if answered.done() else answered.set_result(True))
            self._wake()
            try:
                if not await answered:
                    raise no_answer_error(limit, sent=self._give_up(reply))
            finally:
                self._deadlines.remove(answered)
                if answered.cancelled() or not answered.done():
                    self._give_up(reply)
        return reply.result()

    def _give_up(self, reply: PendingReply[Any]) -> bool:
        """Drop a request whose caller waits no longer; return whether it was sent.

        A connection without other requests is reset, so that the server drops what it has not begun.
        """
        if reply.done:
            return True
        sent = self._session.give_up(reply)
        if sent and self._current is not None and self._session.is_stale:
            self._current.reset()
        return sent

    async def _await(self, reply: PendingReply[T]) -> T:
        if not reply.done:
            arrived = asyncio.get_running_loop().create_future()
            reply.listen(lambda: None if arrived.done() else arrived.set_result(None))
            self._wake()
            await arrived
        return reply.result()

    async def _await_job(self, wait: Wait) -> Outcome:
        """Wait for a job's end. If a task waits, notify its worker."""
        if wait.done:
            return wait.result()
        with self._announced(wait):
            return await self._await(wait)

    async def _await_more(
        self,
        wait: Wait,
        events: EventBuffer,
        deadline: float | None,
        timeout: float | None,  # noqa: ASYNC109 - the error names it
    ) -> None:
        """Wait for the next event of a job or for its end. If a task waits, notify its worker.

        Raises TimeoutError after the deadline of ``timeout``, even if events have arrived since.
        """
        arrived = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            if not arrived.done():
                arrived.set_result(None)

        events.listen(arrive)
        wait.listen(arrive)
        self._wake()
        try:
            with self._announced(wait):
                async with asyncio.timeout_at(deadline):
                    await arrived
        except TimeoutError:
            raise not_ended_error(wait.handle.decode(), timeout) from None

    def _announced(self, wait: Wait) -> AbstractContextManager[None]:
        loop = asyncio.get_running_loop()

        def refuse(error: BaseException) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the wait is over
                loop.call_soon_threadsafe(self._refuse, wait, error)

        return announced(wait.handle.decode(), refuse)

    def _refuse(self, wait: Wait, error: BaseException) -> None:
        """End a wait with an error."""
        if not wait.done:
            self._session.forget([wait])
            wait.reject(error)

    def _wake(self) -> None:
        """Send the pending requests; connect first if there is no connection."""
        if self._wire is not None:
            if not self._flushing and self._session.has_output:
                self._flushing = True
                asyncio.get_running_loop().call_soon(self._flush)
        elif self._connecting is None:
            self._connecting = asyncio.create_task(self._reconnect(), name="mainspring client connects")

    def _flush(self) -> None:
        self._flushing = False
        if self._wire is not None and self._session.has_output:
            self._wire.write(self._session.take_output())

    async def _reconnect(self) -> None:
        """Connect. Retry while callers wait for jobs, until the reconnect time-out."""
        loop = asyncio.get_running_loop()
        try:
            while (error := await self._connect()) is not None and self._session.unfinished:
                delay = self._reconnect_policy.connect_failed(self._session, error, loop.time())
                if delay is None:
                    return
                await asyncio.sleep(delay)
        finally:
            self._connecting = None

    async def _connect(self) -> ServerError | None:
        """Try each server once; return the error if no connection was made."""
        failures: list[tuple[Address, OSError]] = []
        for address in self.servers:
            wire = _Wire(self)
            try:
                async with asyncio.timeout(self._connect_timeout):
                    await connect(address, lambda wire=wire: wire, self._tls)  # type: ignore[misc] # this round's
                    await wire.agreed
            except TimeoutError:
                wire.close()
                failures.append((address, TimeoutError("timed out")))
            except OSError as error:
                failures.append((address, error))
            except ServerError as error:
                wire.close()
                return error
            else:
                return None
        return ConnectionLostError(unreachable_message(failures))

    def begun(self, wire: _Wire) -> None:
        """Start the session on a new connection."""
        self._current = wire
        self._session.connected()
        wire.write(self._session.take_output())

    def received(self, wire: _Wire, data: bytes) -> None:
        """Process received bytes.  Raises ServerError if the server does not support the extension."""
        if wire is not self._current:
            return
        self._session.receive(data)
        if self._session.ready:
            self._wire = wire
        self._flush()

    def ended(self, wire: _Wire, error: Exception | None) -> None:
        """Process the end of a connection."""
        if wire is not self._current:
            return
        if self._wire is not None:
            self._reconnect_policy.connection_lost(asyncio.get_running_loop().time())
        self._wire = self._current = None
        self._session.disconnected(
            ConnectionLostError(
                f"the connection to the server ended{f': {explain(error)}' if isinstance(error, OSError) else ''}"
            )
        )
        if self._session.unfinished and self._connecting is None:
            self._wake()


class _Wire(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, client: AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        self._client = client
        self._transport: asyncio.Transport | None = None
        self.agreed: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tune(transport.get_extra_info("socket"))
        self._client.begun(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._client.received(self, data)
        except ServerError as error:
            if self.agreed.done():
                self.close()
            else:
                self.agreed.set_exception(error)
            return
        if not self.agreed.done():
            self.agreed.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.agreed.done():
            self.agreed.set_exception(exc if isinstance(exc, OSError) else ConnectionResetError(CLOSED_WITHOUT_REASON))
        if not self.ended.done():
            self.ended.set_result(None)
        self._client.ended(self, exc)

    def write(self, data: bytes) -> None:
        """Send bytes; the transport buffers those that the kernel does not accept."""
        if self._transport is not None:
            self._transport.write(data)

    def reset(self) -> None:
        """End the connection now, without its unsent bytes."""
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            if sock is not None:
                reset(sock)
            self._transport.abort()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()
        elif not self.ended.done():
            self.ended.set_result(None)
