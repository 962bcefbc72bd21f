"""A worker's connection to one server: made, kept up, and made again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

import structlog

from mainspring.client.reconnect_policy import CONNECT_TIMEOUT, delays
from mainspring.client.refusals import why
from mainspring.client.sockets import connect, tune
from mainspring.errors import ServerError, SettingsError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.client.addresses import Address
    from mainspring.worker.session import Event, Key, WorkerSession

MAX_UNANSWERED_BEATS: Final = 3
STEADY: Final = 5.0
"""Seconds after which a connection counts as one that holds."""

Connector: TypeAlias = "Callable[[Callable[[], asyncio.Protocol]], Awaitable[Any]]"
"""Connects a protocol, as ``loop.create_connection`` does; raises OSError.  It is called again for each reconnect."""

_log = structlog.get_logger(__name__)


def connector(address: Address, tls: ssl.SSLContext | None = None) -> Connector:
    """Return what connects to an address, also to one in the file system."""

    async def to_address(factory: Callable[[], asyncio.Protocol]) -> None:
        await connect(address, factory, tls)

    return to_address


class Owner(Protocol):
    """Whom a link tells."""

    def agreed(self, link: Link) -> None:
        """The server is ready for READY."""

    def received(self, link: Link, events: Sequence[Event]) -> None:
        """Something has come."""

    def lost(self, link: Link, keys: set[Key]) -> None:
        """The connection has ended, and these deliveries with it."""


class Link:
    """One server of a worker; ``name`` is for people. ``extra``: its jobs run in extra places."""

    def __init__(
        self, name: str, connect: Connector, session: WorkerSession, owner: Owner, *, extra: bool = False
    ) -> None:
        self.name = name
        self.extra = extra
        self.session = session
        self._connect = connect
        self._owner = owner
        self._wire: _Wire | None = None
        self._flushing = False
        self._closing = False
        self.refusal: ServerError | SettingsError | None = None

    async def keep(self) -> None:
        """Stay connected until cancelled.

        Raises ServerError where the server does not speak the extension, SettingsError where its store cannot serve the App.
        """
        waits = delays()
        unreachable = self.extra  # the worker's own link to the server tells
        while True:
            wire = _Wire(self)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await self._connect(lambda wire=wire: wire)  # type: ignore[misc] # binds this round's
                    await wire.agreed.wait()
            except (OSError, TimeoutError) as error:
                wire.abort()
                if not unreachable:
                    unreachable = True
                    _log.warning("server cannot be reached", server=self.name, error=_reason(error))
            else:
                began = asyncio.get_running_loop().time()
                if self.session.agreed:
                    _log.info("connected for awaited jobs" if self.extra else "connected", server=self.name)
                    unreachable = False
                elif not (wire.reached or self._closing or self.refusal or unreachable):
                    unreachable = True
                    _log.warning("server cannot be reached", server=self.name, error=_reason(wire.error))
                await wire.ended.wait()
                if asyncio.get_running_loop().time() - began > STEADY:
                    waits = delays()  # it was a connection: only one that keeps ending is waited for longer and longer
                if self.refusal is not None:
                    raise self.refusal
            await asyncio.sleep(next(waits))

    def flush(self) -> None:
        """Write what the session has, at the end of this turn of the loop."""
        if not self._flushing and self._wire is not None and self.session.has_output:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._wire is not None and self.session.has_output:
            self._wire.write(self.session.take_output())

    def check(self) -> None:
        """Give up a connection whose server has not answered several heartbeats."""
        if self.session.unanswered_beats > MAX_UNANSWERED_BEATS and self._wire is not None:
            _log.warning("server is silent", server=self.name)
            self._wire.abort()

    @property
    def descriptor(self) -> int | None:
        """The number of the connection's socket; None where there is no connection."""
        return None if self._wire is None else self._wire.descriptor

    async def close(self) -> None:
        """Write what is left and end the connection."""
        self._closing = True
        if self._wire is not None:
            self._flush()
            self._wire.close()
            await self._wire.ended.wait()

    # What the wire tells.

    def begun(self, wire: _Wire) -> None:
        """A connection stands."""
        self._wire = wire
        self.session.connected()
        self._flush()

    def received(self, wire: _Wire, data: bytes) -> None:
        """Bytes have come."""
        if wire is not self._wire:
            return
        was_agreed = self.session.agreed
        try:
            events = self.session.receive(data)
        except (ServerError, SettingsError) as error:
            self.refusal = error
            wire.abort()
            return
        if self.session.agreed and not was_agreed:
            wire.reached = True
            wire.agreed.set()
            self._owner.agreed(self)
        self._owner.received(self, events)  # even without any: settlements may have been acknowledged
        self.flush()

    def ended(self, wire: _Wire, error: Exception | None) -> None:
        """A connection has ended."""
        if wire is not self._wire:
            return
        self._wire = None
        if self.session.agreed and not self._closing and not self.extra:
            if error is None:
                # A server that stops does this, as at each end of `mainspring run`. One that cannot be reached is warned of.
                _log.info("connection ended", server=self.name)
            else:
                _log.warning("connection ended", server=self.name, error=_reason(error))
        self._owner.lost(self, self.session.disconnected())


def _reason(error: Exception | None) -> str:
    if error is None or (isinstance(error, OSError) and not isinstance(error, TimeoutError)):
        return why(error)
    return str(error) or "timed out"


class _Wire(asyncio.Protocol):
    """One connection of a link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._transport: asyncio.Transport | None = None
        self.agreed = asyncio.Event()  # or ended before
        self.reached = False  # whether the server has agreed
        self.error: Exception | None = None  # of the connection's end
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tune(transport.get_extra_info("socket"))
        self._link.begun(self)

    def data_received(self, data: bytes) -> None:
        self._link.received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self._link.ended(self, exc)
        self.agreed.set()
        self.ended.set()

    @property
    def descriptor(self) -> int | None:
        """The number of the socket; None before and after the connection."""
        if self._transport is None or self._transport.is_closing():
            return None
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    def write(self, data: bytes) -> None:
        """Send bytes; the transport keeps what the kernel does not take."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """End the connection after what was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()
