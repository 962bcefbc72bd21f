"""A store of an earlier version, migrated and opened by this one; `scene` has its content."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.cli.stores import migrate
from mainspring.engines.sqlite.store_file import Update
from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, Retry, State
from mainspring.resources.rules import FunctionLimits, Limits
from mainspring.resources.store import ListLimits
from tests.conformance.suite.driver import NOW, Make, Store, done
from tests.conformance.suite.scheduling import SECOND, Scheduling
from tests.engines import postgres_engine, sqlite_engine

from .old import LAST, restore, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("migrations")

OLD_TERM = 1
HOUR = 3600 * SECOND
JOB_STATES = {
    b"waiting": [State.PENDING] * 3,
    b"later": [State.SCHEDULED],
    b"late": [State.PENDING],
    b"keyed": [State.PENDING] * 3,
    b"held": [State.LEASED],
    b"runs": [State.LEASED, State.RUNNING],
    b"retried": [State.SCHEDULED],
    b"done": [State.SUCCEEDED],
    b"failed": [State.FAILED],
    b"cancelled": [State.CANCELLED],
    b"joined": [State.PENDING],
    b"fired": [State.PENDING],
    b"queues": [State.LEASED],
    b"one": [State.SUCCEEDED],
    b"other": [State.PENDING],
    b"waits": [State.SUCCEEDED],
    b"last": [State.PENDING],
    b"gone": [State.SUCCEEDED],
    b"once": [State.SUCCEEDED],
}
"""The states of each function's jobs; a schedule's function has the schedule's name."""
FIRE_OUTCOMES = {
    "fired": ["fired"],
    "runs": ["fired"],
    "queues": ["fired", "waiting"],
    "one": ["succeeded"],
    "other": ["fired"],
    "both": [],
    "waits": ["succeeded, 1 left"],
    "last": ["fired"],
    "joins": ["joined"],
    "paused": ["paused"],
    "gone": ["succeeded"],
    "once": ["succeeded"],
}
"""The outcomes of each schedule's fire times."""
HELD_JOBS = 4


def states(store: Store) -> dict[bytes, list[State]]:
    """Return the states of all jobs, by their functions."""
    found: dict[bytes, list[State]] = {}
    for job in store.list():
        found.setdefault(job.function, []).append(State(job.state))
    return {function: sorted(several) for function, several in found.items()}


def take_over(store: Store) -> None:
    """Release the jobs of the old node, which has ended."""
    if store.engine.shared:
        store.end_term(OLD_TERM)
    assert store.recover() == HELD_JOBS


def run_all(s: Scheduling) -> int:
    """Run all pending jobs and their successors, and return the number of jobs."""
    number = 0
    while True:
        jobs = [job for function in {job.function for job in s.store.list()} for job in s.claim(function.decode())]
        if not jobs:
            return number
        number += len(jobs)
        for job in jobs:
            assert s.store.settle(done(job, job.payload, s.now_us)) == set()


class Upgrade:
    """Tests of an old store; a derived class opens it."""

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError

    @pytest.fixture
    def s(self, make: Make) -> Iterator[Scheduling]:
        """Return the store, opened by a new node."""
        store = Store(make, "new")
        try:
            yield Scheduling(make, store)
        finally:
            store.close()

    def test_the_old_content_is_complete(self, s: Scheduling) -> None:
        store = s.store
        assert states(store) == JOB_STATES
        assert {name: s.outcomes(name) for name in FIRE_OUTCOMES} == FIRE_OUTCOMES
        store.counts()
        s.check()
        by_function = {job.function: store.present(job.id) for job in store.list()}
        assert by_function[b"done"].result == b"the result"
        assert by_function[b"held"].options == Options(retry=Retry(max_attempts=3), timeout=60.0)
        assert (by_function[b"retried"].attempt, by_function[b"retried"].error) == (1, b'{"type":"E"}')
        assert store.opened.nodes[OLD_TERM] == "old"
        limits = FunctionLimits(b"keyed", commanded=Limits(concurrency=5, concurrency_per_key=1), version=1)
        assert store.read(ListLimits()).items == [limits]
        assert s.stored("paused").state.paused
        assert [entry.deployment.digest for entry in s.declare("shop", b"another")] == [b"another", b"digest"]

    def test_unfinished_jobs_and_fire_times_end_once(self, s: Scheduling) -> None:
        store = s.store
        take_over(store)
        if store.engine.shared:
            (inbox,) = store.group(ops.DrainInbox())
            assert inbox.pending == {(b"submitted", 1): 1}
        woken = store.wake(NOW + 2 * HOUR)
        assert [job.function for job, _ in woken.expired] == [b"late"]
        assert woken.due == {(b"later", 1): 1, (b"retried", 1): 1}
        first, second = store.claim(b"waiting", 2)
        assert [first.payload, second.payload] == [b"first", b"second"]
        assert store.settle(done(first), done(second)) == set()
        by_function = {job.function: job for job in store.list()}
        resubmitted = store.job(function=b"held", unique=b"held")
        kept = store.job(function=b"done", unique=b"kept", options=Options(keep_unique=1e9))
        joined = store.submit(resubmitted, kept)
        assert [joined[resubmitted.id].id, joined[kept.id].id] == [by_function[b"held"].id, by_function[b"done"].id]
        for failed in [job for job in store.list() if State(job.state) is State.FAILED]:
            assert store.redrive(failed.id).redriven
        s.at(1)
        assert run_all(s) == 17 + len(store.list(function=b"submitted"))
        s.repair()
        assert {name: s.outcomes(name) for name in FIRE_OUTCOMES} == {
            **{name: ["succeeded"] for name in FIRE_OUTCOMES},
            "queues": ["succeeded", "succeeded"],
            "paused": ["paused"],
        }
        others = {job.function: State(job.state) for job in store.list() if job.state != State.SUCCEEDED}
        assert others == {b"late": State.EXPIRED, b"cancelled": State.CANCELLED}
        s.at(2)
        s.fire()
        run_all(s)
        assert s.outcomes("fired") == ["succeeded", "misfire", "succeeded"]
        assert s.outcomes("both") == ["succeeded", "parent", "succeeded"]
        s.check()
        store.counts()
        store.reopen("newer")
        assert store.recover() == 0
        store.counts()


class TestSqlite(Upgrade):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        path = tmp_path / "jobs.db"
        path.write_bytes(unpack(LAST.sqlite))
        assert migrate(store=f"sqlite:///{path}") == 0
        return lambda: sqlite_engine(path, update=Update(allowed=False))


class TestPostgres(Upgrade):
    @pytest.fixture
    def make(self, database: str) -> Make:
        restore(LAST, database)
        assert migrate(store=database) == 0
        return lambda: postgres_engine(database, migrate=False)
