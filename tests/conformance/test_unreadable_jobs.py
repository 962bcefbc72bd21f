"""Jobs, limits and acts that a node cannot read stop no claim, no start, no retention and no list of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import asyncpg
import pytest

from mainspring.access.audit import ListActs, RecordActs
from mainspring.access.caller import Act
from mainspring.access.store import SweepAccess
from mainspring.bulk.rules import Action, BulkOperation, Outcome, Spec
from mainspring.bulk.store import BeginBulk, StepBulk
from mainspring.engines.postgres.changing import PostgresBulkSlice
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.slice_transaction import SqliteBulkSlice
from mainspring.engines.sqlite.workflows import SqliteWorkflowSlice
from mainspring.jobs.model import UNREADABLE_OPTIONS, Job, Options, State, encode_options
from mainspring.resources.rules import FunctionLimits, Limits
from mainspring.resources.store import ListLimits, SaveLimits
from tests.conformance.suite.driver import NOW, Store
from tests.conformance.suite.flows import Flows

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

    def change(self, store: Store, statement: str, *values: object) -> None:
        """Change the content of the store behind the back of the node; ``?`` stands for a value."""
        raise NotImplementedError

    def write(self, store: Store, job: Job, options: bytes) -> None:
        """Write options straight into the row of a job."""
        self.change(store, "UPDATE jobs SET options = ? WHERE id = ?", options, job.id)

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
        if store.engine.shared:
            store.end_term(store.term)
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

    def test_a_function_whose_limits_cannot_be_read_is_paused(self, store: Store) -> None:
        for function in (b"f", b"g"):
            store.group(SaveLimits(FunctionLimits(function, commanded=Limits(concurrency=3))))
        self.change(store, "UPDATE limits SET said = ? WHERE version = 1", b"\x93\xc1")
        store.group(SaveLimits(FunctionLimits(b"h", commanded=Limits(concurrency=3))))
        store.reopen()
        found = {one.function: one for one in store.all_of(ListLimits())}
        assert [found[function].paused for function in (b"f", b"g", b"h")] == [True, True, False]
        assert "cannot read the limits" in found[b"f"].pause_reason
        (saved,) = store.group(SaveLimits(FunctionLimits(b"f", version=1)))
        assert (saved.paused, saved.version) == (False, 2), "somebody resumes it"

    def test_acts_that_cannot_be_read_stop_neither_the_audit_nor_its_retention(self, store: Store) -> None:
        acts = [Act("jobs.cancel", "ann", f"H:n:{number}") for number in range(3)]
        store.group(RecordActs(acts))
        places = [one.number for one in store.all_of(ListActs())][::-1]
        self.change(store, "UPDATE audit SET act = ?, object = NULL WHERE number = ?", b"\x93\xc1", places[1])
        assert store.group(SweepAccess(0, 0)) is not None
        listed = {one.number: one.act for one in store.all_of(ListActs())}
        assert [listed[place].what for place in places] == ["jobs.cancel", "unreadable", "jobs.cancel"]
        store.group(SweepAccess(0, 2**62))
        assert store.all_of(ListActs()) == []


class TestSqlite(Suite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        self.path = tmp_path / "jobs.db"
        store = Store(lambda: SqliteEngine(self.path, slices=[SqliteWorkflowSlice(), SqliteBulkSlice()]))
        yield store
        store.close()

    def change(self, store: Store, statement: str, *values: object) -> None:
        del store
        connection = apsw.Connection(str(self.path))
        connection.execute(statement, values)
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

    def change(self, store: Store, statement: str, *values: object) -> None:
        async def write() -> None:
            connection = await asyncpg.connect(self.database, server_settings={"search_path": "mainspring"})
            try:
                numbered = statement
                for number in range(len(values)):
                    numbered = numbered.replace("?", f"${number + 1}", 1)
                await connection.execute(numbered, *values)
            finally:
                await connection.close()

        store._run(write())
