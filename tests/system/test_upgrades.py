"""A fleet with nodes of two versions: no job is lost, and none is settled twice."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.postgres.server import name_of
from tests.upgrades.old import LAST, restore, unpack

import mainspring as mainspring_package
from mainspring.engines.postgres.migrate import MIGRATIONS

from .chaos import Chaos
from .fleet import Fleet, ForkServer
from .ledger import STOP_DELAY
from .schedule_workers import ScheduleWorkers, add, end_and_check
from .servers import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres.server import PostgresServer

    from .fleet import FleetNode
    from .servers import Server
    from .stores import Store

pytestmark = pytest.mark.usefixtures("migrations")

SEEDS = 2
LONG_SEEDS = 50
OLD_SCHEMA = 22
NEXT = """-- compatible from: 22
ALTER TABLE jobs ADD COLUMN more int NOT NULL DEFAULT 7;
CREATE TABLE brand_new (number int PRIMARY KEY);
"""
"""A migration that is made for these tests: there may be no present one."""


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Return a server that starts nodes of this version with one more migration."""
    source = tmp_path_factory.mktemp("new")
    package = Path(mainspring_package.__file__).parent
    shutil.copytree(package, source / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    migrations = source / package.name / "engines/postgres/migrations"
    migrations.joinpath(f"{MIGRATIONS[-1].number + 1:04}.sql").write_text(NEXT)
    with ForkServer(source) as fork_server:
        yield fork_server


class RollingUpgrade:
    """Ends the nodes of a fleet in rotation, by SIGTERM or SIGKILL, and restarts each in one of two versions.

    The first new node migrates the schema beside two old ones. Later one returns to the old version, as after a failed upgrade.
    """

    STEPS = ("new", "old", "new", "old", "old", "new", "new")

    def __init__(self, versions: dict[str, ForkServer]) -> None:
        self._versions = versions
        self._steps = iter(self.STEPS)
        self._step = 0

    def __call__(self, chaos: Chaos) -> None:
        """Execute the next step."""
        slot = chaos.slots[self._step % len(chaos.slots)]
        self._step += 1
        assert slot.node is not None
        if chaos.random.random() < 0.5:
            slot.node.stop()
        slot.kill()
        chaos.fleet.fork_server = self._versions[next(self._steps)]
        slot.launch()
        slot.ready()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_fleet_is_upgraded_node_by_node_under_load(
    last: ForkServer, upgraded: ForkServer, tmp_path: Path, store: Store, seed: int
) -> None:
    upgrade({"old": last, "new": upgraded}, tmp_path, store, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS, LONG_SEEDS))
def test_many_fleets_are_upgraded(
    last: ForkServer, upgraded: ForkServer, tmp_path: Path, store: Store, seed: int
) -> None:
    upgrade({"old": last, "new": upgraded}, tmp_path, store, seed)


def upgrade(versions: dict[str, ForkServer], directory: Path, store: Store, seed: int) -> None:
    """Upgrade a fleet, and assert that it has kept its promises to clients and workers."""
    with store.routes(3) as routes:
        chaos = Chaos(versions["old"], directory, routes, seed)
        findings = chaos.run(RollingUpgrade(versions), len(RollingUpgrade.STEPS))
    assert not findings.lost, findings
    assert not findings.stuck, findings
    assert not findings.violations, findings
    assert findings.overlap <= STOP_DELAY, findings
    assert findings.acknowledged > 20, findings
    for log in directory.rglob(
        "*.log"
    ):  # a client would repeat a refused request, and so hide that a version cannot write
        assert "refused a group" not in log.read_text("utf-8", "replace"), log


def test_schedules_fire_once_on_nodes_of_two_versions(
    last: ForkServer, upgraded: ForkServer, tmp_path: Path, postgres: PostgresServer, store: Store
) -> None:
    def version() -> int:
        return int(postgres.sql("SELECT max(number) FROM mainspring.migrations", name_of(store.url)))

    with Fleet(last, tmp_path, store.url) as fleet:
        nodes = {"old": fleet.start("old")}
        roots = add(nodes["old"])
        added = time.time()
        assert version() == OLD_SCHEMA
        fleet.fork_server = upgraded
        nodes["new"] = fleet.start("new")
        assert version() == MIGRATIONS[-1].number + 1
        with ScheduleWorkers(nodes) as schedule_workers:
            time.sleep(2)
            nodes["old"].kill()
            time.sleep(fleet.lease + 1)
            fleet.fork_server = last
            nodes["old"] = fleet.start("old")
            time.sleep(2)
            nodes["new"].kill()
            time.sleep(fleet.lease + 1)
            fleet.fork_server = upgraded
            nodes["new"] = fleet.start("new")
            end_and_check(nodes["new"], roots, added, schedule_workers)


UNDER_WAY = {b"held": 1, b"runs": 2, b"queues": 1, b"waiting": 3}
"""The jobs that the old node held, or that waited, by function; one each of "runs" and "queues" is for a fire time."""
DUE = {b"later": 1, b"retried": 1, b"keyed": 3}
"""Others: two were scheduled, and are due by now, and the last have keys."""


def test_a_node_goes_on_with_a_store_of_the_last_version(tmp_path: Path) -> None:
    """Jobs under way end once, and schedules go on; `tests/upgrades/test_stores.py` compares what the store has."""
    (tmp_path / "jobs.db").write_bytes(unpack(LAST.sqlite))
    with serving(tmp_path) as server:
        end_each_once(server, UNDER_WAY | DUE)
        with server.extended() as tool:
            (newest,) = tool.call("schedules.history", name="runs", limit=1)["items"]
        assert newest["fire_time"] > "2023-11-15", "its schedule goes on"


def test_a_fleet_goes_on_with_a_schema_of_the_last_version(
    fork_server: ForkServer, tmp_path: Path, store: Store
) -> None:
    restore(LAST, store.url)
    # Without schedules, which would catch up with thousands of fire times.
    with Fleet(fork_server, tmp_path, store.url, "--no-schedules") as fleet:
        node = fleet.start("n1")
        assert node.ask("nodes.remove", node="old", force=True), "its lease would end some time later"
        end_each_once(node, UNDER_WAY | DUE)


def end_each_once(server: Server | FleetNode, under_way: dict[bytes, int]) -> None:
    """Run jobs of the old node, and assert that each comes once."""
    with server.extended() as worker:
        for function in under_way:
            worker.register(function)
        handles = set()
        done = Counter[bytes]()
        while not done >= Counter(under_way):
            worker.ready()
            job = worker.job()
            assert worker.settle_as(job, b"succeeded") == b"recorded"
            done[job.function] += job.handle.startswith(b"H:old:")
            assert job.handle not in handles
            handles.add(job.handle)
        assert done == Counter(under_way)
