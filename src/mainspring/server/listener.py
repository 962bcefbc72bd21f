"""A port whose connections are accepted one by one: bounded before they are accepted, with TLS or without.

The event loops' own servers accept whatever comes, and drop a TLS handshake that fails: they log nothing, and close the
connection before the alert that OpenSSL has written is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.log_limit import LogLimit
from mainspring.quantities import format_duration
from mainspring.server.tls import HandshakeRefusedError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from mainspring.faces.http.connections import Connection, Connections

RETRY: Final = 1.0
"""Seconds without new connections after the system had no room for one, as in asyncio."""
TOLD_EVERY: Final = 5.0
"""Seconds between two lines of the log about handshakes that are refused for one reason."""
STOPPED_EVERY: Final = 60.0
"""Seconds between two lines of the log that say that no connections are accepted."""
PARTING: Final = 1.0
"""Seconds for which a refused client may go on sending: closed earlier, the connection could be reset before it reads the reason.
"""

NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""OpenSSL's reasons for bytes that are no TLS, by version; it answers them with nothing."""
log = structlog.get_logger("mainspring.server")


@dataclass(frozen=True, slots=True)
class Handshakes:
    """TLS of a port: a handshake may last ``timeout`` seconds; ``plain_answer`` is sent to clients that do not speak TLS."""

    context: ssl.SSLContext
    timeout: float
    plain_answer: bytes = b""


class Listener:
    """Accepts connections on a listening socket, which it closes at the end.

    ``connections`` has a place for each, and ``protocol`` makes a protocol for it, which sets how the place's connection is
    ended, and leaves the place when it has. ``bounded``: False where only connections that are not established yet take places.
    """

    def __init__(
        self,
        listening: socket.socket,
        connections: Connections,
        protocol: Callable[[Connection], asyncio.BaseProtocol],
        tls: Handshakes | None = None,
        *,
        bounded: bool = True,
    ) -> None:
        self._socket = listening
        self._connections = connections
        self._protocol = protocol
        self._tls = tls
        self._bounded = bounded
        self._limits: dict[str, LogLimit] = {}  # by reason, of which OpenSSL has a limited number
        self._stopped = LogLimit(STOPPED_EVERY)
        self._greetings: set[asyncio.Task[bool]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to accept connections on the running loop."""
        self._accepting = asyncio.create_task(self._accept(), name="accept connections")

    async def close(self) -> None:
        """Accept no more, and end those that are not established yet; the others go on."""
        tasks = [*self._greetings, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            place = await self._connections.place()
            try:
                connection, address = await self._next()
            except asyncio.CancelledError:
                place.leave()
                raise
            self._greet_in_task(loop, place, connection, address)
            await asyncio.sleep(0)  # many that wait are accepted in many turns of the loop

    async def _next(self) -> tuple[socket.socket, tuple[str, int]]:
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await loop.sock_accept(self._socket)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if self._stopped.left_out(loop.time()) is not None:
                    log.warning("connections are not accepted", error=str(error), seconds=RETRY)
                await asyncio.sleep(RETRY)

    def _greet_in_task(
        self, loop: asyncio.AbstractEventLoop, place: Connection, connection: socket.socket, address: tuple[str, int]
    ) -> None:
        greeting = loop.create_task(self._greet(place, connection, address))

        def greeted(_: object) -> None:
            self._greetings.discard(greeting)
            if greeting.cancelled() or not greeting.result():
                connection.close()  # it may not even have begun
                place.leave()
            elif not self._bounded:
                place.leave()

        self._greetings.add(greeting)
        greeting.add_done_callback(greeted)
        place.begin(greeting.cancel)

    async def _greet(self, place: Connection, connection: socket.socket, address: tuple[str, int]) -> bool:
        """Establish a connection, which is its protocol's from then on; False where it has ended."""
        if self._tls is not None:
            return await self._shake_hands(self._tls, place, connection, address)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self._protocol(place), connection)
        except OSError:
            return False  # the client has gone
        return True

    async def _shake_hands(
        self, tls: Handshakes, place: Connection, connection: socket.socket, address: tuple[str, int]
    ) -> bool:
        try:
            spare = connection.dup()  # the loop closes its own when the handshake fails
        except OSError:
            return False
        with spare:
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: self._protocol(place), connection, ssl=tls.context, ssl_handshake_timeout=tls.timeout
                )
            except HandshakeRefusedError as error:
                self._tell(address, error.why)
                await _part(spare, error.alert or (tls.plain_answer if error.reason in NOT_TLS else b""))
            except ConnectionAbortedError:
                self._tell(address, f"the handshake took longer than {format_duration(tls.timeout)}")
            except OSError:
                pass  # the client has gone; checks of the port by other machines do that all the time
            else:
                return True
        return False

    def _tell(self, address: tuple[str, int], reason: str) -> None:
        limit = self._limits.setdefault(reason, LogLimit(TOLD_EVERY))
        left_out = limit.left_out(asyncio.get_running_loop().time())
        if left_out is not None:
            more = {"left_out": left_out} if left_out else {}
            log.warning("tls handshake refused", peer=_shown(address), reason=reason, **more)


def _shown(address: tuple[str, int] | str) -> str:
    if isinstance(address, str):
        return "unix"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _part(connection: socket.socket, last: bytes) -> None:
    """Send the last bytes, and wait for the client to read them and end the connection."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(PARTING):
            if last:
                await loop.sock_sendall(connection, last)
            connection.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(connection, 4096):
                pass
