"""Queries on a connection of their own: no group waits for them, and none of them for a group.

Each is one transaction that cannot write, with one snapshot. It ends with its budget, so that it keeps vacuum only from what
died since then. What every node asks for all the time is one statement, and needs no more around it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.postgres import failures
from mainspring.engines.postgres.control import Control
from mainspring.engines.postgres.failures import Verdict
from mainspring.engines.postgres.functions import Functions, Nodes
from mainspring.engines.postgres.transaction import Transaction
from mainspring.errors import StoreBrokenError, StoreError, StoreUnavailableError
from mainspring.resources.store import ListLimits
from mainspring.storage.operation import unknown
from mainspring.storage.query import Meter

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from mainspring.engines.postgres.address import Address
    from mainspring.engines.postgres.lists import Readers
    from mainspring.engines.postgres.transaction import Memory
    from mainspring.storage.engine import Answered
    from mainspring.storage.query import Budget, Query

ANSWER: Final = 3.0
"""Seconds for an answer: no statement takes so long. A way that is dead shows only here; the next try makes another one."""
REGULAR: Final = frozenset({ListLimits})
"""Queries that each node repeats every few seconds. The parts of a very long answer may be of different moments."""
ATTEMPTS: Final = 3
"""How often a read that meets what may be a race is tried."""
SETTINGS: Final = """
    SET default_transaction_read_only = on; SET default_transaction_isolation = 'repeatable read';
    SET statement_timeout = '2s'
"""


async def _greet(connection: Connection[Record]) -> None:
    await connection.execute(SETTINGS)


class Reader:
    """Answers queries, one at a time; ``nodes`` learns the nodes of what it finds, ``memory`` is that of the node's groups."""

    def __init__(self, address: Address, name: str, nodes: Nodes, memory: Memory, readers: Readers) -> None:
        self._readers = readers
        self._control = Control(address, name, _greet)
        self._known = nodes
        self._nodes = Nodes()  # with a connection of its own
        self._functions = Functions()
        self._memory = memory
        self._task: asyncio.Task[None] | None = None

    async def open(self, patience: float | None) -> None:
        """Connect; raises StoreError."""
        await self._control.open(patience)
        await self._control.start()

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query, or say why not within some seconds."""
        if type(query) not in self._readers:
            raise unknown("PostgreSQL", [type(query)])
        self._task = asyncio.get_running_loop().create_task(self._run(query, budget, answered), name="postgres read")

    async def _run(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        answer: Any
        try:
            try:
                answer = await self._ask(query, budget)
            except StoreUnavailableError:
                answer = await self._ask(query, budget)
        except StoreError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 - whoever asked would wait for ever
            answer = StoreBrokenError(f"a defect in the store's code: a read has failed: {error!r}")
            answer.__cause__ = error
        answered(answer)

    async def _ask(self, query: Query[Any], budget: Budget) -> Any:
        return await self._control.run(lambda connection: self._patiently(connection, query, budget), ANSWER)

    async def _patiently(self, connection: Connection[Record], query: Query[Any], budget: Budget) -> Any:
        attempt = 1
        while True:
            try:
                return await self._read(connection, query, budget)
            except failures.ERRORS as error:
                verdict = failures.judge(error, connected=not connection.is_closed())
                if verdict not in {Verdict.BUSY, Verdict.RACE} or attempt == ATTEMPTS:
                    raise
            attempt += 1

    async def _read(self, connection: Connection[Record], query: Query[Any], budget: Budget) -> Any:
        self._functions.use(connection)
        self._nodes.use(connection)
        tx = Transaction(connection, 0, self._functions, self._nodes, self._memory)
        async with contextlib.nullcontext() if type(query) in REGULAR else connection.transaction():
            answer = await self._readers[type(query)](tx, query, Meter(budget, asyncio.get_running_loop().time))
        self._functions.committed()
        self._known.update(self._nodes)
        return answer

    async def close(self) -> None:
        """End what is under way, and disconnect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._control.close()
