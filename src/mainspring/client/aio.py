"""The client for asyncio: the same session as the blocking client's, on a transport of the running loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mainspring.client.batches import awaiting, submitting
from mainspring.client.outcomes import not_ended
from mainspring.client.patience import CONNECT_TIMEOUT, RECONNECT_PATIENCE, Patience, unreachable
from mainspring.client.refusals import ENDED, why
from mainspring.client.session import Request, Session, Slot, Tray
from mainspring.client.sockets import connect, tune
from mainspring.client.streaming import EventBuffer
from mainspring.client.waiting import announced
from mainspring.errors import ConnectionLostError, ServerError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from mainspring.client.addresses import Address
    from mainspring.client.outcomes import Answer, Notice, Outcome, Submitted
    from mainspring.client.session import Wait
    from mainspring.client.streaming import JobEvent

T = TypeVar("T")


class AsyncClient:
    """Talks to the first of ``servers`` that can be reached.  Belongs to one event loop; connects when first needed.

    Methods raise as those of ``mainspring.client.blocking.Client`` do.
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
        self._patience = Patience(patience)
        self._session = Session()
        self._trying: _Wire | None = None  # the connection that the session is on, agreed or not
        self._wire: _Wire | None = None  # the same, once agreed
        self._flushing = False
        self._keeper: asyncio.Task[None] | None = None

    # What users ask.

    async def submit(self, request: Request) -> Submitted:
        """Submit one job and return when it is on disk.  Raises RefusedError where the server refuses it."""
        answer = (await self._await(self._session.submit([request.frame()], safe=bool(request.unique))))[0]
        if isinstance(answer, ServerError):
            raise answer
        return answer

    async def submit_many(self, requests: Iterable[Request]) -> AsyncIterator[list[Answer]]:
        """Submit jobs in windows that overlap, and give the answers of each window in order."""
        for tray in submitting(requests, self._submit):
            yield await self._await(tray)

    async def outcome(
        self,
        handle: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the error names the job
        *,
        hear: Callable[[Notice], None] | None = None,
    ) -> Outcome:
        """Wait until a job has ended, through lost connections.  Raises TimeoutError."""
        wait = self._session.wait(handle, hear)
        try:
            async with asyncio.timeout(timeout):
                return await self._await_job(wait)
        except TimeoutError:
            raise not_ended(handle, timeout) from None
        finally:
            self._session.forget([wait])

    async def stream(
        self,
        handle: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the error names the job
    ) -> AsyncGenerator[JobEvent | Outcome]:
        """Give the events that a job sends from now on, and then its outcome.  Raises TimeoutError."""
        events = EventBuffer()
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        wait = self._session.wait(handle, events.add)
        try:
            while True:
                late = deadline is not None and loop.time() >= deadline
                if not wait.done and (late or not events):
                    await self._await_more(wait, events, deadline, timeout)
                if (event := events.take()) is None:
                    yield wait.take()
                    return
                yield event
        finally:
            self._session.forget([wait])

    async def outcomes(self, handles: Iterable[str]) -> AsyncIterator[Outcome]:
        """Give the outcomes of many jobs in order, asking for many at once."""
        with contextlib.closing(awaiting(handles, self._wait, self._session.forget)) as waits:
            for wait in waits:
                yield await self._await_job(wait)

    async def call(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Call a method of the protocol and return its value; raises as the blocking client's ``call``."""
        return await self._await(self._session.call(method, params))

    async def events(self, method: str, params: dict[str, Any] | None = None) -> AsyncIterator[dict[str, Any]]:
        """Call a method and give its events, without end; ConnectionLostError ends it."""
        events: deque[dict[str, Any]] = deque()
        heard = asyncio.Event()

        def hear(event: dict[str, Any]) -> None:
            events.append(event)
            heard.set()

        call = self._session.call(method, params, hear)
        await self._await(call)
        call.listen(heard.set)
        while True:
            while events:
                yield events.popleft()
            if call.error is not None:
                raise call.error
            heard.clear()
            await heard.wait()

    async def close(self) -> None:
        """End the connection; whoever waits gets a ConnectionLostError.  The client can be used again."""
        self._session.abandon(ConnectionLostError("the client was closed"))
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        wire, self._wire, self._trying = self._trying, None, None
        if wire is not None:
            wire.close()
            await wire.ended

    # Inside.

    def _submit(self, frames: list[bytes], safe: bool) -> Tray:
        tray = self._session.submit(frames, safe=safe)
        self._wake()
        return tray

    def _wait(self, handles: list[str]) -> list[Wait]:
        return [self._session.wait(handle) for handle in handles]

    async def _await(self, slot: Slot[T]) -> T:
        if not slot.done:
            arrived = asyncio.get_running_loop().create_future()
            slot.listen(lambda: None if arrived.done() else arrived.set_result(None))
            self._wake()
            await arrived
        return slot.take()

    async def _await_job(self, wait: Wait) -> Outcome:
        """Wait for a job's end. Where a task waits, its worker is notified."""
        if wait.done:
            return wait.take()
        with self._announced(wait):
            return await self._await(wait)

    async def _await_more(
        self,
        wait: Wait,
        events: EventBuffer,
        deadline: float | None,
        timeout: float | None,  # noqa: ASYNC109 - the error names it
    ) -> None:
        """Wait for the next event of a job or for its end. Where a task waits, its worker is notified.

        Raises TimeoutError after the deadline of ``timeout``, also where events have come since.
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
            raise not_ended(wait.handle.decode(), timeout) from None

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
        """See to it that what was asked goes out, on a connection that may have to be made first."""
        if self._wire is not None:
            if not self._flushing and self._session.has_output:
                self._flushing = True
                asyncio.get_running_loop().call_soon(self._flush)
        elif self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_trying(), name="mainspring client connects")

    def _flush(self) -> None:
        self._flushing = False
        if self._wire is not None and self._session.has_output:
            self._wire.write(self._session.take_output())

    async def _keep_trying(self) -> None:
        """Connect, once, or while somebody waits for a job and the patience lasts."""
        loop = asyncio.get_running_loop()
        try:
            while (error := await self._connect()) is not None and self._session.unfinished:
                delay = self._patience.fruitless(self._session, error, loop.time())
                if delay is None:
                    return
                await asyncio.sleep(delay)
        finally:
            self._keeper = None

    async def _connect(self) -> ServerError | None:
        """Try each server once; return why it was in vain."""
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
        return ConnectionLostError(unreachable(failures))

    def begun(self, wire: _Wire) -> None:
        """A connection stands."""
        self._trying = wire
        self._session.connected()
        wire.write(self._session.take_output())

    def received(self, wire: _Wire, data: bytes) -> None:
        """Bytes have come.  Raises ServerError where the peer does not speak the extension."""
        if wire is not self._trying:
            return
        self._session.receive(data)
        if self._session.ready:
            self._wire = wire
        self._flush()

    def ended(self, wire: _Wire, error: Exception | None) -> None:
        """A connection has ended."""
        if wire is not self._trying:
            return
        if self._wire is not None:
            self._patience.lost(asyncio.get_running_loop().time())
        self._wire = self._trying = None
        self._session.disconnected(
            ConnectionLostError(
                f"the connection to the server ended{f': {why(error)}' if isinstance(error, OSError) else ''}"
            )
        )
        if self._session.unfinished and self._keeper is None:
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
            self.agreed.set_exception(exc if isinstance(exc, OSError) else ConnectionResetError(ENDED))
        if not self.ended.done():
            self.ended.set_result(None)
        self._client.ended(self, exc)

    def write(self, data: bytes) -> None:
        """Send bytes; the transport keeps what the kernel does not take."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()
        elif not self.ended.done():
            self.ended.set_result(None)
