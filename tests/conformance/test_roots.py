"""Root jobs and withdrawn jobs, on the engines that keep runs of workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import RUNS, Job, Options, Priority, State, StopRequest
from mainspring.jobs.owners import Ended
from mainspring.jobs.rules import Event
from tests.conformance.suite.driver import NOW, Store, done
from tests.conformance.suite.holding import ENDS
from tests.conformance.suite.operations import ANYTHING

from .ground import Do, InMemory, InPostgres, InSqlite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mainspring.jobs.owners import Notice
    from tests.conformance.suite import Make

RUN = Options(run=(42, 7), ref=3, forget=True)


class RootsSuite:
    notices: list[Notice]

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError

    @pytest.fixture
    def store(self, make: Make) -> Iterator[Store]:
        opened = Store(make)
        try:
            yield opened
            opened.counts()
        finally:
            opened.close()

    # ---- beginning ----

    def test_a_root_job_runs_under_the_term_of_runs_and_has_no_payload(self, store: Store) -> None:
        job = begun(store, unique=b"u", priority=Priority.HIGH)
        found = store.present(job.id)
        assert (State(found.state), found.term, found.attempt, found.started_us) == (State.RUNNING, RUNS, 0, NOW)
        assert (found.payload, found.input_size, found.unique) == (b"", 1, b"u")
        assert store.counts() == {(b"f", State.LEASED, Priority.HIGH): 1}
        assert [one.id for one in store.list(state=State.RUNNING)] == [job.id]
        assert [one.id for one in store.list(state=State.RUNNING, function=b"f")] == [job.id]
        assert store.list(state=State.RUNNING, function=b"g") == []
        assert store.find_unique((b"f", b"u"), (ANYTHING, b"u")) == [ops.Found(job.id, State.RUNNING, 0)] * 2

    def test_jobs_join_root_jobs_and_root_jobs_join_jobs(self, store: Store) -> None:
        job = begun(store, unique=b"u")
        second = store.job(unique=b"u")
        assert store.submit(second) == {second.id: ops.Found(job.id, State.RUNNING, 0)}
        waiting = store.submitted(unique=b"v")
        other, third = root(store, unique=b"v"), root(store, unique=b"w")
        joined = do(store, lambda ground: ground.begin_roots([other, third]))
        assert joined == {other.id: ops.Found(waiting.id, State.PENDING, 0)}
        assert [store.state(one.id) for one in (waiting, other, third)] == [State.PENDING, None, State.RUNNING]

    def test_a_kept_unique_is_joined(self, store: Store) -> None:
        options = Options(keep_unique=10.0)
        job = begun(store, unique=b"u", options=options)
        ended(store, job)
        second = root(store, unique=b"u", options=options)
        assert do(store, lambda ground: ground.begin_roots([second])) == {
            second.id: ops.Found(job.id, State.SUCCEEDED, 1)
        }
        assert do(store, lambda ground: ground.forget_roots([job.id])) == 1
        assert do(store, lambda ground: ground.begin_roots([second])) == {}

    def test_pending_jobs_become_root_jobs_in_the_order_of_a_claim(self, store: Store) -> None:
        gone = store.submitted()
        store.cancel(gone.id)
        low, first, second = (
            store.submitted(payload=payload, priority=priority)
            for payload, priority in [(b"l", Priority.LOW), (b"1", Priority.NORMAL), (b"2", Priority.NORMAL)]
        )
        high = store.submitted(payload=b"h", priority=Priority.HIGH, unique=b"u")
        other, later = store.submitted(function=b"g"), store.submitted(state=State.SCHEDULED, due_us=NOW + 1)
        taken = do(store, lambda ground: ground.take_pending(b"f", 3, NOW))
        assert [(job.id, job.payload, State(job.state), job.term) for job in taken] == [
            (high.id, b"h", State.PENDING, 0),
            (first.id, b"1", State.PENDING, 0),
            (second.id, b"2", State.PENDING, 0),
        ]
        assert [job.id for job in do(store, lambda ground: ground.take_pending(b"f", 3, NOW))] == [low.id]
        assert do(store, lambda ground: ground.take_pending(b"f", 3, NOW)) == []
        assert do(store, lambda ground: ground.take_pending(b"unknown", 3, NOW)) == []
        for job in (low, first, second, high):
            found = store.present(job.id)
            assert (State(found.state), found.term, found.payload, found.input_size) == (State.RUNNING, RUNS, b"", 1)
            assert (found.started_us, found.attempt) == (NOW, 0)
        assert [job.id for job in store.claim(b"g")] == [other.id]
        assert (store.claim(), store.state(later.id)) == ([], State.SCHEDULED)

    def test_waiting_jobs_are_taken_by_their_ids_only(self, store: Store) -> None:
        held, pending = store.leased(), store.submitted(payload=b"1")
        later = store.submitted(payload=b"2", state=State.SCHEDULED, due_us=NOW + 1, expires_us=NOW + 2)
        left, gone = store.submitted(), store.leased(function=b"g")
        store.end(gone)
        ids = [held.id, later.id, gone.id, pending.id, 1]
        taken = do(store, lambda ground: ground.take_waiting(ids, NOW))
        assert [(job.id, job.payload, State(job.state)) for job in taken] == [
            (later.id, b"2", State.SCHEDULED),
            (pending.id, b"1", State.PENDING),
        ]
        assert store.wake(NOW + 5) == ops.Woken({}, [], 0)
        assert [job.id for job in store.claim()] == [left.id]

    @pytest.mark.parametrize("state", State)
    def test_a_job_becomes_a_root_job_from_the_states_in_the_table(self, store: Store, state: State) -> None:
        if state in {State.SCHEDULED, State.PENDING}:
            job = store.submitted(state=state, due_us=NOW + 1 if state is State.SCHEDULED else 0)
        else:
            job = store.leased()
            if state is State.RUNNING:
                store.assign(job)
            elif state.ended:
                store.end(job, next(event for event in ENDS if rules.target(event) is state))
        assert store.state(job.id) is state
        taken = do(store, lambda ground: ground.take_waiting([job.id], NOW))
        assert bool(taken) == (state in rules.sources(Event.BEGIN))
        assert store.state(job.id) is (rules.step(state, Event.BEGIN) if taken else state)

    # ---- guards against the other operations ----

    def test_no_recovery_takes_a_root_job(self, store: Store) -> None:
        job, held = begun(store), store.leased()
        store.reopen()
        assert store.recover() == 1
        assert store.state(job.id) is State.RUNNING
        assert [one.id for one in store.claim()] == [held.id]
        store.end(store.present(held.id))

    def test_no_operation_of_jobs_ends_a_root_job(self, store: Store) -> None:
        job = begun(store, expires_us=NOW)
        stored = store.present(job.id)
        forged = Job(job.id, b"f", b"", term=store.term)
        assert store.settle(done(forged)) == {job.id}
        assert store.cancel(job.id).before == State.RUNNING
        assert store.group(ops.RequestStop([(job.id, None), (job.id, RUNS)], StopRequest(NOW, b"{}"))) == [set()]
        assert store.wake(NOW + 1).expired == []
        assert store.claim() == []
        assert store.sweep(NOW * 2, NOW * 2) == 0
        assert store.present(job.id) == stored

    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
    def test_an_ended_root_job_is_neither_swept_nor_redriven(self, store: Store, state: State) -> None:
        job = begun(store)
        ended(store, job, state=state)
        assert store.sweep(NOW * 2, NOW * 2) == 0
        redriven = store.redrive(job.id)
        assert (redriven.redriven, redriven.rival) == (False, None)
        assert redriven.job is not None
        assert redriven.job.term == RUNS
        assert store.state(job.id) is state
        assert [one.id for one in store.list(state=state)] == [job.id]
        assert [one.id for one in store.list(state=state, function=b"f")] == [job.id]

    def test_a_rival_does_not_hide_that_it_is_a_root_job(self, store: Store) -> None:
        job = begun(store, unique=b"u")
        ended(store, job, state=State.FAILED)
        store.submitted(unique=b"u")
        assert store.redrive(job.id).rival is None

    # ---- ending ----

    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
    def test_a_root_job_ends_with_an_outcome_and_a_notice(self, store: Store, state: State) -> None:
        job = begun(store, options=RUN_OF_RUN, unique=b"u", priority=Priority.LOW)
        result, error = (b"r\0", b"") if state is State.SUCCEEDED else (b"", b"{}")
        (complete,) = ended(store, job, state=state, result=result, error=error)
        found = store.present(job.id)
        assert (State(found.state), found.result, found.error) == (state, result, error)
        assert (found.ended_us, found.started_us, found.output_size, found.term) == (NOW + 5, NOW, len(result), RUNS)
        assert found.attempt == 1
        assert complete == found
        assert self.notices == [Ended.of(found)]
        assert store.counts() == {(b"f", state, Priority.LOW): 1}
        assert store.submit(store.job(unique=b"u")) == {}, "its unique is free again"
        assert store.find(job.id) == found

    def test_only_a_live_root_job_ends(self, store: Store) -> None:
        running, held, pending = store.leased(), store.leased(), store.submitted()
        store.assign(running)
        job = begun(store)
        ended(store, job, result=b"1")
        for other in (job, running, held, pending, Job(1, b"f", b"")):
            assert ended(store, other, result=b"2") == []
        assert store.present(job.id).result == b"1"
        assert [store.state(one.id) for one in (running, held)] == [State.RUNNING, State.LEASED]

    def test_a_root_job_whose_outcome_is_kept_by_its_owner_is_deleted_at_its_end(self, store: Store) -> None:
        job = begun(store, options=RUN)
        (complete,) = ended(store, job, result=b"r")
        assert (complete.id, complete.result) == (job.id, b"r")
        assert store.list() == []
        assert len(self.notices) == 1

    def test_ended_root_jobs_are_forgotten(self, store: Store) -> None:
        job, live, other = begun(store), begun(store), store.leased()
        store.end(other)
        ended(store, job)
        assert do(store, lambda ground: ground.forget_roots([job.id, live.id, other.id, 1])) == 1
        assert [store.state(one.id) for one in (job, live, other)] == [None, State.RUNNING, State.SUCCEEDED]

    # ---- jobs of a run ----

    def test_jobs_in_every_live_state_are_withdrawn(self, store: Store) -> None:
        leased, running = store.leased(unique=b"u"), store.leased(options=RUN)
        store.assign(running)
        pending = store.submitted(priority=Priority.HIGH, unique=b"v", options=RUN)
        later = store.submitted(function=b"g", state=State.SCHEDULED, due_us=NOW)
        job, gone = begun(store), store.leased(function=b"h")
        store.end(gone)
        self.notices.clear()
        ids = [leased.id, running.id, pending.id, later.id, job.id, gone.id, 1]
        withdrawn = do(store, lambda ground: ground.withdraw(ids))
        assert withdrawn == [
            ops.Withdrawn(leased.id, store.term, State.LEASED, b"f", Priority.NORMAL),
            ops.Withdrawn(running.id, store.term, State.RUNNING, b"f", Priority.NORMAL),
            ops.Withdrawn(pending.id, 0, State.PENDING, b"f", Priority.HIGH),
            ops.Withdrawn(later.id, 0, State.SCHEDULED, b"g", Priority.NORMAL),
            ops.Withdrawn(job.id, RUNS, State.RUNNING, b"f", Priority.NORMAL),
        ]
        assert self.notices == []
        assert [one.id for one in store.list()] == [gone.id]
        assert store.settle(done(leased), done(running)) == {leased.id, running.id}
        assert (store.claim(), store.claim(b"g"), store.wake(NOW).due) == ([], [], {})
        assert store.submit(store.job(unique=b"u"), store.job(unique=b"v")) == {}

    def test_a_lease_is_checked(self, store: Store) -> None:
        leased, pending = store.leased(), store.submitted()
        running = store.leased(function=b"g")
        store.assign(running)

        def held(job: Job, term: int) -> bool:
            outcome = do(store, lambda ground: ground.is_held(job.id, term))
            assert isinstance(outcome, bool)
            return outcome

        assert held(leased, store.term)
        assert held(running, store.term)
        assert not held(leased, store.term + 1)
        assert not held(pending, 0)
        store.end(leased)
        assert not held(leased, store.term)

    @pytest.mark.parametrize("event", [Event.SUCCEED, Event.FAIL, Event.CANCEL, Event.EXPIRE])
    def test_the_end_of_a_job_of_a_run_is_noticed_and_leaves_nothing(self, store: Store, event: Event) -> None:
        job = store.leased(options=RUN)
        store.end(job, event, result=b"r" if event is Event.SUCCEED else b"", error=b"{}")
        (notice,) = self.notices
        assert isinstance(notice, Ended)
        assert (notice.id, notice.options, notice.attempt) == (job.id, RUN, 1)
        assert notice.result == (b"r" if event is Event.SUCCEED else b"")
        assert store.list() == []

    def test_a_waiting_job_of_a_run_that_ends_is_noticed(self, store: Store) -> None:
        cancelled, expired = store.submitted(options=RUN), store.submitted(options=RUN, expires_us=NOW)
        store.cancel(cancelled.id, b"{}")
        store.wake(NOW)
        assert [(one.id, State(one.state)) for one in self.notices if isinstance(one, Ended)] == [
            (cancelled.id, State.CANCELLED),
            (expired.id, State.EXPIRED),
        ]
        assert store.list() == []


RUN_OF_RUN = Options(run=(42, 7), ref=3)


def do(store: Store, work: Any) -> Any:
    """Call a function with the ground of a transaction, and return what it returns."""
    (outcome,) = store.group(Do(work))
    return outcome


def root(store: Store, **values: Any) -> Job:
    """Return a job that may become a root job."""
    job = store.job(**values)
    job.started_us = NOW
    return job


def begun(store: Store, **values: Any) -> Job:
    """Begin a root job."""
    job = root(store, **values)
    assert do(store, lambda ground: ground.begin_roots([job])) == {}
    return job


def ended(
    store: Store, job: Job, *, state: State = State.SUCCEEDED, result: bytes = b"", error: bytes = b""
) -> list[Job]:
    """End a root job; return those that ended."""
    end = Job(job.id, b"", b"", state=state, ended_us=NOW + 5, result=result, error=error)
    jobs = do(store, lambda ground: ground.end_roots([end]))
    assert isinstance(jobs, list)
    return jobs


class TestMemory(RootsSuite):
    @pytest.fixture
    def make(self) -> Make:
        self.notices = []
        engine = MemoryEngine(slices=[InMemory(self.notices)])
        return lambda: engine


class TestSqlite(RootsSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        self.notices = []
        return lambda: SqliteEngine(tmp_path / "jobs.db", slices=[InSqlite(self.notices)])


class TestPostgres(RootsSuite):
    @pytest.fixture
    def make(self, database: str) -> Make:
        self.notices = []
        return lambda: PostgresEngine(database, slices=[InPostgres(self.notices)])
