"""Queries on their own connection: they do not block groups, and groups do not block them.

Each is one read-only transaction with one snapshot. It ends with its budget, so it keeps vacuum from few tuples. Frequent
queries whose answer is nearly always one statement have no transaction around it, because each further statement would wait for a
turn of a busy loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from mainspring.access.audit import ListActs
from mainspring.access.store import CountRevocations, FindCredential
from mainspring.engines.postgres import failures
from mainspring.engines.postgres.control import Control
from mainspring.engines.postgres.failures import Verdict
from mainspring.engines.postgres.functions import Functions, Nodes
from mainspring.engines.postgres.transaction import Transaction
from mainspring.errors import StoreBrokenError, StoreError, StoreUnavailableError
from mainspring.jobs.store import ShowJob
from mainspring.queries.jobs import FirstInLine
from mainspring.queries.schedules import LastOutcomes, NewestFires
from mainspring.resources.store import ListLimits
from mainspring.schedules.store import ListSchedules
from mainspring.series.store import ReadNamespaceSeries
from mainspring.storage.operation import unknown
from mainspring.storage.query import Meter

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from mainspring.engines.postgres.address import Address
    from mainspring.engines.postgres.lists import Readers
    from mainspring.engines.postgres.transaction import Memory
    from mainspring.storage.engine import Answered
    from mainspring.storage.query import Budget, Query

READ_TIMEOUT: Final = 3.0
"""Seconds for an answer, more than a statement may take. It detects a dead connection; the next attempt uses a new one."""
SINGLE_STATEMENT: Final = frozenset(
    {
        CountRevocations,
        FindCredential,
        FirstInLine,
        LastOutcomes,
        ListActs,
        ListLimits,
        ListSchedules,
        NewestFires,
        ReadNamespaceSeries,
        ShowJob,
    }
)
"""Queries of one statement. The parts of a very long answer may be of different snapshots, as its pages are: the rows of these
lists never change their places."""
READ_ATTEMPTS: Final = 3
"""Attempts to run a query that meets a possible race."""
READ_SETTINGS: Final = """
    SET default_transaction_read_only = on; SET default_transaction_isolation = 'repeatable read';
    SET statement_timeout = '2s'
"""


async def _greet(connection: Connection[Record]) -> None:
    await connection.execute(READ_SETTINGS)


class Reader:
    """Answers queries, one at a time; it adds the nodes it finds to ``nodes``, and shares ``memory`` with the node's groups."""

    def __init__(self, address: Address, name: str, nodes: Nodes, memory: Memory, readers: Readers) -> None:
        self._readers = readers
        self._control = Control(address, name, _greet)
        self._shared_nodes = nodes
        self._nodes = Nodes()  # a cache that reads on this connection
        self._functions = Functions()
        self._memory = memory
        self._task: asyncio.Task[None] | None = None

    async def open(self, open_timeout: float | None) -> None:
        """Connect; raises StoreError."""
        await self._control.open(open_timeout)
        await self._control.start()

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query, or report an error, within some seconds."""
        if type(query) not in self._readers:
            raise unknown("PostgreSQL", [type(query)])
        self._task = asyncio.get_running_loop().create_task(self._run(query, budget, answered), name="postgres read")

    async def _run(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        answer: Any
        try:
            try:
                answer = await self._attempt(query, budget)
            except StoreUnavailableError:
                answer = await self._attempt(query, budget)
        except StoreError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 - without an answer, the caller would wait for ever
            answer = StoreBrokenError(f"a defect in the store's code: a read has failed: {error!r}")
            answer.__cause__ = error
        answered(answer)
        del answer  # an error's traceback has this frame: together they would keep the query until a collection

    async def _attempt(self, query: Query[Any], budget: Budget) -> Any:
        return await self._control.run(
            lambda connection: self._read_repeatedly(connection, query, budget), READ_TIMEOUT
        )

    async def _read_repeatedly(self, connection: Connection[Record], query: Query[Any], budget: Budget) -> Any:
        attempt = 1
        while True:
            try:
                return await self._read(connection, query, budget)
            except failures.ERRORS as error:
                verdict = failures.judge(error, connected=not connection.is_closed())
                if verdict not in {Verdict.BUSY, Verdict.RACE} or attempt == READ_ATTEMPTS:
                    raise
            attempt += 1

    async def _read(self, connection: Connection[Record], query: Query[Any], budget: Budget) -> Any:
        self._functions.use(connection)
        self._nodes.use(connection)
        tx = Transaction(connection, 0, self._functions, self._nodes, self._memory)
        async with contextlib.nullcontext() if type(query) in SINGLE_STATEMENT else connection.transaction():
            answer = await self._readers[type(query)](tx, query, Meter(budget, asyncio.get_running_loop().time))
        self._functions.committed()
        self._shared_nodes.update(self._nodes)
        return answer

    async def close(self) -> None:
        """End the query under way, and disconnect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._control.close()
