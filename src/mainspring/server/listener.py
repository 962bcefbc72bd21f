"""A listening port with a limit of connections, with TLS or without.

The listener waits for a free place before it accepts a connection. The servers of event loops accept every connection.
If a TLS handshake fails, they log nothing and close the connection before OpenSSL's alert is sent.
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

ACCEPT_RETRY_DELAY: Final = 1.0
"""Seconds without new connections after the system refused one, for example for lack of descriptors; as in asyncio."""
REFUSAL_LOG_INTERVAL: Final = 5.0
"""Seconds between two log lines about handshakes that are refused for one reason."""
ACCEPT_LOG_INTERVAL: Final = 60.0
"""Seconds between two log lines about connections that cannot be accepted."""
CLOSE_TIMEOUT: Final = 1.0
"""Seconds for which a refused client may go on sending: an earlier close could reset the connection before it reads why."""

NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""OpenSSL's reasons, which depend on its version, for bytes that are not TLS. OpenSSL sends no alert for them."""
log = structlog.get_logger("mainspring.server")


@dataclass(frozen=True, slots=True)
class Handshakes:
    """TLS settings of a port: the seconds that a handshake may last, and the answer to clients that do not use TLS."""

    context: ssl.SSLContext
    timeout: float
    plain_answer: bytes = b""


class Listener:
    """Accepts connections on a listening socket, and closes that socket at the end.

    Each connection gets a place of ``connections``, and a protocol from ``protocol``. The protocol sets how its
    connection is ended, and leaves the place when the connection has ended. ``bounded`` is False if only connections
    whose handshake is under way occupy places.
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
        self._limits: dict[str, LogLimit] = {}  # by reason; OpenSSL has a limited number of them
        self._stopped = LogLimit(ACCEPT_LOG_INTERVAL)
        self._greetings: set[asyncio.Task[bool]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to accept connections on the running loop."""
        self._accepting = asyncio.create_task(self._accept(), name="accept connections")

    async def close(self) -> None:
        """Stop accepting and end connections that are not established yet; the others go on."""
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
                place.release()
                raise
            except Exception:
                place.release()
                log.exception("a defect: a connection was not accepted")
                await asyncio.sleep(ACCEPT_RETRY_DELAY)
                continue
            self._greet_in_task(loop, place, connection, address)
            await asyncio.sleep(0)  # one connection for each turn of the loop, so that other tasks run too

    async def _next(self) -> tuple[socket.socket, tuple[str, int]]:
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await loop.sock_accept(self._socket)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if self._stopped.left_out(loop.time()) is not None:
                    log.warning("connections are not accepted", error=str(error), seconds=ACCEPT_RETRY_DELAY)
                await asyncio.sleep(ACCEPT_RETRY_DELAY)

    def _greet_in_task(
        self, loop: asyncio.AbstractEventLoop, place: Connection, connection: socket.socket, address: tuple[str, int]
    ) -> None:
        greeting = loop.create_task(self._greet(place, connection, address))

        def greeted(_: object) -> None:
            self._greetings.discard(greeting)
            if greeting.cancelled() or not greeting.result():
                connection.close()  # a cancelled task may not have started
                place.release()
            elif not self._bounded:
                place.release()

        self._greetings.add(greeting)
        greeting.add_done_callback(greeted)
        place.begin(greeting.cancel)

    async def _greet(self, place: Connection, connection: socket.socket, address: tuple[str, int]) -> bool:
        """Establish a connection, which then belongs to its protocol; return False if it has ended."""
        if self._tls is not None:
            return await self._shake_hands(self._tls, place, connection, address)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self._protocol(place), connection)
        except OSError:
            return False  # the client has disconnected
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
                self._log_refusal(address, error.why)
                await _close_politely(spare, error.alert or (tls.plain_answer if error.reason in NOT_TLS else b""))
            except ConnectionAbortedError:
                self._log_refusal(address, f"the handshake took longer than {format_duration(tls.timeout)}")
            except OSError:
                pass  # the client has disconnected, as port checks of load balancers do all the time
            else:
                return True
        return False

    def _log_refusal(self, address: tuple[str, int], reason: str) -> None:
        limit = self._limits.setdefault(reason, LogLimit(REFUSAL_LOG_INTERVAL))
        left_out = limit.left_out(asyncio.get_running_loop().time())
        if left_out is not None:
            more = {"left_out": left_out} if left_out else {}
            log.warning("tls handshake refused", peer=_shown(address), reason=reason, **more)


def _shown(address: tuple[str, int] | str) -> str:
    if isinstance(address, str):
        return "unix"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _close_politely(connection: socket.socket, last: bytes) -> None:
    """Send the last bytes and wait until the client ends the connection, at most `CLOSE_TIMEOUT`."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT):
            if last:
                await loop.sock_sendall(connection, last)
            connection.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(connection, 4096):
                pass
