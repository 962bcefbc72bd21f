"""The control connection: heartbeats, messages, folding, partitions. Groups have another one, and neither waits for the other."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from mainspring.engines.postgres import failures
from mainspring.engines.postgres.connection import connect_patiently, disconnect
from mainspring.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg import Connection, Record

    from mainspring.engines.postgres.address import Address
    from mainspring.log_limit import CauseLimit

log = structlog.get_logger("mainspring.postgres")
T = TypeVar("T")


class Control:
    """Keeps one connection, and makes another one where it is lost; one piece of work at a time has it."""

    def __init__(self, address: Address, name: str, greet: Callable[[Connection[Record]], Awaitable[object]]) -> None:
        """``greet`` is called with each new connection, before anybody else has it."""
        self._address = address
        self._name = name
        self._greet = greet
        self._connection: Connection[Record] | None = None
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._turn = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None

    async def open(self, patience: float | None) -> Connection[Record]:
        """Connect for the first time; raises StoreError. The connection is the caller's alone until `start`."""
        self._connection = await connect_patiently(self._address, self._name, patience)
        return self._connection

    @property
    def started(self) -> bool:
        """Whether it keeps a connection."""
        return self._keeper is not None

    async def start(self) -> None:
        """Greet the connection, and keep one from now on."""
        assert self._connection is not None
        await self._greet(self._connection)
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="postgres control")

    async def run(self, work: Callable[[Connection[Record]], Awaitable[T]], timeout: float) -> T:  # noqa: ASYNC109
        """Run something on the connection, waiting for it to be there; a connection that does not answer in time is given up.

        Raises StoreUnavailableError where the store is away for ``timeout`` seconds or goes away meanwhile, or any StoreError.
        """
        connection: Connection[Record] | None = None
        try:
            async with asyncio.timeout(timeout), self._turn:
                await self._ready.wait()
                connection = self._connection
                assert connection is not None
                return await work(connection)
        except failures.ERRORS as error:
            away = failures.is_away(error)
            if connection is not None and away:
                connection.terminate()
                if connection is self._connection:
                    self._gone(connection)  # at once: the next piece of work waits for another
            raise failures.explain(error, self._address) from error
        except asyncio.CancelledError:
            if connection is not None:
                connection.terminate()  # in the middle of something
            raise
        finally:
            if connection is not None and not connection.is_closed() and connection.is_in_transaction():
                connection.terminate()  # whatever was begun is undone, and the next finds none open

    async def greet_again(self) -> None:
        """Greet the present connection once more: what there is to say to it has changed."""
        await self.run(self._greet, 10.0)

    async def _keep(self) -> None:
        while True:
            connection = self._connection
            if connection is None or connection.is_closed():
                connection = self._connection = await self._another()
            self._lost.clear()
            connection.add_termination_listener(self._gone)
            if not connection.is_closed():
                self._ready.set()
                await self._lost.wait()
            self._ready.clear()

    async def _another(self) -> Connection[Record]:
        while True:
            connection = await connect_patiently(self._address, self._name, None)
            try:
                async with asyncio.timeout(10.0):
                    await self._greet(connection)
            except (*failures.ERRORS, StoreUnavailableError) as error:
                log.warning("the store went away again", reason=str(error) or type(error).__name__)
                connection.terminate()
                await asyncio.sleep(0.5)
            else:
                return connection

    def _gone(self, _: Any) -> None:
        self._ready.clear()
        self._lost.set()

    async def close(self) -> None:
        """Keep it no longer, and disconnect."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        self._ready.clear()
        await disconnect(self._connection)
        self._connection = None


async def best_effort(what: str, work: Awaitable[object], limit: CauseLimit) -> None:
    """Do something that is repeated anyway: where it fails, there is a line in the log, unless the limit leaves it out."""
    try:
        await work
    except StoreUnavailableError as error:
        log.debug("upkeep has to wait", what=what, reason=str(error))
    except StoreError as error:
        if limit.allows(f"{what}: {error}", asyncio.get_running_loop().time()):
            log.warning("upkeep failed", what=what, reason=str(error))
