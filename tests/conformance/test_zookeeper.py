"""A real server passes the suite that every engine passes, without limits. Ensembles of three are for faults and chaos."""

from __future__ import annotations

import pytest

from tests.conformance.suite import Make, SharedJobsSuite, Store
from tests.conformance.suite.operations import recover
from tests.zookeeper.driving import on


@pytest.mark.usefixtures("unhurried")
class TestZookeeper(SharedJobsSuite):
    @pytest.fixture
    def make(self, zookeeper: str, chroot: str) -> Make:
        return on(f"zookeeper://{zookeeper}{chroot}")

    def test_a_node_that_leaves_while_it_holds_jobs_is_waited_for(self, store: Store, other: Store) -> None:
        """It is not: its session ends with it, and so does its term."""
        store.submitted()
        (claimed,) = other.claim()
        other.close_engine()
        assert store.members() == ["n1"]
        assert store.abandoned() == [other.term]
        assert recover(store, other.term).number == 1
        assert store.abandoned() == []
        assert [job.id for job in store.claim()] == [claimed.id]
        other.open()
