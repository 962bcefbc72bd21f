"""A worker's connection to one server, with reconnects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

import structlog

from mainspring.client.outcomes import explain
from mainspring.client.session import CONNECT_TIMEOUT, delays
from mainspring.client.sockets import connect, tune
from mainspring.errors import ServerError, SettingsError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.client.environment import Address
    from mainspring.worker.session import Event, Key, WorkerSession

STABLE_AFTER: Final = 5.0
"""Seconds after which a connection counts as stable, so that the next reconnect begins with the shortest delay."""

Connector: TypeAlias = "Callable[[Callable[[], asyncio.Protocol]], Awaitable[Any]]"
"""A function that connects a protocol, like ``loop.create_connection``; raises OSError.  It is called for each reconnect."""

_log = structlog.get_logger(__name__)


def connector(address: Address, tls: ssl.SSLContext | None = None) -> Connector:
    """Return a function that connects to an address of the network or of a Unix socket."""

    async def to_address(factory: Callable[[], asyncio.Protocol]) -> None:
        await connect(address, factory, tls)

    return to_address


class Owner(Protocol):
    """The receiver of a link's events."""

    def agreed(self, link: Link) -> None:
        """Handle a new connection that is ready for READY."""

    def received(self, link: Link, events: Sequence[Event]) -> None:
        """Handle received events."""

    def lost(self, link: Link, keys: set[Key]) -> None:
        """Handle the end of the connection, which ends these deliveries."""


class Link:
    """One server of a worker; ``name`` is for the log. ``extra``: its jobs run in extra places."""

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
        self.registered = asyncio.Event()
        """Set while a server is connected that has answered the registrations."""

    async def keep(self) -> None:
        """Stay connected until cancelled.

        Raises ServerError if the server does not support the extension, and SettingsError if its store cannot serve the App.
        """
        waits = delays()
        unreachable = self.extra  # the worker's own link to the server logs it
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
                if asyncio.get_running_loop().time() - began > STABLE_AFTER:
                    waits = delays()  # only connections that end soon make the delays grow
                if self.refusal is not None:
                    raise self.refusal
            await asyncio.sleep(next(waits))

    def flush(self) -> None:
        """Schedule a write of the session's output for the end of this iteration of the loop."""
        if not self._flushing and self._wire is not None and self.session.has_output:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self.write()

    def write(self) -> None:
        """Write the session's output now, because the rest of this iteration may take long."""
        if self._wire is not None and self.session.has_output:
            self._wire.write(self.session.take_output())

    def drop_silent(self) -> None:
        """Abort the connection, because its server has not answered several heartbeats."""
        if self._wire is not None:
            _log.warning("server is silent", server=self.name)
            self._wire.abort()

    def refuse(self, error: ServerError | SettingsError) -> None:
        """End the connection and `keep` with an error."""
        self.refusal = error
        if self._wire is not None:
            self._wire.abort()

    @property
    def descriptor(self) -> int | None:
        """The file descriptor of the connection's socket; None without a connection."""
        return None if self._wire is None else self._wire.descriptor

    async def close(self) -> None:
        """Write the remaining output and close the connection."""
        self._closing = True
        if self._wire is not None:
            self._flush()
            self._wire.close()
            await self._wire.ended.wait()

    # Called by the wire.

    def begun(self, wire: _Wire) -> None:
        """Start the session on a new connection."""
        self._wire = wire
        self.session.connected()
        self._flush()

    def received(self, wire: _Wire, data: bytes) -> None:
        """Process received bytes."""
        if wire is not self._wire:
            return
        was_agreed, was_registered = self.session.agreed, self.session.registered
        try:
            events = self.session.receive(data)
        except (ServerError, SettingsError) as error:
            self.refuse(error)
            return
        if self.session.agreed and not was_agreed:
            wire.reached = True
            wire.agreed.set()
            self._owner.agreed(self)
        self._owner.received(self, events)  # even without events: settlements may have been acknowledged
        if self.session.registered and not was_registered:
            self.registered.set()
        self.flush()

    def ended(self, wire: _Wire, error: Exception | None) -> None:
        """Process the end of a connection."""
        if wire is not self._wire:
            return
        self._wire = None
        self.registered.clear()
        if self.session.agreed and not self._closing and not self.extra:
            if error is None:
                # Only info: stopping servers do this, as at each end of `mainspring run`. Failed reconnects log a warning.
                _log.info("connection ended", server=self.name)
            else:
                _log.warning("connection ended", server=self.name, error=_reason(error))
        self._owner.lost(self, self.session.disconnected())


def _reason(error: Exception | None) -> str:
    if error is None or (isinstance(error, OSError) and not isinstance(error, TimeoutError)):
        return explain(error)
    return str(error) or "timed out"


class _Wire(asyncio.Protocol):
    """One connection of a link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._transport: asyncio.Transport | None = None
        self.agreed = asyncio.Event()  # set when the server has agreed, or the connection has ended
        self.reached = False  # whether the server has agreed
        self.error: Exception | None = None  # of the connection's end
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tune(transport.get_extra_info("socket"))
        # uvloop then sends at each write: the link collects the output of an iteration of the loop by itself.
        self._transport.set_write_buffer_limits(high=0)
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
        """The file descriptor of the socket; None before and after the connection."""
        if self._transport is None or self._transport.is_closing():
            return None
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    def write(self, data: bytes) -> None:
        """Send bytes; the transport buffers those that the kernel does not accept."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection after the written bytes."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection now."""
        if self._transport is not None:
            self._transport.abort()
