"""Where few jobs are in a state, its index gives them at once; where many are, a list ends with its budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.jobs.model import State
from mainspring.queries.filters import JobFilter
from mainspring.queries.jobs import ListJobs
from mainspring.storage.query import Budget
from mainspring.testing.conformance import Make, Store
from mainspring.testing.conformance.driver import NOW

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUDGET = Budget(rows=4, seconds=60.0, part=2)
"""By an index it may look at a quarter of its rows: at one."""


class Few:
    @pytest.fixture
    def store(self, make: Make) -> Iterator[Store]:
        store = Store(make)
        yield store
        store.close()

    def test_few_are_found_at_once_and_many_in_parts(self, store: Store) -> None:
        later = {"state": State.SCHEDULED, "due_us": NOW + 10**9}
        leased, _, pending = store.leased(), store.submitted(**later), store.submitted()
        for _ in range(5):
            store.end(store.leased(function=b"ended"))
            store.submitted(function=b"later", **later)
        for state, job in ((State.LEASED, leased), (State.PENDING, pending)):
            found = store.read(ListJobs(where=JobFilter(states=(state,))), BUDGET)
            assert ([one.id for one in found.items], found.next) == ([job.id], None)
        found = store.read(ListJobs(where=JobFilter(states=(State.SCHEDULED,), function=b"f")), BUDGET)
        assert found.items == []
        assert found.next is not None, "six are scheduled"

    def test_an_index_of_one_function_is_taken_where_it_is_asked_for(self, store: Store) -> None:
        rare = store.submitted(function=b"rare")
        many = [store.submitted() for _ in range(9)]
        found = store.read(ListJobs(where=JobFilter(states=(State.PENDING,), function=b"rare")), BUDGET)
        assert ([job.id for job in found.items], found.next) == ([rare.id], None)
        found = store.read(ListJobs(where=JobFilter(states=(State.PENDING,), unique=b"none")), BUDGET)
        assert (found.items, found.next) == ([], many[5].id)


class TestSqlite(Few):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: SqliteEngine(tmp_path / "jobs.db")


class TestPostgres(Few):
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: PostgresEngine(database)
