"""A second slice, beside that of schedules, on every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event, Settlement
from tests.conformance.suite.driver import NOW, Store, done
from tests.zookeeper.driving import DrivenEngine
from tests.zookeeper.memory import MemoryContent, MemoryTree

from .tallies import InMemory, InPostgres, InSqlite, InZookeeper, ShowTally, Tally, Want

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mainspring.jobs.model import Job
    from tests.conformance.suite import Make


class Node:
    """A node with tallies."""

    def __init__(self, make: Make) -> None:
        self.store = Store(make)
        self.lifecycle = self.store.lifecycle

    def want(self, number: int, *others: Any, key: str = "k") -> Tally:
        tally, *_ = self.store.group(Want(key, number), *others)
        assert isinstance(tally, Tally)
        return tally

    def run(self) -> Job:
        """Claim the only job there is."""
        (job,) = self.store.claim()
        assert job.options is not None
        assert job.options.owner == ("tallies", "k")
        return job


class TallySuite:
    """The contract of the tallies on each engine."""

    whole = True
    """Whether a group is one transaction."""

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError

    @pytest.fixture
    def node(self, make: Make) -> Iterator[Node]:
        opened = Node(make)
        yield opened
        opened.store.close()

    def test_jobs_follow_each_other_in_the_transactions_of_their_ends(self, node: Node) -> None:
        assert node.want(3) == Tally(wanted=3, created=1)
        for number in range(1, 4):
            job = node.run()
            assert node.store.claim() == [], "one after the other"
            node.store.end(job, result=b"%d" % number)
            assert node.want(0) == Tally(wanted=3, created=min(number + 1, 3), ended=number, last=b"%d" % number)
        assert len(node.lifecycle.committed) == len(set(node.lifecycle.committed)) == 3
        assert node.lifecycle.live == node.lifecycle.committed

    def test_starts_and_failed_attempts_are_followed(self, node: Node) -> None:
        node.want(1)
        job = node.run()
        node.store.assign(job)
        node.store.end(job, Event.RETRY, due_us=NOW, error=b"{}")
        assert node.want(0) == Tally(wanted=1, created=1, attempts=1, started=1)
        assert node.store.wake(NOW).due
        node.store.end(node.run(), Event.FAIL, error=b"{}")
        assert node.want(0) == Tally(wanted=1, created=1, ended=1, attempts=1, started=1)

    def test_an_attempt_that_is_lost_with_its_node_is_followed(self, node: Node) -> None:
        node.want(1)
        node.store.assign(node.run())
        node.store.reopen()
        assert node.store.recover() == 1
        assert node.want(0) == Tally(wanted=1, created=1, attempts=1, started=1)

    def test_what_a_stale_settlement_says_is_not_followed(self, node: Node) -> None:
        node.want(1)
        job = node.run()
        job.term += 1
        assert node.store.settle(done(job)) == {job.id}
        node.store.assign(job)
        assert node.want(0) == Tally(wanted=1, created=1)

    def test_a_cancelled_job_has_ended(self, node: Node) -> None:
        node.want(1)
        (job,) = node.store.list()
        assert node.store.cancel(job.id).before == State.PENDING
        assert node.want(0) == Tally(wanted=1, created=1, ended=1)

    def test_an_end_and_an_operation_of_one_group_meet(self, node: Node) -> None:
        node.want(1)
        job = node.run()
        tally = node.want(1, ops.Settle([Settlement(job, Event.SUCCEED, 1, ended_us=NOW, result=b"r")]))
        if self.whole:
            assert tally == Tally(wanted=2, created=2, ended=1, last=b"r")
        assert node.want(0) == Tally(wanted=2, created=2, ended=1, last=b"r")
        assert len(node.lifecycle.committed) == 2, "one job follows from both"

    def test_jobs_are_leased_in_the_transactions_that_make_them(self, node: Node) -> None:
        node.lifecycle.leases = True
        node.want(3)
        for _ in range(2):
            job = node.lifecycle.reserved[-1]
            if self.whole:
                assert node.store.state(job.id) is State.LEASED
                assert node.store.claim() == []
            else:
                assert node.store.state(job.id) is State.PENDING
                job = node.run()
            node.store.end(job)
        assert node.want(0) == Tally(wanted=3, created=3, ended=2)
        if self.whole:
            node.store.reopen()
            assert node.store.recover() == 1, "it was leased to the node that is gone"

    def test_a_query_of_the_slice_is_answered_beside_the_groups(self, node: Node) -> None:
        node.want(1)
        node.store.end(node.run(), result=b"r")
        assert node.store.read(ShowTally("k")) == Tally(wanted=1, created=1, ended=1, last=b"r")

    def test_what_nobody_follows_ends_as_ever(self, node: Node) -> None:
        job = node.store.leased()
        node.store.end(job)
        assert node.store.state(job.id) is State.SUCCEEDED


class TestMemory(TallySuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = MemoryEngine(slices=[InMemory()])
        return lambda: engine


class TestSqlite(TallySuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: SqliteEngine(tmp_path / "jobs.db", slices=[InSqlite()])


class TestPostgres(TallySuite):
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: PostgresEngine(database, slices=[InPostgres()])


class TestZookeeper(TallySuite):
    whole = False

    @pytest.fixture
    def make(self) -> Make:
        content = MemoryContent(now_us=lambda: 0)
        return lambda: DrivenEngine(lambda: MemoryTree(content), slices=[InZookeeper()])
