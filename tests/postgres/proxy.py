"""A proxy to a server that can be cut, held, slowed down, and made to lose exactly one answer.

    with Proxy(server.port) as proxy:
        dsn = proxy.through(server.dsn())
        lost = proxy.lose_answer()        # of the next COMMIT: it is executed, but not acknowledged
        ...
        lost.wait()

It runs in a thread of its own. Everything may be called from any thread, and has happened when it returns.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import urlsplit

from .conduit import Conditions, Conduit, abort
from .ports import steady_port
from .traps import READY, CutAfter, Direction, LoseAnswer, LoseRequest, Trap

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Direction", "Proxy", "Trap"]

HOST = "127.0.0.1"
TIMEOUT = 30.0
T = TypeVar("T")


class Proxy:
    """Listens on a port of 127.0.0.1 and passes everything on to ``target``, another one. A context manager.

    A client that connects while the server is away is accepted, and then sees the connection end.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._conduits: set[Conduit] = set()
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._started.result(TIMEOUT)
        except BaseException:
            self._thread.join(TIMEOUT)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive(), "the proxy does not end"

    def through(self, dsn: str) -> str:
        """Return the DSN of the same database through this proxy; it must name one host with its port."""
        parts = urlsplit(dsn)
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        return parts._replace(netloc=f"{user}{HOST}:{self.port}").geturl()

    # ---- faults

    def cut(self) -> int:
        """End all connections at once; return their number. New ones are accepted."""
        return self._do(self._cut)

    def refuse(self) -> int:
        """End all connections, and refuse new ones until ``heal``, like a host whose server is down."""
        return self._do(self._refuse)

    def freeze(self, *directions: Direction) -> None:
        """Hold bytes and ends of these directions, by default of both, until ``heal``, like a partition: nothing is lost.

        New connections are accepted, and reach the server with ``heal``.
        """

        async def freeze() -> None:
            for direction in directions or Direction:
                self._conditions.gates[direction].clear()

        self._do(freeze)

    def forget(self) -> int:
        """Forget all connections: both sides stay open and never receive anything again, also after ``heal``.

        So it is after a power cut of the other side, or behind a firewall that has lost its table. New connections are let
        through. Returns how many there were.
        """

        async def forget() -> int:
            for conduit in self._conduits:
                conduit.forget()
            return len(self._conduits)

        return self._do(forget)

    def delay(self, seconds: float) -> None:
        """Delay all bytes by this time, each way; the throughput stays the same."""

        async def delay() -> None:
            self._conditions.latency = seconds

        self._do(delay)

    def cut_after(self, count: int, direction: Direction) -> Trap:
        """Pass ``count`` more bytes of a direction on, counted over all connections; end the connection of the next byte."""
        return self._set(CutAfter(count, direction))

    def lose_answer(self, to: bytes = b"COMMIT", until: bytes = READY) -> Trap:
        """Pass the next request that contains ``to`` on, swallow its answer up to ``until``, and end that connection.

        The server has answered when the trap springs: by default, PostgreSQL has committed. An empty ``to`` is any request.
        """
        return self._set(LoseAnswer(to, until))

    def lose_request(self, of: bytes = b"COMMIT") -> Trap:
        """End the connection that carries the next request that contains ``of``, before the server receives it."""
        return self._set(LoseRequest(of))

    def heal(self) -> None:
        """Undo lasting faults: pass held bytes on, accept new connections, remove traps that have not sprung."""
        self._do(self._heal)

    def retarget(self, target: int) -> None:
        """Lead new connections to another port, like an address that moves to another host."""

        async def retarget() -> None:
            self._target = target

        self._do(retarget)

    # ---- observations

    @property
    def connections(self) -> int:
        """The number of connections, including forgotten ones and those of clients that wait for a frozen path."""

        async def connections() -> int:
            return len(self._served)

        return self._do(connections)

    def carried(self, direction: Direction) -> int:
        """Return how many bytes of a direction have been passed on."""

        async def carried() -> int:
            return self._conditions.carried[direction]

        return self._do(carried)

    # ---- in the proxy's thread

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._conditions = Conditions()
        self._listener: socket.socket | None = None
        self._served: set[asyncio.Task[None]] = set()
        self._listen()
        self._started.set_result(None)
        await self._stop.wait()
        await self._refuse()

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = _listening(self.port)
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept one connection. A callback: a coroutine cancelled at the wrong moment would lose the accepted socket."""
        try:
            accepted, _ = listener.accept()
        except OSError:
            return  # it is closed already
        accepted.setblocking(False)

        def end(task: asyncio.Task[None]) -> None:
            self._served.discard(task)
            accepted.close()  # even if the task never began

        task = self._loop.create_task(self._carry(accepted))
        self._served.add(task)
        task.add_done_callback(end)

    async def _carry(self, accepted: socket.socket) -> None:
        client = await asyncio.open_connection(sock=accepted)
        try:
            await self._conditions.gates[Direction.TO_SERVER].wait()
            server = await asyncio.open_connection(HOST, self._target)
        except (OSError, asyncio.CancelledError):
            await abort(client[1])
            return
        conduit = Conduit(self._conditions, client, server)
        self._conduits.add(conduit)
        try:
            await conduit.run()
        finally:
            self._conduits.remove(conduit)

    async def _cut(self) -> int:
        ending = [*self._served]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        return len(ending)

    async def _refuse(self) -> int:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        return await self._cut()

    async def _heal(self) -> None:
        self._conditions.latency = 0.0
        self._conditions.traps.clear()
        for gate in self._conditions.gates.values():
            gate.set()
        self._listen()

    def _set(self, trap: Trap) -> Trap:
        async def add() -> None:
            self._conditions.traps.append(trap)

        self._do(add)
        return trap

    def _do(self, action: Callable[[], Awaitable[T]]) -> T:
        async def done() -> T:
            return await action()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(TIMEOUT)


def _listening(port: int) -> socket.socket:
    """Listen on a port; for 0 the kernel chooses one."""
    for attempt in range(5):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port or steady_port()))
            listener.listen(128)
        except OSError:
            listener.close()
            if port or attempt == 4:
                raise
        else:
            return listener
    raise AssertionError("the last attempt raises")
