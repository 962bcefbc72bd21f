"""Members of the ensemble and nodes fail under load: no acknowledged job is lost, no settled job runs again."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.exceptions import NoNodeError
from tests.interop.packets import Kind
from tests.postgres.server import memory_directory
from tests.zookeeper.server import Ensemble

from .chaos import FLEET, FLEET_WITH_CREW, Chaos, endure
from .ensemble_chaos import EVENTS, random_disturbance
from .extension import ExtensionKind, FaultError
from .fleet import LEASE, Fleet
from .fleet_chaos import kill
from .ledger import STOP_DELAY
from .servers import eventually
from .stores import place_of
from .zookeeper_tree import TreeReader, faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .chaos import Findings, Scenario
    from .extension import Assigned, ExtensionPeer
    from .fleet import FleetNode, ForkServer

NODES = 3
ROUNDS = 4
SEEDS = 2
LONG_SEEDS = 100
LONG_ROUNDS = 12
LONG_CREW_SECONDS = 60.0
LONGEST_DISTURBANCE = 2 * LEASE + 1
RECEIVE_TIMEOUT = 40.0


@pytest.fixture(scope="module")
def own(ensemble_program: str) -> Iterator[Ensemble]:
    """Return an ensemble that the module's tests disturb."""
    del ensemble_program
    with Ensemble(3, parent=memory_directory()) as ensemble:
        yield ensemble


@pytest.fixture(autouse=True)
def _healed(own: Ensemble) -> Iterator[None]:
    yield
    own.heal()


class SeedRunner:
    """Runs seeds on an ensemble."""

    def __init__(self, fork_server: ForkServer, ensemble: Ensemble, directory: Path) -> None:
        self._fork_server = fork_server
        self._ensemble = ensemble
        self._directory = directory

    def survive(
        self,
        disturb: Callable[[Chaos], None],
        seed: int,
        *,
        rounds: int = ROUNDS,
        plant: str | None = None,
        scenario: Scenario = FLEET,
        seconds: float = 0.0,
    ) -> Findings:
        """Run one seed in a directory and a tree of its own, with a separate route to one of the members for each node."""
        directory = self._directory / str(seed)
        directory.mkdir()
        self._store = place_of(self._ensemble)
        with self._store.routes(NODES) as routes:
            chaos = Chaos(self._fork_server, directory, routes, seed, scenario=scenario, plant=plant)
            found = chaos.run(disturb, rounds, seconds)
        found.violations.extend(self.faults())
        return found

    def faults(self) -> list[str]:
        """Return the violations in the tree of the last run."""
        with TreeReader(self._store.url) as tree:
            return faults(tree)


@pytest.fixture
def seed_runner(fork_server: ForkServer, own: Ensemble, tmp_path: Path) -> SeedRunner:
    return SeedRunner(fork_server, own, tmp_path)


def assert_promises_kept(found: Findings, *, overlap: float = STOP_DELAY) -> None:
    """Assert that a run has lost no job and run none twice."""
    assert not found.broken(overlap=overlap), found
    assert found.acknowledged


@pytest.mark.parametrize("event", sorted(EVENTS))
def test_failing_members_lose_nothing_under_load(
    fork_server: ForkServer, own: Ensemble, tmp_path: Path, event: str
) -> None:
    # The nodes have the addresses of all members, and connect to another one.
    routes = [place_of(own).route] * NODES
    assert_promises_kept(Chaos(fork_server, tmp_path, routes, 1).run(lambda chaos: EVENTS[event](chaos, own), 1))


def test_random_disturbances_lose_nothing_and_run_nothing_again(seed_runner: SeedRunner, own: Ensemble) -> None:
    for seed in range(SEEDS):
        assert_promises_kept(seed_runner.survive(random_disturbance(own), seed), overlap=LONGEST_DISTURBANCE)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_many_random_disturbances_lose_nothing_and_run_nothing_again(seed_runner: SeedRunner, own: Ensemble) -> None:
    for seed in range(SEEDS, SEEDS + LONG_SEEDS):
        assert_promises_kept(
            seed_runner.survive(random_disturbance(own), seed, rounds=LONG_ROUNDS), overlap=LONGEST_DISTURBANCE
        )


@pytest.mark.long
@pytest.mark.timeout(0)
def test_many_minutes_of_everything_lose_nothing_and_leave_nothing(
    seed_runner: SeedRunner, own: Ensemble, request: pytest.FixtureRequest
) -> None:
    def survive(seed: int) -> Findings:
        return seed_runner.survive(random_disturbance(own), seed, scenario=FLEET_WITH_CREW, seconds=LONG_CREW_SECONDS)

    endure(request.config.getoption("--minutes"), survive, overlap=LONGEST_DISTURBANCE)


# The check must fail if a guard is missing; otherwise it proves nothing.


def test_a_name_that_is_left_behind_is_found(seed_runner: SeedRunner) -> None:
    with suppress(ConnectionError):  # a node that finds such a name ends: its store is broken
        seed_runner.survive(kill, 1, rounds=1, plant="name")
    assert any("has a name and is nowhere" in fault for fault in seed_runner.faults())


def test_a_completion_without_the_workers_ephemeral_node_is_refused(
    fork_server: ForkServer, own: Ensemble, tmp_path: Path
) -> None:
    store = place_of(own)
    with Fleet(fork_server, tmp_path, store.url) as fleet, TreeReader(store.url) as tree:
        n1 = fleet.start("n1")
        for number in range(3):
            unique = b"%d" % number
            assert complete_late(n1, tree, unique) == b"stale"
            finish(n1, unique)
            with n1.extended() as client:
                client.socket.settimeout(RECEIVE_TIMEOUT)
                assert client.outcome(submit_until_stored(client, unique, keep_unique=60)).data == b"in time"


def test_a_completion_without_a_check_of_the_ephemeral_node_is_found(
    fork_server: ForkServer, own: Ensemble, tmp_path: Path
) -> None:
    store = place_of(own)
    with Fleet(fork_server, tmp_path, store.url) as fleet, TreeReader(store.url) as tree:
        n1 = fleet.start("n1", plant="worker")
        # A node that was frozen for long fences itself, and then its completion is stale without any check.
        assert any(complete_late(n1, tree, b"%d" % number) == b"recorded" for number in range(10))


def complete_late(node: FleetNode, tree: TreeReader, unique: bytes) -> bytes:
    """Let the only node complete a job after its ephemeral node is deleted, and return the verdict.

    On a busy machine the node's term may also end at any moment.
    """
    with node.extended() as client, node.worker(b"f") as worker:
        for peer in (client, worker):
            peer.socket.settimeout(RECEIVE_TIMEOUT)
        submit_until_stored(client, unique, keep_unique=60)
        job = worker.job()
        # No other node may take the job before the frozen node continues.
        node.freeze()
        tree.client.sync(tree.chroot)  # otherwise this member may lag behind
        for worker_name in tree.names("/workers"):
            with suppress(NoNodeError):
                tree.client.delete(f"{tree.chroot}/workers/{worker_name}")
        worker.settle(job, b"succeeded", b"late")
        node.thaw()
        return verdict(worker, job)


def submit_until_stored(client: ExtensionPeer, unique: bytes, **options: Any) -> bytes:
    """Submit a job, again if the node is between two terms; a repetition joins the stored job. Return the handle."""
    handles: list[bytes] = []

    def stored() -> bool:
        client.request(b"f", unique=unique, options=options)
        answer = client.next()
        assert answer.kind in {ExtensionKind.SUBMITTED, Kind.ERROR}
        handles.extend(answer.arguments[:1] if answer.kind is ExtensionKind.SUBMITTED else ())
        return bool(handles)

    eventually(stored, "the node accepts a job", timeout=RECEIVE_TIMEOUT)
    return handles[0]


def verdict(worker: ExtensionPeer, job: Assigned) -> bytes:
    """Wait for the verdict on a job. A STOP may arrive before it."""
    while (packet := worker.next()).kind is not ExtensionKind.SETTLED:
        assert packet.kind is ExtensionKind.STOP
    assert packet.arguments[:2] == (job.handle, job.token)
    return packet.arguments[2]


def finish(node: FleetNode, unique: bytes) -> None:
    """Complete a job, in further attempts if the node's term ends."""

    def once() -> bool:
        with node.worker(b"f") as worker:
            worker.socket.settimeout(RECEIVE_TIMEOUT)
            job = worker.job()
            assert job.unique == unique
            worker.settle(job, b"succeeded", b"in time")
            return verdict(worker, job) == b"recorded"

    eventually(once, "the job is completed", timeout=RECEIVE_TIMEOUT)


# ---- the view of a client


def test_without_a_majority_no_job_is_acknowledged_until_it_returns(
    fork_server: ForkServer, own: Ensemble, tmp_path: Path
) -> None:
    with Fleet(fork_server, tmp_path, place_of(own).url) as fleet, ExitStack() as stack:
        n1, n2 = fleet.start_many("n1", "n2")
        client = stack.enter_context(n1.extended())
        before = [client.submit_new(b"f", b"%d" % number) for number in range(5)]
        for index in (0, 1):
            own.kill(index)
        client.request(b"f", b"without")
        client.socket.settimeout(LEASE / 2)
        with pytest.raises(TimeoutError):
            client.next()
        client.socket.settimeout(RECEIVE_TIMEOUT)
        eventually(lambda: "has given up" in n1.log_text(), "the node fences itself", timeout=RECEIVE_TIMEOUT)
        own.heal()
        answer = client.next()  # acknowledged or refused
        assert answer.kind in {ExtensionKind.SUBMITTED, Kind.ERROR}
        acknowledged = {*before, *(answer.arguments[:1] if answer.kind is ExtensionKind.SUBMITTED else ())}
        worker = stack.enter_context(n2.worker(b"f", places=10))
        worker.socket.settimeout(RECEIVE_TIMEOUT)
        eventually(lambda: count_members(n2) == 2, "both nodes are members", timeout=RECEIVE_TIMEOUT)
        seen: set[bytes] = set()
        while not acknowledged <= seen:
            job = worker.job()
            assert job.handle not in seen
            seen.add(job.handle)
        assert len(seen) <= len(before) + 1


def count_members(node: FleetNode) -> int:
    """Return the number of nodes that a node lists; 0 if it has just lost its own term."""
    try:
        return len(node.ask("nodes.list")["items"])
    except FaultError:
        return 0


def test_a_node_that_starts_without_a_majority_waits_for_it(
    fork_server: ForkServer, own: Ensemble, tmp_path: Path
) -> None:
    for index in (0, 1):
        own.kill(index)
    with Fleet(fork_server, tmp_path, place_of(own).url) as fleet:
        node = fleet.launch("n1")
        eventually(node.log_text, "the node logs what it waits for")
        time.sleep(0.5)
        assert node.is_alive
        own.heal()
        with node.ready().extended() as client:
            client.socket.settimeout(RECEIVE_TIMEOUT)
            submit_until_stored(client, b"u")
