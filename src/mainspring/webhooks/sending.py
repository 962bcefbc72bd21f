"""Sends one message to a webhook's receiver: HTTP/1.1 over a new connection to a checked address.

The receiver is a stranger. It may be slow, answer without an end, redirect into the node's own network, or have a name server
that changes its mind. So the whole attempt has one time limit, the answer a limit of bytes; redirects are answers like others;
and connections go to the addresses that were checked, with the host's name in TLS and in ``Host``. Proxies of the environment
are not used: they would resolve the name once more.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
from codecs import getincrementaldecoder
from functools import cache
from os import strerror
from typing import TYPE_CHECKING, Final, NamedTuple

import h11

from mainspring.errors import UsageError
from mainspring.webhooks.answer import Answer, Cause, Reply, SendError
from mainspring.webhooks.targets import PUBLIC, check_addresses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from mainspring.webhooks.targets import Address, Policy, Target

    Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
    """Returns the addresses of a host and a port as texts. Raises OSError."""


class Limits(NamedTuple):
    """The limits of one attempt."""

    total: float = 20.0
    """Seconds for all of it."""
    connect: float = 5.0
    """Seconds for the connection to one address, TLS included; the next address is tried after it."""
    answer: int = 65_536
    """Bytes of the answer that are read, its headers and chunks included. The connection is closed behind them."""
    excerpt: int = 1024
    """Bytes of the answer's body that are kept."""


LIMITS: Final = Limits()
MOST_HEADERS: Final = 20
"""Headers that a webhook may add."""
LONGEST_HEADER: Final = 1024
"""Characters of a header's value."""
_HEADER_NAME: Final = re.compile(r"[a-z0-9-]{1,64}")
DEPTH: Final = "mainspring-depth"
"""How many deliveries have led to the message. A receiver that calls the HTTP API sends it there, so that circles end."""
_HEADER_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?|")
_OWN_HEADERS: Final = frozenset({
    *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect"),
    *("accept-encoding", "proxy-authorization", "proxy-connection", "proxy-authenticate"),
})  # fmt: skip
"""Headers that decide where a message begins, ends and goes."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that change a terminal, or the order of the text beside them."""
_CHUNK: Final = 16_384
"""Bytes that are read at a time."""
_LONGEST_RETRY_AFTER: Final = 40
_MOST_ADDRESSES: Final = 4
"""Addresses of a host that are tried."""


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise UsageError for headers that a webhook must not have. The error does not repeat values: they may be secrets."""
    if len(headers) > MOST_HEADERS:
        raise UsageError(f"a message has at most {MOST_HEADERS} headers")
    if len({name.lower() for name in headers}) < len(headers):
        raise UsageError("a message has each header once")
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name.lower()):
            raise UsageError("the name of a header has 1 to 64 letters, digits and dashes")
        if name.lower() in _OWN_HEADERS:
            raise UsageError(f"the header {name} belongs to the connection, and cannot be set")
        if len(value) > LONGEST_HEADER or not _HEADER_VALUE.fullmatch(value):
            raise UsageError(f"the value of the header {name} has other characters than printable ASCII, or too many")


class Resolver:
    """Looks up names of hosts, each in a thread of its own, and no name twice at a time.

    The system's look-up blocks, cannot be cancelled, and takes up to half a minute if a name server does not answer. The threads
    of the loop's executor would soon all wait for such names, and other webhooks with them. Threads that still wait do not delay
    the end of the process.
    """

    def __init__(self, look_up: Callable[[str, int], Sequence[str]] | None = None, most: int = 64) -> None:
        """``look_up`` may block and raises OSError. ``most`` is the number of look-ups at a time; further ones wait."""
        self._look_up = look_up or system_addresses
        self._places = asyncio.Semaphore(most)
        self._running: dict[tuple[str, int], asyncio.Task[Sequence[str]]] = {}

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host as texts. Raises OSError. A caller that is cancelled leaves the look-up to others."""
        key = host, port
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._run(host, port))
            task.add_done_callback(lambda _: self._running.pop(key))
        return await asyncio.shield(task)

    async def _run(self, host: str, port: int) -> Sequence[str]:
        async with self._places:
            loop = asyncio.get_running_loop()
            found: asyncio.Future[Sequence[str]] = loop.create_future()
            threading.Thread(
                target=self._work, args=(loop, found, host, port), name="webhook-look-up", daemon=True
            ).start()
            return await found

    def _work(
        self, loop: asyncio.AbstractEventLoop, found: asyncio.Future[Sequence[str]], host: str, port: int
    ) -> None:
        addresses: Sequence[str] = ()
        error: Exception | None = None
        try:
            addresses = self._look_up(host, port)
        except Exception as caught:  # noqa: BLE001 - raised for the callers, in the loop
            error = caught
        try:
            loop.call_soon_threadsafe(_settle, found, addresses, error)
        except RuntimeError:  # the loop has closed meanwhile
            pass


def _settle(found: asyncio.Future[Sequence[str]], addresses: Sequence[str], error: Exception | None) -> None:
    if found.done():
        return
    if error is None:
        found.set_result(addresses)
    else:
        found.set_exception(error)


def system_addresses(host: str, port: int) -> list[str]:
    """Return the addresses that the system finds for a host, as texts. Blocks. Raises OSError."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


@cache
def default_context() -> ssl.SSLContext:
    """Return the settings of TLS: the system's authorities, and the host's name in the certificate. It reads files once."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Sender:
    """Sends messages of webhooks. A node has one."""

    def __init__(
        self,
        policy: Policy = PUBLIC,
        limits: Limits = LIMITS,
        resolve: Resolve | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """``resolve`` is a `Resolver` by default, and ``context`` is `default_context`."""
        self._policy = policy
        self._limits = limits
        self._resolve = resolve or Resolver()
        self._context = context

    async def check(self, target: Target) -> tuple[Address, ...]:
        """Return the addresses of a target, all of them permitted. Raises SendError."""
        if not self._policy.permits_port(target.port):
            raise SendError(Cause.REFUSED, f"nothing may be sent to port {target.port}")
        try:
            texts = [target.host] if target.address else await self._resolve(target.host, target.port)
        except (OSError, UnicodeError):
            raise SendError(Cause.HOST, f"the host {target.host} has no address, or its name server fails") from None
        try:
            return check_addresses(texts, self._policy)
        except UsageError as error:
            raise SendError(Cause.REFUSED, str(error)) from None

    async def send(self, target: Target, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a message and return the answer, whatever its status. Raises SendError, and UsageError for wrong headers.

        ``headers`` have the type of the content and the signature. Once the status has arrived it counts, also if the rest of
        the answer is late, too long or malformed. A redirect is an answer like others. Each call has a connection of its own.
        """
        exchange, seconds = await self._run("POST", target, headers, body)
        return Answer(exchange.status, seconds, exchange.retry_after, exchange.excerpt)

    async def request(self, method: str, target: Target, headers: Mapping[str, str], body: bytes) -> Reply:
        """Send a request of any method, and return the answer, as `send` does, with the first bytes of its body."""
        exchange, seconds = await self._run(method, target, headers, body)
        return Reply(
            exchange.status, seconds, exchange.retry_after, exchange.location, exchange.kept, exchange.is_whole
        )

    async def _run(
        self, method: str, target: Target, headers: Mapping[str, str], body: bytes
    ) -> tuple[Exchange, float]:
        check_headers(headers)
        loop = asyncio.get_running_loop()
        start = loop.time()
        exchange = Exchange(target, headers, body, self._limits, method)
        try:
            async with asyncio.timeout(self._limits.total):
                await self._exchange(target, exchange)
        except TimeoutError:
            if not exchange.status:
                message = f"no answer within {self._limits.total:g} s"
                raise SendError(Cause.TIMEOUT, message, loop.time() - start) from None
        except SendError as error:
            error.seconds = loop.time() - start
            raise
        return exchange, loop.time() - start

    async def _exchange(self, target: Target, exchange: Exchange) -> None:
        reader, writer = await self._connect(target, await self.check(target))
        try:
            # Without a drain: a body is small, and a receiver may answer before it has read it.
            writer.write(exchange.request)
            while not exchange.receive(await reader.read(min(_CHUNK, exchange.left))):
                pass
        except OSError:
            if not exchange.status:
                raise SendError(Cause.CONNECTION, "the connection ended before the answer") from None
        finally:
            writer.transport.abort()  # a close would wait for what is unsent, and for the other side's end of TLS

    async def _connect(
        self, target: Target, addresses: Sequence[Address]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first of the addresses that accepts. The name of the host is not looked up here."""
        context = (self._context or default_context()) if target.is_tls else None
        name = target.host if target.is_tls else None
        failure = SendError(Cause.CONNECTION, "the host has no address")
        for address in addresses[:_MOST_ADDRESSES]:
            try:
                async with asyncio.timeout(self._limits.connect):
                    return await asyncio.open_connection(
                        str(address), target.port, limit=_CHUNK, ssl=context, server_hostname=name
                    )
            except OSError as error:
                failure = _failure_of(error, target, self._limits)
        raise failure


def _failure_of(error: OSError, target: Target, limits: Limits) -> SendError:
    """Return the error of a connection, without the address that Python's text has."""
    where = f"{target.host}, port {target.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return SendError(Cause.TLS, f"the certificate of {where} is not valid: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return SendError(Cause.TLS, f"no TLS with {where}: {error.reason or 'it failed'}")
    if isinstance(error, TimeoutError):
        return SendError(Cause.TIMEOUT, f"no connection to {where} within {limits.connect:g} s")
    return SendError(
        Cause.CONNECTION, f"no connection to {where}: {strerror(error.errno) if error.errno else 'it ended'}"
    )


class Exchange:
    """HTTP of one attempt, without its input and output: the request as bytes, and what of the answer is kept."""

    def __init__(
        self, target: Target, headers: Mapping[str, str], body: bytes, limits: Limits, method: str = "POST"
    ) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=limits.answer)
        own = {"host": target.authority, "content-length": str(len(body)), "connection": "close"}
        defaults = {"user-agent": "Mainspring", "accept": "*/*", "accept-encoding": "identity"}
        fields = own | defaults | {name.lower(): value for name, value in headers.items()}
        request = h11.Request(method=method, target=target.path, headers=list(fields.items()))
        parts = [self._http.send(one) for one in (request, h11.Data(data=body), h11.EndOfMessage())]
        self.request = b"".join(part for part in parts if part)
        """The bytes to send."""
        self.left = limits.answer
        """Bytes that may still be read."""
        self.status = 0
        """The status of the answer; 0 before it has arrived."""
        self.retry_after = ""
        self.location = ""
        self.is_whole = False
        """Whether all of the answer has arrived."""
        self._kept = bytearray()
        self._keep = limits.excerpt

    @property
    def kept(self) -> bytes:
        """The first bytes of the answer's body."""
        return bytes(self._kept)

    @property
    def excerpt(self) -> str:
        """The beginning of the answer's body."""
        text = getincrementaldecoder("utf-8")("replace").decode(
            bytes(self._kept)
        )  # a character that is cut is left out
        return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))

    def receive(self, data: bytes) -> bool:
        """Take bytes of the answer, none at the end of the connection. Return whether no more are needed. Raises SendError."""
        self.left -= len(data)
        try:
            is_complete = self._take(data)
        except h11.RemoteProtocolError:
            if data and not self.status:
                raise SendError(Cause.PROTOCOL, "the answer is not HTTP/1.1") from None
            is_complete = True
        if not self.status and not data:
            raise SendError(Cause.CONNECTION, "the connection ended before the answer")
        if not self.status and not self.left:
            raise SendError(Cause.PROTOCOL, "the headers of the answer are too long")
        return is_complete or not self.left

    def _take(self, data: bytes) -> bool:
        self._http.receive_data(data)
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                self.status = event.status_code
                answered = dict(event.headers)
                location = answered.get(b"location", b"").decode("latin-1")
                self.location = location if location.isascii() and location.isprintable() else ""
                found = answered.get(b"retry-after", b"")
                self.retry_after = found.decode("latin-1") if len(found) <= _LONGEST_RETRY_AFTER else ""
            elif isinstance(event, h11.Data):
                self._kept += event.data[: self._keep - len(self._kept)]
            elif not isinstance(event, h11.InformationalResponse):
                self.is_whole = isinstance(event, h11.EndOfMessage)
                return event is not h11.NEED_DATA
