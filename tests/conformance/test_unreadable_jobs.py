"""Jobs whose stored options a node cannot read stop no claim, no recovery and no start of runs of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import asyncpg
import pytest

from mainspring.bulk.model import Action, BulkOperation, Outcome, Spec
from mainspring.bulk.store import BeginBulk, StepBulk
from mainspring.engines.postgres.bulk import PostgresBulkSlice
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.sqlite.bulk import SqliteBulkSlice
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.workflows import SqliteWorkflowSlice
from mainspring.jobs.model import UNREADABLE_OPTIONS, Job, Options, State, encode_options
from mainspring.testing.conformance.driver import NOW, Store
from mainspring.testing.conformance.flows import Flows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEWER = b"\x81\xa5retry\xa7forever"
"""Options with a policy of a newer version."""
OPTIONS = Options(timeout=5.0)


class Suite:
    """The contract of stores that keep options as bytes."""

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        raise NotImplementedError

    def write(self, store: Store, job: Job, options: bytes) -> None:
        """Write options straight into the row of a job."""
        raise NotImplementedError

    def submitted(self, store: Store, number: int = 3) -> list[Job]:
        """Store jobs, the second one with options that cannot be read."""
        jobs = [store.submitted(options=OPTIONS) for _ in range(number)]
        self.write(store, jobs[1], NEWER)
        return jobs

    def test_others_are_claimed_with_it(self, store: Store) -> None:
        jobs = self.submitted(store)
        claimed = store.claim()
        assert [job.id for job in claimed] == [job.id for job in jobs]
        assert [job.options for job in claimed] == [OPTIONS, UNREADABLE_OPTIONS, OPTIONS]

    def test_others_are_recovered_with_it(self, store: Store) -> None:
        jobs = self.submitted(store)
        store.claim()
        store.end_term(store.term) if store.engine.shared else None
        store.reopen()
        store.recover()
        assert [store.state(job.id) for job in jobs] == [State.PENDING] * 3
        self.write(store, jobs[1], encode_options(OPTIONS))
        assert [job.options for job in store.claim()] == [OPTIONS] * 3

    def test_an_operation_passes_it_over(self, store: Store) -> None:
        jobs = self.submitted(store)
        ids = tuple(job.id for job in jobs)
        bulk = BulkOperation(id=store.new_id(), created_us=NOW, spec=Spec(action=Action.CANCEL, ids=ids))
        (begun,) = store.group(BeginBulk(bulk))
        (stepped,) = store.group(StepBulk(begun, ids, 3, NOW, is_last=True))
        assert stepped.bulk.progress.counts == {Outcome.CANCELLED: 2, Outcome.CONFLICT: 1}
        assert store.state(ids[1]) is State.PENDING


class TestSqlite(Suite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        self.path = tmp_path / "jobs.db"
        store = Store(lambda: SqliteEngine(self.path, slices=[SqliteWorkflowSlice(), SqliteBulkSlice()]))
        yield store
        store.close()

    def write(self, store: Store, job: Job, options: bytes) -> None:
        del store
        connection = apsw.Connection(str(self.path))
        connection.execute("UPDATE jobs SET options = ? WHERE id = ?", (options, job.id))
        connection.close()

    def test_runs_of_others_begin(self, store: Store) -> None:
        flows = Flows(store)
        jobs = [store.submitted(function=b"order", options=OPTIONS) for _ in range(4)]
        for job in jobs[:2]:
            self.write(store, job, NEWER)
        assert flows.begin_waiting(limit=1) == 1
        assert flows.begin_waiting() == 1
        assert flows.list() == [jobs[3].id, jobs[2].id]
        for job in jobs[:2]:
            self.write(store, job, encode_options(OPTIONS))
        assert flows.begin_waiting() == 2


class TestPostgres(Suite):
    @pytest.fixture
    def store(self, database: str) -> Iterator[Store]:
        self.database = database
        store = Store(lambda: PostgresEngine(database, slices=[PostgresBulkSlice()]))
        yield store
        store.close()

    def write(self, store: Store, job: Job, options: bytes) -> None:
        async def write() -> None:
            connection = await asyncpg.connect(self.database)
            try:
                await connection.execute("UPDATE mainspring.jobs SET options = $1 WHERE id = $2", options, job.id)
            finally:
                await connection.close()

        store._run(write())
