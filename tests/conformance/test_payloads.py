"""Engines that keep runs pass the suite about large payloads."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import apsw
import asyncpg
import pytest

from mainspring.jobs.model import State
from mainspring.workflows.payloads import LARGE
from tests.conformance.suite.flows import FlowFixtures, Flows
from tests.conformance.suite.payloads import BIG, PayloadFlows, stubs
from tests.engines import memory_engine, postgres_engine, sqlite_engine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.suite import Make


class TestMemoryPayloads(PayloadFlows):
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine

    def rows(self, flows: Flows) -> int:
        engine: Any = flows.store.engine
        return sum(map(len, engine.tables.payloads.values()))


class TestSqlitePayloads(PayloadFlows):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        self.path = tmp_path / "jobs.db"
        return lambda: sqlite_engine(self.path)

    def rows(self, flows: Flows) -> int:
        del flows
        with closing(apsw.Connection(str(self.path))) as connection:
            ((number,),) = connection.execute("SELECT count(*) FROM payloads")
            return int(number)


class _Postgres:
    @pytest.fixture
    def make(self, database: str) -> Make:
        self.database = database
        return lambda: postgres_engine(database)

    def ask(self, flows: Flows, statement: str) -> Any:
        async def ask() -> Any:
            connection = await asyncpg.connect(self.database, server_settings={"search_path": "mainspring"})
            try:
                return await connection.fetchval(statement)
            finally:
                await connection.close()

        return flows.store.run(ask())


class TestPostgresPayloads(_Postgres, PayloadFlows):
    def rows(self, flows: Flows) -> int:
        return int(self.ask(flows, "SELECT count(*) FROM payloads"))


COMPATIBLE = "SELECT compatible_from FROM migrations WHERE number = 42"


class TestPostgresNodesOfEarlierVersions(_Postgres, FlowFixtures):
    def test_the_first_large_payload_keeps_them_out(self, flows: Flows) -> None:
        flows.start(payload=b"s" * LARGE)
        assert self.ask(flows, COMPATIBLE) == 22
        run = flows.start(payload=BIG)
        assert self.ask(flows, COMPATIBLE) == 42
        assert list(stubs(flows, run)) == [1]

    def test_payloads_stay_in_events_while_one_shares_the_store(self, flows: Flows) -> None:
        self.ask(flows, "UPDATE nodes SET about = (about::jsonb - 'payloads')::json RETURNING 1")
        run = flows.start(payload=BIG)
        assert stubs(flows, run) == {}
        assert self.ask(flows, COMPATIBLE) == 22
        assert flows.root(run).state == State.RUNNING
        self.ask(flows, """UPDATE nodes SET about = (about::jsonb || '{"payloads": true}')::json RETURNING 1""")
        assert list(stubs(flows, flows.start(payload=BIG))) == [1]
