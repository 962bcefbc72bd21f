"""Jobs without published values, completion tokens and work elsewhere run no statement about them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.conformance.suite.driver import NOW, Store
from tests.conformance.suite.flows import Flows
from tests.conformance.suite.values import live_without_values
from tests.engines import postgres_engine

from mainspring.values.model import NewValue
from mainspring.values.service import PublishValues

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLES = re.compile(r"\b(job_values|completions|works|payloads)\b")


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the statements about such tables that later connections run."""
    found: list[str] = []
    connect = asyncpg.connect

    def note(record: Any) -> None:
        if TABLES.search(record.query) and not record.query.startswith("DELETE FROM payloads"):  # of many runs
            found.append(record.query)

    async def logged(*args: Any, **options: Any) -> Any:
        connection = await connect(*args, **options)
        connection.add_query_logger(note)
        return connection

    monkeypatch.setattr(asyncpg, "connect", logged)
    return found


@pytest.fixture
def flows(database: str, statements: list[str]) -> Iterator[Flows]:
    store = Store(lambda: postgres_engine(database))
    yield Flows(store)
    store.close()


def test_what_is_not_used_costs_no_statement(flows: Flows, statements: list[str]) -> None:
    live_without_values(flows)
    assert statements == []


def test_values_of_many_jobs_cost_as_much_as_those_of_one(flows: Flows, statements: list[str]) -> None:
    store = flows.store
    jobs = [store.leased(function=b"f%d" % number) for number in range(20)]
    values = [NewValue(job.id, name, 1, NOW, b"1") for name in ("a", "b") for job in jobs]
    outcomes = store.group(*(PublishValues([one], store.term) for one in values))
    assert outcomes == [[one.job] for one in values]
    assert len(statements) == 2, "one reads what there is, and one writes"
