"""Where few jobs are in a state, its index gives them at once; where many are, a list ends with its budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.jobs.model import State
from mainspring.queries import JobFilter, QueryJobs
from mainspring.storage.engine import Budget
from tests.conformance.suite import Make, Store
from tests.conformance.suite.driver import NOW

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOUR_US = 3_600_000_000
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
            found = store.read(QueryJobs(where=JobFilter(states=(state,))), BUDGET)
            assert ([one.id for one in found.items], found.next) == ([job.id], None)
        found = store.read(QueryJobs(where=JobFilter(states=(State.SCHEDULED,), function=b"f")), BUDGET)
        assert found.items == []
        assert found.next is not None, "six are scheduled"

    def test_an_index_of_one_function_is_taken_where_it_is_asked_for(self, store: Store) -> None:
        rare = store.submitted(function=b"rare")
        many = [store.submitted() for _ in range(9)]
        found = store.read(QueryJobs(where=JobFilter(states=(State.PENDING,), function=b"rare")), BUDGET)
        assert ([job.id for job in found.items], found.next) == ([rare.id], None)
        found = store.read(QueryJobs(where=JobFilter(states=(State.PENDING,), unique=b"none")), BUDGET)
        assert (found.items, found.next) == ([], many[5].id)

    def test_a_search_by_time_reads_only_jobs_of_that_time(self, store: Store) -> None:
        """Each term has ten jobs, one an hour; the second node began in the middle of the first one's life."""

        def submitted(number: int) -> int:
            return store.submitted(created_us=NOW + number * HOUR_US).id

        first = [submitted(number) for number in range(10)]
        store.reopen()
        second = [submitted(number) for number in range(5, 15)]
        by_hour = dict(zip(range(15), [*first[:5], *second], strict=True))
        for since, until in ((3, 7), (0, 2), (12, 15), (13, 14), (6, 6), (20, 30)):
            where = JobFilter(
                created_from_us=max(NOW + since * HOUR_US, 1), created_to_us=NOW + until * HOUR_US, states=tuple(State)
            )
            found = store.read(QueryJobs(where=where), Budget(rows=18, seconds=60.0, part=6))
            late = [job_id for hour, job_id in sorted(by_hour.items()) if since <= hour < until]
            early = [job_id for hour, job_id in enumerate(first) if since <= hour < until and hour >= 5]
            assert [job.id for job in found.items] == sorted({*late, *early}, reverse=True), (since, until)
            assert found.next is None

    def test_a_search_by_time_allows_for_a_clock_that_was_set_back(self, store: Store) -> None:
        jobs = [store.submitted(created_us=NOW + seconds * 1_000_000) for seconds in (0, 600, 400, 700, 2000)]
        where = JobFilter(created_from_us=NOW + 500 * 1_000_000, created_to_us=NOW + 800 * 1_000_000)
        found = store.read(QueryJobs(where=where), Budget(rows=100, seconds=60.0, part=100))
        assert [job.id for job in found.items] == [jobs[3].id, jobs[1].id]


class TestSqlite(Few):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: SqliteEngine(tmp_path / "jobs.db")


class TestPostgres(Few):
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: PostgresEngine(database)
