"""A TLS port that reports refused handshakes, with the reason, to the client and in the log.

The event loops' own servers drop a failed handshake: they log nothing, and close the connection before the alert that OpenSSL has
written is sent. So connections are accepted here, one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.log_limit import LogLimit
from mainspring.quantities import format_duration
from mainspring.server.tls import HandshakeRefusedError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

RETRY: Final = 1.0
"""Seconds without new connections after the system had no room for one, as in asyncio."""
TOLD_EVERY: Final = 5.0
"""Seconds between two lines of the log about handshakes that are refused for one reason."""
PARTING: Final = 1.0
"""Seconds for which a refused client may go on sending: closed earlier, the connection could be reset before it reads the reason.
"""

NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""OpenSSL's reasons for bytes that are no TLS, by version; it answers them with nothing."""
log = structlog.get_logger("mainspring.server")


class TlsListener:
    """Accepts connections on a listening socket, which it closes at the end; ``protocol`` makes a protocol for each.

    A handshake may last ``handshake_timeout`` seconds. ``plain_answer`` is sent to clients that do not speak TLS.
    """

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext,
        *,
        handshake_timeout: float,
        plain_answer: bytes = b"",
    ) -> None:
        self._socket = listening
        self._protocol = protocol
        self._context = context
        self._handshake_timeout = handshake_timeout
        self._plain_answer = plain_answer
        self._limits: dict[str, LogLimit] = {}  # by reason, of which OpenSSL has a limited number
        self._greetings: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to accept connections on the running loop."""
        self._accepting = asyncio.create_task(self._accept(), name="accept TLS connections")

    async def close(self) -> None:
        """Accept no more, and end the handshakes under way; established connections go on."""
        tasks = [*self._greetings, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._socket)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                log.warning("connections are not accepted", error=str(error), seconds=RETRY)
                await asyncio.sleep(RETRY)
                continue
            greeting = loop.create_task(self._greet(connection, address))
            self._greetings.add(greeting)
            greeting.add_done_callback(self._greetings.discard)

    async def _greet(self, connection: socket.socket, address: tuple[str, int]) -> None:
        """Shake hands; the connection is its protocol's from then on."""
        try:
            spare = connection.dup()  # the loop closes its own when the handshake fails
        except OSError:
            connection.close()
            return
        with spare:
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    self._protocol, connection, ssl=self._context, ssl_handshake_timeout=self._handshake_timeout
                )
            except HandshakeRefusedError as error:
                self._tell(address, error.why)
                await _part(spare, error.alert or (self._plain_answer if error.reason in NOT_TLS else b""))
            except ConnectionAbortedError:
                self._tell(address, f"the handshake took longer than {format_duration(self._handshake_timeout)}")
            except OSError:
                pass  # the client has gone; checks of the port by other machines do that all the time

    def _tell(self, address: tuple[str, int], reason: str) -> None:
        limit = self._limits.setdefault(reason, LogLimit(TOLD_EVERY))
        left_out = limit.left_out(asyncio.get_running_loop().time())
        if left_out is not None:
            host, port = address[:2]
            peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            more = {"left_out": left_out} if left_out else {}
            log.warning("tls handshake refused", peer=peer, reason=reason, **more)


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
