"""A fleet whose nodes are of two versions: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tests.postgres.server import name_of
from tests.upgrades.old import unpack_source

from mainspring.engines.postgres.migrate import MIGRATIONS

from .chaos import Chaos
from .fleet import Fleet, Nursery
from .hands import Hands, add, end_and_check
from .ledger import SLACK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres.server import PostgresServer

    from .stores import Store

SEEDS = range(2)
OLD_SCHEMA = 7


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Give what starts nodes of the earlier version."""
    source = unpack_source(tmp_path_factory.mktemp("old"))
    with Nursery(source) as nursery:
        yield nursery


class Renewal:
    """The nodes of a fleet are ended in turns, politely or not, and each comes back in one of two versions.

    The first new one brings the schema up to date beside two old ones. One goes back: so it is when something is amiss with a new
    version.
    """

    STEPS = ("new", "old", "new", "old", "old", "new", "new")

    def __init__(self, versions: dict[str, Nursery]) -> None:
        self._versions = versions
        self._steps = iter(self.STEPS)
        self._turn = 0

    def __call__(self, chaos: Chaos) -> None:
        """Do the next step."""
        seat = chaos.seats[self._turn % len(chaos.seats)]
        self._turn += 1
        assert seat.node is not None
        if chaos.random.random() < 0.5:
            seat.node.stop()
        seat.kill()
        chaos.fleet.nursery = self._versions[next(self._steps)]
        seat.launch()
        seat.ready()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fleet_is_renewed_node_by_node_under_load(
    old: Nursery, nursery: Nursery, tmp_path: Path, store: Store, seed: int
) -> None:
    with store.ways(3) as ways:
        chaos = Chaos(old, tmp_path, ways, seed)
        findings = chaos.run(Renewal({"old": old, "new": nursery}), len(Renewal.STEPS))
    assert not findings.lost, findings
    assert not findings.violations, findings
    assert findings.overlap <= SLACK, findings
    assert findings.acknowledged > 100, findings


def test_schedules_of_nodes_of_two_versions(
    old: Nursery, nursery: Nursery, tmp_path: Path, postgres: PostgresServer, store: Store
) -> None:
    def version() -> int:
        return int(postgres.sql("SELECT max(number) FROM mainspring.migrations", name_of(store.url)))

    with Fleet(old, tmp_path, store.url) as fleet:
        nodes = {"old": fleet.start("old")}
        roots = add(nodes["old"])
        added = time.time()
        assert version() == OLD_SCHEMA
        fleet.nursery = nursery
        nodes["new"] = fleet.start("new")
        assert version() == MIGRATIONS[-1].number
        with Hands(nodes) as hands:
            time.sleep(2)
            nodes["old"].kill()
            time.sleep(fleet.lease + 1)
            fleet.nursery = old
            nodes["old"] = fleet.start("old")
            time.sleep(2)
            nodes["new"].kill()
            time.sleep(fleet.lease + 1)
            fleet.nursery = nursery
            nodes["new"] = fleet.start("new")
            end_and_check(nodes["new"], roots, added, hands)
