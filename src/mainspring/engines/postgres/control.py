"""The control connection: heartbeats, messages, folding, partitions. It and the groups' connection do not block each other."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from mainspring.engines.postgres import failures
from mainspring.engines.postgres.connection import connect_repeatedly, disconnect
from mainspring.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg import Connection, Record

    from mainspring.engines.postgres.address import Address
    from mainspring.log_limit import CauseLimit

DEFECT_DELAY: Final = 10.0
"""Seconds until a loop begins again that has ended because of a defect."""

log = structlog.get_logger("mainspring.postgres")
T = TypeVar("T")


class Control:
    """Keeps one connection open and replaces it when it is lost; runs one piece of work at a time on it."""

    def __init__(self, address: Address, name: str, greet: Callable[[Connection[Record]], Awaitable[object]]) -> None:
        """``greet`` is called with each new connection before any other use."""
        self._address = address
        self._name = name
        self._greet = greet
        self._connection: Connection[Record] | None = None
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._lock = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None

    async def open(self, open_timeout: float | None) -> Connection[Record]:
        """Connect for the first time; raises StoreError. The caller has the connection to itself until `start`."""
        self._connection = await connect_repeatedly(self._address, self._name, open_timeout)
        return self._connection

    @property
    def started(self) -> bool:
        """Whether the connection is kept open."""
        return self._keeper is not None

    async def start(self) -> None:
        """Greet the connection, and keep one open from now on."""
        assert self._connection is not None
        await self._greet(self._connection)
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="postgres control")

    async def run(self, work: Callable[[Connection[Record]], Awaitable[T]], timeout: float) -> T:  # noqa: ASYNC109
        """Run work on the connection once there is one; drop a connection that does not answer in time.

        Raises StoreUnavailableError if the store is unavailable for ``timeout`` seconds or becomes so during the work, or any
        StoreError.
        """
        connection: Connection[Record] | None = None
        try:
            async with asyncio.timeout(timeout), self._lock:
                await self._ready.wait()
                connection = self._connection
                assert connection is not None
                return await work(connection)
        except failures.ERRORS as error:
            away = failures.is_away(error)
            if connection is not None and away:
                connection.terminate()
                if connection is self._connection:
                    self._on_lost(connection)  # at once, so that the next piece of work waits for a new connection
            raise failures.explain(error, self._address) from error
        except asyncio.CancelledError:
            if connection is not None:
                connection.terminate()  # its state is unknown
            raise
        finally:
            if connection is not None and not connection.is_closed() and connection.is_in_transaction():
                connection.terminate()  # rolls back, so that the next piece of work finds no open transaction

    async def greet_current(self) -> None:
        """Greet the present connection once more, for example for another term."""
        await self.run(self._greet, 10.0)

    async def _keep(self) -> None:
        """Keep a connection open, until cancelled: it never ends by itself, because nothing would connect again."""
        while True:
            connection = self._connection
            if connection is None or connection.is_closed():
                try:
                    connection = self._connection = await self._reconnect()
                except Exception:
                    log.exception("the store cannot be reached again")
                    await asyncio.sleep(DEFECT_DELAY)
                    continue
            self._lost.clear()
            connection.add_termination_listener(self._on_lost)
            if not connection.is_closed():
                self._ready.set()
                await self._lost.wait()
            self._ready.clear()

    async def _reconnect(self) -> Connection[Record]:
        while True:
            connection = await connect_repeatedly(self._address, self._name, None)
            try:
                async with asyncio.timeout(10.0):
                    await self._greet(connection)
            except (*failures.ERRORS, StoreUnavailableError) as error:
                log.warning("the store went away again", reason=str(error) or type(error).__name__)
                connection.terminate()
                await asyncio.sleep(0.5)
            except BaseException:  # for example, the engine closes
                connection.terminate()
                raise
            else:
                return connection

    def _on_lost(self, _: Any) -> None:
        self._ready.clear()
        self._lost.set()

    async def close(self) -> None:
        """Stop keeping a connection, and disconnect."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        self._ready.clear()
        await disconnect(self._connection)
        self._connection = None


async def best_effort(what: str, work: Awaitable[object], limit: CauseLimit) -> None:
    """Do repeated work; log a failure, unless the limit suppresses the line."""
    try:
        await work
    except StoreUnavailableError as error:
        log.debug("maintenance is delayed", what=what, reason=str(error))
    except StoreError as error:
        if limit.allows(f"{what}: {error}", asyncio.get_running_loop().time()):
            log.warning("maintenance failed", what=what, reason=str(error))
