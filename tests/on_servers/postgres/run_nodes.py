"""Nodes that change the same runs of workflows, with groups that meet at chosen places."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.suite.driver import Store
from tests.conformance.suite.flows import Flows
from tests.engines import postgres_engine

from mainspring.engines.postgres.workflows import PostgresRuns

from .a_fleet import eventually, session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.errors import StoreError
    from mainspring.storage.engine import Operation

    Group = Sequence[Operation]

WAITING = """SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query NOT LIKE '%pg_stat_activity%'"""


class Nodes:
    """Two or three nodes of one store, each with a driver of its runs."""

    def __init__(self, database: str, number: int = 2) -> None:
        self._database = database
        first = Store(lambda: postgres_engine(database))
        self.stores = [first, *(first.beside(f"n{at}") for at in range(2, number + 1))]
        self.flows = [Flows(store) for store in self.stores]
        self.patch = pytest.MonkeyPatch()

    def close(self) -> None:
        """Close all engines."""
        self.patch.undo()
        self.stores[0].close()

    def concurrently(self, *groups: tuple[Flows, Group]) -> list[list[Any] | StoreError]:
        """Commit groups of several nodes at once."""
        return self.stores[0].groups(*((flows.store, group) for flows, group in groups))

    # ---- groups that meet ----

    def before(self, method: str, flows: Flows, work: Callable[[], Awaitable[object]], call: int = 1) -> None:
        """Do some work in the middle of a node's next group: before a certain call of a method of its tables."""
        original = getattr(PostgresRuns, method)
        term, calls = flows.store.term, 0

        async def wrapped(tables: PostgresRuns, *values: Any) -> Any:
            nonlocal calls
            if tables.term == term:
                calls += 1
                if calls == call:
                    await work()
            return await original(tables, *values)

        self.patch.setattr(PostgresRuns, method, wrapped)

    def meet(
        self, first: tuple[Flows, Group], second: tuple[Flows, Group], method: str = "write", call: int = 1
    ) -> tuple[Any, Any]:
        """Commit a group while another one, which has come before it, has its locks; return the outcomes of both.

        The first one goes on once the second one waits for it.
        """
        following: list[asyncio.Future[Any]] = []

        async def work() -> None:
            following.append(asyncio.ensure_future(second[0].store.committed(second[1])))
            async with session(self._database) as other:

                async def waits() -> bool:
                    return bool(await other.fetchval(WAITING)) or following[0].done()

                await eventually(waits, "the second group waits for the first one")
            assert not following[0].done(), "the second group has to wait for the first one"

        async def both() -> tuple[Any, Any]:
            outcomes = await first[0].store.committed(first[1])
            return outcomes, await following[0]

        self.before(method, first[0], work, call)
        return self.stores[0].run(both())

    def during(self, first: tuple[Flows, Group], second: tuple[Flows, Group], method: str = "write") -> tuple[Any, Any]:
        """Commit a group as a whole in the middle of another one, which has its locks; return the outcomes of both."""
        inner: list[Any] = []

        async def work() -> None:
            inner.append(await second[0].store.committed(second[1]))

        self.before(method, first[0], work)
        outcomes = first[0].store.group(*first[1])
        assert inner, f"the first group calls {method}"
        return outcomes, inner[0]
