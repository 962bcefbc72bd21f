"""A real ensemble of three passes the suite that every engine passes, without limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.testing.conformance import Make, SharedJobsSuite, Store
from mainspring.testing.conformance.operations import recover
from tests.zookeeper.driving import on

if TYPE_CHECKING:
    from tests.zookeeper.server import Ensemble


@pytest.mark.usefixtures("unhurried")
class TestZookeeper(SharedJobsSuite):
    @pytest.fixture
    def make(self, ensemble: Ensemble, chroot: str) -> Make:
        return on(ensemble.url(chroot))

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
