"""A fleet with nodes of two versions: no job is lost, and none is settled twice."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.server import name_of
from tests.upgrades.old import BEFORE_HTTP_API, ROUND_2, restore, unpack, unpack_source, with_source

from mainspring.engines.postgres.migrate import MIGRATIONS

from .chaos import FLEET, Chaos
from .extension import FaultError
from .fleet import Fleet, ForkServer
from .ledger import STOP_DELAY
from .processes import mainspring, node
from .schedule_workers import ScheduleWorkers, add, end_and_check
from .servers import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres.server import PostgresServer

    from .fleet import FleetNode
    from .servers import Server
    from .stores import Store

pytestmark = pytest.mark.usefixtures("migrations")

SEEDS = 2
LONG_SEEDS = 50
# Earlier versions keep the connections of workers that leave with a request unanswered, and do not end because of them.
LOAD = FLEET._replace(pace=FLEET.pace._replace(hops=0.0))
OLD_SCHEMA = 7


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with the code of the earlier version."""
    return unpack_source(tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def old(source: Path) -> Iterator[ForkServer]:
    """Return a server that starts nodes of the earlier version."""
    with ForkServer(source) as fork_server:
        yield fork_server


APP = """
from mainspring import App, Retry, current_job

app = App()

@app.task
def add(a: int, b: int) -> int:
    return a + b

@app.task(retry=Retry(max_attempts=2, initial=0.01))
def fail() -> None:
    raise ValueError("twice" if current_job().attempt == 2 else "once")
"""


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
    old: ForkServer, fork_server: ForkServer, tmp_path: Path, store: Store, seed: int
) -> None:
    upgrade({"old": old, "new": fork_server}, tmp_path, store, seed)


def test_a_fleet_of_the_last_version_is_upgraded_under_load(
    last: ForkServer, fork_server: ForkServer, tmp_path: Path, store: Store
) -> None:
    upgrade({"old": last, "new": fork_server}, tmp_path, store, seed=0)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS, LONG_SEEDS))
def test_many_fleets_are_upgraded(
    old: ForkServer, fork_server: ForkServer, tmp_path: Path, store: Store, seed: int
) -> None:
    upgrade({"old": old, "new": fork_server}, tmp_path, store, seed)


def upgrade(versions: dict[str, ForkServer], directory: Path, store: Store, seed: int) -> None:
    """Upgrade a fleet, and assert that it has kept its promises to clients and workers."""
    with store.routes(3) as routes:
        chaos = Chaos(versions["old"], directory, routes, seed, scenario=LOAD)
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
    old: ForkServer, fork_server: ForkServer, tmp_path: Path, postgres: PostgresServer, store: Store
) -> None:
    def version() -> int:
        return int(postgres.sql("SELECT max(number) FROM mainspring.migrations", name_of(store.url)))

    with Fleet(old, tmp_path, store.url) as fleet:
        nodes = {"old": fleet.start("old")}
        roots = add(nodes["old"])
        added = time.time()
        assert version() == OLD_SCHEMA
        fleet.fork_server = fork_server
        nodes["new"] = fleet.start("new")
        assert version() == MIGRATIONS[-1].number
        with ScheduleWorkers(nodes) as schedule_workers:
            time.sleep(2)
            nodes["old"].kill()
            time.sleep(fleet.lease + 1)
            fleet.fork_server = old
            nodes["old"] = fleet.start("old")
            time.sleep(2)
            nodes["new"].kill()
            time.sleep(fleet.lease + 1)
            fleet.fork_server = fork_server
            nodes["new"] = fleet.start("new")
            end_and_check(nodes["new"], roots, added, schedule_workers)


@pytest.mark.parametrize("which", ["node", "worker"])
def test_commands_of_one_version_show_that_a_node_has_the_other(source: Path, tmp_path: Path, which: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    old = with_source(source, {})
    of_node: dict[str, Any]
    of_worker: dict[str, Any]
    of_node, of_worker = (old, {}) if which == "node" else ({}, old)
    with (
        node("serve", "--gearman", "127.0.0.1:0", "--store", "memory://", cwd=tmp_path, **of_node) as server,
        node("worker", "app.py", "--server", server.address, cwd=tmp_path, faces=(), **of_worker),
    ):
        done = mainspring("submit", "add", "[1, 2]", "--server", server.address, cwd=tmp_path, **of_worker)
        assert done.returncode != 0
        assert b"speaks mainspring/2" in done.stderr, done


UNDER_WAY = {b"held": 1, b"runs": 2, b"queues": 1, b"waiting": 3}
"""The jobs that the old node held, or that waited, by function; one each of "runs" and "queues" is for a fire time."""
DUE = {b"later": 1, b"retried": 1, b"keyed": 3}
"""Others: two were scheduled, and are due by now, and the last have keys."""


def test_a_node_goes_on_with_a_store_of_an_early_version(tmp_path: Path) -> None:
    """Jobs under way end once, and schedules go on; `tests/upgrades/test_stores.py` compares what the store has."""
    (tmp_path / "jobs.db").write_bytes(unpack(ROUND_2.sqlite))
    with serving(tmp_path) as server:
        end_each_once(server, UNDER_WAY)
        with server.extended() as tool:
            (newest,) = tool.call("schedules.history", name="runs", limit=1)["items"]
        assert newest["fire_time"] > "2023-11-15", "its schedule goes on"


def test_a_node_goes_on_with_a_store_of_the_last_version(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(unpack(BEFORE_HTTP_API.sqlite))
    # Without schedules, which would catch up with thousands of fire times.
    with serving(tmp_path, "--no-schedules") as server:
        end_each_once(server, UNDER_WAY | DUE)
        check_old_names(server)


def test_a_fleet_goes_on_with_a_schema_of_the_last_version(
    fork_server: ForkServer, tmp_path: Path, store: Store
) -> None:
    restore(BEFORE_HTTP_API, store.url)
    with Fleet(fork_server, tmp_path, store.url, "--no-schedules") as fleet:
        node = fleet.start("n1")
        assert node.ask("nodes.remove", node="old", force=True), "its lease would end some time later"
        end_each_once(node, UNDER_WAY | DUE)
        check_old_names(node)


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


def check_old_names(server: Server | FleetNode) -> None:
    """Show and cancel a job whose name has the separator of namespaces, by its handle; it is in none but `default`."""
    with server.extended() as tool:
        handle = "H:old:1000000000015"
        shown = tool.call("jobs.show", handle=handle)
        assert (shown["function"], shown["state"]) == ("team\x1fwaits", "pending")
        with pytest.raises(FaultError, match="not_found"):
            tool.call("jobs.show", handle=handle, namespace="team")
        assert tool.call("jobs.cancel", handle=handle)["state"] == "cancelled"
