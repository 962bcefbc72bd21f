"""Operations on many jobs, on each engine that keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import asyncpg
import pytest

from mainspring.bulk.rules import Action, BulkOperation, Outcome, Result, Spec, Status, encode
from mainspring.bulk.store import (
    BeginBulk,
    EndBulk,
    FindBulk,
    ListBulk,
    ListTouched,
    ShowBulk,
    StepBulk,
    Stepped,
    SweepBulk,
    TakeBulk,
)
from mainspring.engines.memory.bulk import MemoryBulkSlice
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.postgres.changing import PostgresBulkSlice
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.slice_transaction import SqliteBulkSlice
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event
from mainspring.queries import JobFilter
from tests.conformance.suite.driver import NOW, Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.conformance.suite import Make

LATER = NOW + 1_000_000
DEAD_LETTERS = JobFilter(states=(State.FAILED,))
WAITING = JobFilter(states=(State.PENDING,))


class Bulk:
    """A store with the operations of one node. ``reads_ahead``: its steps read the next jobs."""

    def __init__(self, store: Store, *, reads_ahead: bool = False) -> None:
        self.store = store
        self.reads_ahead = reads_ahead

    def failed(self, number: int, **values: Any) -> list[int]:
        """Return the ids of dead letters."""
        ids = []
        for _ in range(number):
            job = self.store.leased(**values)
            self.store.end(job, Event.FAIL, error=b'{"type":"E","message":"m"}')
            ids.append(job.id)
        return ids

    def begin(
        self, action: Action = Action.RETRY, where: JobFilter | None = DEAD_LETTERS, **spec: Any
    ) -> BulkOperation:
        (bulk,) = self.store.group(
            BeginBulk(
                BulkOperation(id=self.store.new_id(), created_us=NOW, spec=Spec(action=action, where=where, **spec))
            )
        )
        assert isinstance(bulk, BulkOperation)
        return bulk

    def step(self, bulk: BulkOperation, ids: Sequence[int], *, is_last: bool = False, **more: Any) -> Stepped:
        (stepped,) = self.store.group(StepBulk(bulk, ids, ids[-1] if ids else None, LATER, is_last=is_last, **more))
        assert isinstance(stepped, Stepped)
        return stepped

    def take(self, bulk: BulkOperation) -> BulkOperation | None:
        (taken,) = self.store.group(TakeBulk(bulk.id))
        assert taken is None or isinstance(taken, BulkOperation)
        return taken

    def show(self, bulk: BulkOperation) -> BulkOperation:
        shown = self.store.read(ShowBulk("default", bulk.id))
        assert shown is not None
        return shown

    def touched(self, bulk: BulkOperation) -> list[tuple[Outcome, int]]:
        steps = self.store.all_of(ListTouched(id=bulk.id))
        return [(outcome, job_id) for step in steps for outcome, ids in step.items() for job_id in ids]


class BulkSuite:
    """The contract of operations on many jobs."""

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError

    @pytest.fixture
    def node(self, make: Make) -> Iterator[Bulk]:
        store = Store(make)
        yield Bulk(store)
        store.close()

    def test_a_step_redrives_jobs_and_moves_on(self, node: Bulk) -> None:
        ids = node.failed(3)
        bulk = node.begin()
        stepped = node.step(bulk, ids[:2])
        assert stepped.stepped
        assert [one.job.id for one in stepped.outcomes] == ids[:2]
        assert stepped.bulk is not None
        assert stepped.bulk.progress.after == ids[1]
        assert stepped.bulk.progress.counts == {Outcome.RETRIED: 2}
        assert [node.store.find(job_id) for job_id in ids[:2]] == [one.job for one in stepped.outcomes]
        assert [node.store.state(job_id) for job_id in ids] == [State.PENDING, State.PENDING, State.FAILED]
        last = node.step(stepped.bulk, ids[2:], is_last=True).bulk
        assert last is not None
        assert (last.status, last.ended_us, last.progress.counts) == (Status.DONE, LATER, {Outcome.RETRIED: 3})
        assert node.show(bulk) == last
        assert node.touched(bulk) == [(Outcome.RETRIED, job_id) for job_id in ids]

    def test_the_outcome_of_each_action_is_the_job_as_stored(self, node: Bulk) -> None:
        dead, waiting, unwanted = node.failed(1)[0], node.store.submitted().id, node.store.submitted().id
        for action, job_id in ((Action.RETRY, dead), (Action.RESCHEDULE, waiting), (Action.CANCEL, unwanted)):
            bulk = node.begin(action, None, ids=(job_id,), due_us=LATER if action is Action.RESCHEDULE else None)
            (outcome,) = node.step(bulk, [job_id]).outcomes
            assert outcome.job == node.store.find(job_id), action

    def test_a_step_may_read_the_next_jobs(self, node: Bulk) -> None:
        ids = node.failed(8)[::-1]
        node.store.submitted()
        bulk = node.begin()
        stepped = node.step(bulk, ids[:2], ahead=3)
        if stepped.following is not None:
            assert [job.id for job in stepped.following.items] == ids[2:5]
            assert stepped.following.next == ids[4]
        assert node.reads_ahead == (stepped.following is not None)
        assert stepped.bulk is not None
        assert node.step(stepped.bulk, ids[2:4], ahead=5).following is None, "fewer are left"

    def test_a_repeated_step_changes_nothing(self, node: Bulk) -> None:
        (job_id,) = node.failed(1)
        bulk = node.begin()
        first = node.step(bulk, [job_id])
        (claimed,) = node.store.claim()
        node.store.end(claimed, Event.FAIL, error=b'{"type":"E","message":"m"}')
        repeated = node.step(bulk, [job_id])
        assert not repeated.stepped
        assert repeated.bulk == first.bulk
        assert node.store.state(job_id) is State.FAILED

    def test_only_jobs_that_still_match_are_changed(self, node: Bulk) -> None:
        ids = node.failed(2)
        other = node.failed(1, function=b"g")
        bulk = node.begin(where=JobFilter(states=(State.FAILED,), function=b"f"))
        assert node.store.redrive(ids[0]).redriven
        stepped = node.step(bulk, [*ids, *other, 12345])
        assert stepped.bulk is not None
        assert stepped.bulk.progress.counts == {Outcome.RETRIED: 1, Outcome.NO_MATCH: 3}
        assert node.store.state(other[0]) is State.FAILED
        assert node.touched(bulk) == [(Outcome.RETRIED, ids[1])]

    def test_failures_are_kept_with_their_reasons(self, node: Bulk) -> None:
        (rival,) = node.failed(1, unique=b"u")
        node.store.submitted(unique=b"u")
        waiting = node.store.submitted()
        (job_id,) = node.failed(1, function=b"g")
        bulk = node.begin(where=None, ids=(rival, waiting.id, 99, job_id))
        progress = node.step(
            bulk, [rival, waiting.id, 99, job_id], refused={job_id: Result(job_id, Outcome.CONFLICT, "no")}
        ).bulk.progress  # type: ignore[union-attr]
        assert progress.counts == {Outcome.CONFLICT: 3, Outcome.NOT_FOUND: 1}
        reasons = {failure.job: failure.message for failure in progress.failures}
        assert "its unique is live again" in reasons[rival]
        assert reasons[waiting.id].startswith("it is pending: only failed")
        assert reasons[job_id] == "no"

    def test_a_step_cancels_jobs_that_wait_and_names_those_that_run(self, node: Bulk) -> None:
        running = node.store.leased()
        pending = node.store.submitted()
        scheduled = node.store.submitted(state=State.SCHEDULED, due_us=LATER)
        bulk = node.begin(Action.CANCEL, JobFilter(function=b"f"), reason="away with them")
        ids = [scheduled.id, pending.id, running.id]
        stepped = node.step(bulk, ids, is_last=True)
        assert stepped.bulk is not None
        progress = stepped.bulk.progress
        assert progress.counts == {Outcome.CANCELLED: 2, Outcome.STOPPING: 1}
        assert progress.stopping == (running.id,)
        assert [one.before for one in stepped.outcomes] == [State.SCHEDULED, State.PENDING, State.LEASED]
        assert stepped.bulk.status is Status.RUNNING, "the worker was not asked to stop yet"
        last = node.step(stepped.bulk, [], is_last=True).bulk
        assert last is not None
        assert (last.status, last.progress.stopping) == (Status.DONE, ())
        assert node.store.state(pending.id) is State.CANCELLED
        cancelled = node.store.find(pending.id)
        assert cancelled is not None
        assert b"away with them" in cancelled.error

    def test_an_operation_stops_before_it_exceeds_its_limit(self, node: Bulk) -> None:
        ids = node.failed(3)
        bulk = node.begin(most=2)
        bulk = node.step(bulk, ids[:2]).bulk or bulk
        stopped = node.step(bulk, ids[2:]).bulk
        assert stopped is not None
        assert (stopped.status, stopped.progress.why) == (Status.STOPPED, "more than the expected 2 jobs match")
        assert node.store.state(ids[2]) is State.FAILED

    def test_an_early_end_stops_the_next_step(self, node: Bulk) -> None:
        ids = node.failed(2)
        bulk = node.begin()
        assert node.store.group(EndBulk("other", bulk.id, Status.ABORTED, "x", LATER)) == [None]
        stepped, ended = node.store.group(
            StepBulk(bulk, ids[:1], ids[0], LATER, is_last=False),
            EndBulk("default", bulk.id, Status.ABORTED, "no more", LATER),
        )
        assert stepped.stepped
        assert (ended.status, ended.progress.why) == (Status.ABORTED, "no more")
        assert not node.step(stepped.bulk, ids[1:]).stepped
        assert not node.step(ended, ids[1:]).stepped
        assert node.store.group(EndBulk("default", bulk.id, Status.STOPPED, "y", LATER)) == [ended]

    def test_the_next_run_of_a_node_goes_on(self, node: Bulk) -> None:
        ids = node.failed(2)
        bulk = node.begin()
        before = node.step(bulk, ids[:1]).bulk
        assert before is not None
        node.store.reopen()
        assert not node.step(before, ids[1:]).stepped, "it was not taken over yet"
        (found,) = node.store.read(FindBulk(node.store.term))
        assert found == before
        taken = node.take(found)
        assert taken is not None
        assert taken.term == node.store.term
        assert taken.progress == before.progress
        assert node.take(found) == taken
        last = node.step(taken, ids[1:], is_last=True)
        assert last.bulk is not None
        assert last.bulk.progress.counts == {Outcome.RETRIED: 2}
        assert node.store.read(FindBulk(node.store.term)) == []
        assert node.take(found) is None

    def test_a_namespace_lists_its_own_operations(self, node: Bulk) -> None:
        begun = [node.begin() for _ in range(3)]
        assert node.store.all_of(ListBulk()) == node.store.all_of(ListBulk(bytes=1)) == begun[::-1]
        page = node.store.read(ListBulk(limit=2))
        assert page.items == begun[:0:-1]
        assert node.store.read(ListBulk(limit=2, after=page.next)).items == begun[:1]
        assert node.store.all_of(ListBulk(namespace="other")) == []
        assert node.store.read(ShowBulk("other", begun[0].id)) is None
        assert node.store.read(ShowBulk("default", 2**70)) is None

    def test_old_operations_are_deleted_with_their_steps(self, node: Bulk) -> None:
        ids = node.failed(2)
        running = node.begin()
        bulk = node.begin()
        stepped = node.step(bulk, ids[:1]).bulk
        assert stepped is not None
        node.step(stepped, ids[1:], is_last=True)
        assert node.store.group(SweepBulk(LATER)) == [0]
        assert node.store.group(SweepBulk(LATER + 1))[0] > 0
        assert node.store.all_of(ListBulk()) == [running]
        assert node.touched(bulk) == []
        assert node.store.group(SweepBulk(LATER + 1)) == [0]


class StoredSuite(BulkSuite):
    """The contract of stores that keep operations as bytes."""

    def write(self, node: Bulk, column: str, value: object, bulk: BulkOperation) -> None:
        """Write a value straight into the row of an operation."""
        raise NotImplementedError

    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("spec", encode({"action": "archive"})),
            ("spec", b"\x93\xc1"),
            ("progress", encode({"counts": {"archived": 1}})),
            ("status", 99),
        ],
    )
    def test_an_operation_that_cannot_be_read_stops_no_other(self, node: Bulk, column: str, value: object) -> None:
        ids = node.failed(2)
        unread, other = node.begin(), node.begin()
        before = {"spec": encode(unread.spec), "progress": encode(unread.progress), "status": 0}[column]
        node.store.reopen()
        self.write(node, column, value, unread)
        found = {bulk.id: bulk.unread for bulk in node.store.read(FindBulk(node.store.term))}
        assert found.pop(other.id) == ""
        assert all(found.values())
        listed = {bulk.id: bulk.unread for bulk in node.store.all_of(ListBulk())}
        assert "cannot read its" in listed[unread.id]
        assert node.show(unread).unread == listed[unread.id]
        mine, taken, ended = node.store.group(
            TakeBulk(unread.id), TakeBulk(other.id), EndBulk("default", unread.id, Status.ABORTED, "x", LATER)
        )
        assert (mine, ended.unread) == (None, listed[unread.id])
        stale, stepped = node.store.group(
            StepBulk(unread, ids[:1], ids[0], LATER, is_last=False), StepBulk(taken, ids, ids[-1], LATER, is_last=True)
        )
        assert (stale.stepped, stepped.bulk.status) == (False, Status.DONE)
        self.write(node, column, before, unread)
        assert node.show(unread) == unread
        assert node.take(unread) is not None


class TestMemory(BulkSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = MemoryEngine(slices=[MemoryBulkSlice()])
        return lambda: engine


class TestSqlite(StoredSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        self.path = tmp_path / "jobs.db"
        return lambda: SqliteEngine(self.path, slices=[SqliteBulkSlice()])

    def write(self, node: Bulk, column: str, value: object, bulk: BulkOperation) -> None:
        del node
        connection = apsw.Connection(str(self.path))
        connection.execute(f"UPDATE operations SET {column} = ? WHERE id = ?", (value, bulk.id))
        connection.close()

    @pytest.fixture
    def node(self, make: Make) -> Iterator[Bulk]:
        store = Store(make)
        yield Bulk(store, reads_ahead=True)
        store.close()


class TestPostgres(StoredSuite):
    @pytest.fixture
    def make(self, database: str) -> Make:
        self.database = database
        return lambda: PostgresEngine(database, slices=[PostgresBulkSlice()])

    def write(self, node: Bulk, column: str, value: object, bulk: BulkOperation) -> None:
        async def write() -> None:
            connection = await asyncpg.connect(self.database)
            try:
                await connection.execute(
                    f"UPDATE mainspring.operations SET {column} = $1 WHERE id = $2", value, bulk.id
                )
            finally:
                await connection.close()

        node.store._run(write())

    def test_one_node_works_on_an_operation_until_its_term_ends(self, node: Bulk) -> None:
        ids = node.failed(2)
        bulk = node.begin()
        other = Bulk(node.store.beside())
        assert other.store.read(FindBulk(other.store.term)) == []
        assert other.take(bulk) is None
        assert not other.step(bulk, ids).stepped
        stepped = node.step(bulk, ids[:1]).bulk
        node.store.end_term(node.store.term)
        (found,) = other.store.read(FindBulk(other.store.term))
        assert found == stepped
        taken = other.take(found)
        assert taken is not None
        last = other.step(taken, ids[1:], is_last=True).bulk
        assert last is not None
        assert last.progress.counts == {Outcome.RETRIED: 2}

    def test_an_operation_ends_early_at_any_node(self, node: Bulk) -> None:
        ids = node.failed(1)
        bulk = node.begin()
        other = Bulk(node.store.beside())
        (ended,) = other.store.group(EndBulk("default", bulk.id, Status.ABORTED, "x", LATER))
        assert ended.status is Status.ABORTED
        assert not node.step(bulk, ids).stepped
        assert node.store.state(ids[0]) is State.FAILED
