"""Queries have a connection of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.conformance.suite.paging import answer

from mainspring.access.audit import ListActs
from mainspring.engines.postgres import lists, submitting
from mainspring.engines.postgres.connections import SESSION_SETTINGS
from mainspring.engines.postgres.lists import READERS
from mainspring.errors import StoreUnavailableError
from mainspring.jobs import store as ops
from mainspring.queries import FirstInLine, QueryJobs
from mainspring.schedules.store import ListSchedules
from mainspring.series import MINUTE, ReadNamespaceSeries

from .a_fleet import eventually, node, session
from .test_jobs_plans import plan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.postgres.proxy import Proxy

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.storage.engine import Query


def test_a_read_does_not_wait_for_a_group_that_waits_for_a_lock(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            first, second = one.job(), one.job()
            await one.group(ops.Submit([first]))
            await other.execute("BEGIN; LOCK TABLE jobs IN SHARE MODE")
            group = one.begin(ops.Submit([second]))
            await eventually(lambda: other.fetchval("SELECT 1 FROM pg_locks WHERE NOT granted"), "the group waits")
            found = await answer(one.engine, QueryJobs())
            assert [job.id for job in found.items] == [first.id]
            assert not group.done()
            await other.execute("ROLLBACK")
            await group
            found = await answer(one.engine, QueryJobs())
            assert [job.id for job in found.items] == [second.id, first.id]

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_read_has_one_snapshot_and_cannot_write(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async def look(tx: Transaction, _query: object, _meter: object) -> list[int]:
            counts = []
            for _ in range(2):
                counts.append(await tx.connection.fetchval("SELECT count(*) FROM jobs"))
                await one.submitted()
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                await tx.connection.execute("DELETE FROM jobs")
            return counts

        readers: dict[Any, Any] = READERS
        monkeypatch.setitem(readers, QueryJobs, look)
        async with node(database) as one:
            assert await answer(one.engine, QueryJobs()) == [0, 0]  # type: ignore[comparison-overlap]

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_read_on_a_connection_that_became_silent_is_answered_on_another(
    proxy: Proxy, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would wait for ever: for the answer to its request to stop the statement, before it rolls back."""
    monkeypatch.setattr(lists, "READ_TIMEOUT", 0.5)

    async def test() -> None:
        connections = []

        async def look(tx: Transaction, _query: object, _meter: object) -> int:
            assert tx.connection.is_in_transaction()
            connections.append(tx.connection)
            if len(connections) == 1:
                assert proxy.forget()
            return await tx.connection.fetchval("SELECT 1")  # type: ignore[no-any-return]

        readers: dict[Any, Any] = READERS
        monkeypatch.setitem(readers, QueryJobs, look)
        async with node(proxy.through(database)) as one:
            assert await answer(one.engine, QueryJobs()) == 1  # type: ignore[comparison-overlap]
            assert connections[0].is_closed()
            assert connections[0] is not connections[1]

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_stored_job_is_read_in_one_statement(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further one, such as those of a transaction, would wait for a turn of a busy loop."""

    async def test() -> None:
        readers: dict[Any, Any] = READERS
        show, statements = readers[ops.ShowJob], list[str]()

        async def look(tx: Transaction, query: object, meter: object) -> object:
            assert not tx.connection.is_in_transaction()
            with tx.connection.query_logger(lambda record: statements.append(record.query)):
                return await show(tx, query, meter)

        monkeypatch.setitem(readers, ops.ShowJob, look)
        async with node(database) as one:
            (job,) = await one.submitted()
            assert await answer(one.engine, ops.ShowJob(job.id)) is not None  # caches the function and the node
            statements.clear()
            assert await answer(one.engine, ops.ShowJob(job.id)) is not None
            assert len(statements) == 1

    asyncio.run(asyncio.wait_for(test(), 60))


@pytest.mark.parametrize(
    "query",
    [
        FirstInLine((b"f",)),
        ListActs(),
        ListSchedules(),
        ReadNamespaceSeries(namespace="default", step=MINUTE, since=0),
    ],
    ids=lambda query: type(query).__name__,
)
def test_the_frequent_queries_of_pages_have_no_transaction(
    database: str, monkeypatch: pytest.MonkeyPatch, query: Query[Any]
) -> None:
    async def test() -> None:
        async with node(database) as one:
            await one.submitted()
            statements = list[str]()
            fetch = asyncpg.Connection.fetch

            async def noted(connection: Any, text: str, *values: Any) -> Any:
                assert not connection.is_in_transaction()
                statements.append(text)
                return await fetch(connection, text, *values)

            monkeypatch.setattr(asyncpg.Connection, "fetch", noted)
            await answer(one.engine, query)  # caches the function
            statements.clear()
            await answer(one.engine, query)
            assert len(statements) == 1

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_submission_that_leaves_the_inbox_during_a_read_is_found(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            aliases = submitting.aliases

            async def meanwhile(tx: Transaction, ids: Iterable[int]) -> dict[int, int]:
                await one.group(ops.DrainInbox(10))
                return await aliases(tx, ids)

            monkeypatch.setattr(submitting, "aliases", meanwhile)
            job_id = await other.fetchval("INSERT INTO inbox (function, payload) VALUES ('f', 'p') RETURNING id")
            found = await answer(one.engine, ops.ShowJob(job_id))
            assert found is not None
            assert found.id == job_id
            assert await other.fetchval("SELECT count(*) FROM inbox") == 0

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_lost_connection_is_replaced(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await answer(one.engine, QueryJobs())
            await other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE '% reads'"
            )
            for _ in range(3):  # the end of the connection may be noticed by a read alone
                try:
                    found = await answer(one.engine, QueryJobs())
                    break
                except StoreUnavailableError:
                    continue
            assert found.items == []

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_search_of_all_tables_reads_the_newest_of_each(database: str) -> None:
    """PostgreSQL would sort all rows of large tables."""

    async def test() -> None:
        async with node(database), session(database, **SESSION_SETTINGS) as other:
            steps = await plan(other, "mark_all")
            assert [step["Node Type"] for step in steps].count("Limit") == 4

    asyncio.run(asyncio.wait_for(test(), 60))
