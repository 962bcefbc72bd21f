"""Members of the ensemble fail under load, and nodes with them: nothing acknowledged is lost, nothing settled runs again."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.exceptions import NoNodeError
from tests.interop.packets import Kind
from tests.postgres.server import memory_directory
from tests.zookeeper.server import Ensemble

from .chaos import Chaos
from .ensemble_chaos import EVENTS, anything
from .extension import FaultError, More
from .fleet import LEASE, Fleet
from .fleet_chaos import kill
from .ledger import STOP_DELAY
from .servers import eventually
from .stores import place_of
from .zookeeper_tree import TreeReader, faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .chaos import Findings
    from .extension import Assigned, ExtensionPeer
    from .fleet import FleetNode, ForkServer

NODES = 3
ROUNDS = 4
SEEDS = 2
LONG_SEEDS = 100
LONG_ROUNDS = 12
LONGEST_AWAY = 2 * LEASE + 1
RECEIVE_TIMEOUT = 40.0


@pytest.fixture(scope="module")
def own(zookeeper_program: str) -> Iterator[Ensemble]:
    """Give an ensemble that the module's tests disturb."""
    del zookeeper_program
    with Ensemble(3, parent=memory_directory()) as ensemble:
        yield ensemble


@pytest.fixture(autouse=True)
def _healed(own: Ensemble) -> Iterator[None]:
    yield
    own.heal()


class SeedRunner:
    """Where seeds are run."""

    def __init__(self, fork_server: ForkServer, ensemble: Ensemble, directory: Path) -> None:
        self._fork_server = fork_server
        self._ensemble = ensemble
        self._directory = directory

    def survive(
        self, disturb: Callable[[Chaos], None], seed: int, *, rounds: int = ROUNDS, plant: str | None = None
    ) -> Findings:
        """Run one seed in a directory and a tree of its own, each node with a way of its own to one of the members."""
        directory = self._directory / str(seed)
        directory.mkdir()
        self._store = place_of(self._ensemble)
        with self._store.routes(NODES) as routes:
            found = Chaos(self._fork_server, directory, routes, seed, plant=plant).run(disturb, rounds)
        found.violations.extend(self.faults())
        return found

    def faults(self) -> list[str]:
        """Say what is wrong with the tree of the last run."""
        with TreeReader(self._store.url) as tree:
            return faults(tree)


@pytest.fixture
def seed_runner(fork_server: ForkServer, own: Ensemble, tmp_path: Path) -> SeedRunner:
    return SeedRunner(fork_server, own, tmp_path)


def sound(found: Findings, *, overlap: float = STOP_DELAY) -> None:
    """Say that a run has lost and doubled nothing."""
    assert (found.lost, found.violations) == ([], [])
    assert found.overlap <= overlap
    assert found.acknowledged


@pytest.mark.parametrize("event", sorted(EVENTS))
def test_members_fail_under_load(fork_server: ForkServer, own: Ensemble, tmp_path: Path, event: str) -> None:
    # The nodes know all members, and go to another one.
    routes = [place_of(own).route] * NODES
    sound(Chaos(fork_server, tmp_path, routes, 1).run(lambda chaos: EVENTS[event](chaos, own), 1))


def test_anything_loses_nothing_and_runs_nothing_again(seed_runner: SeedRunner, own: Ensemble) -> None:
    for seed in range(SEEDS):
        sound(seed_runner.survive(anything(own), seed), overlap=LONGEST_AWAY)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_much_of_anything_loses_nothing_and_runs_nothing_again(seed_runner: SeedRunner, own: Ensemble) -> None:
    for seed in range(SEEDS, SEEDS + LONG_SEEDS):
        sound(seed_runner.survive(anything(own), seed, rounds=LONG_ROUNDS), overlap=LONGEST_AWAY)


# The check has to fail where something is missing; otherwise it proves nothing.


def test_a_name_that_is_left_behind_is_found(seed_runner: SeedRunner) -> None:
    with suppress(ConnectionError):  # a node that meets such a name ends: its store is broken
        seed_runner.survive(kill, 1, rounds=1, plant="name")
    assert any("has a name and is nowhere" in fault for fault in seed_runner.faults())


def test_what_a_worker_completes_without_its_ephemeral_node_is_refused(
    fork_server: ForkServer, own: Ensemble, tmp_path: Path
) -> None:
    store = place_of(own)
    with Fleet(fork_server, tmp_path, store.url) as fleet, TreeReader(store.url) as tree:
        n1 = fleet.start("n1")
        for number in range(3):
            unique = b"%d" % number
            assert completed_late(n1, tree, unique) == b"stale"
            finish(n1, unique)
            with n1.extended() as client:
                client.socket.settimeout(RECEIVE_TIMEOUT)
                assert client.outcome(submitted(client, unique, keep_unique=60)).data == b"in time"


def test_what_is_completed_without_a_check_of_the_ephemeral_node_is_noticed(
    fork_server: ForkServer, own: Ensemble, tmp_path: Path
) -> None:
    store = place_of(own)
    with Fleet(fork_server, tmp_path, store.url) as fleet, TreeReader(store.url) as tree:
        n1 = fleet.start("n1", plant="worker")
        # A node that was frozen for long gives up by itself, and what it has completed is stale without any check.
        assert any(completed_late(n1, tree, b"%d" % number) == b"recorded" for number in range(10))


def completed_late(node: FleetNode, tree: TreeReader, unique: bytes) -> bytes:
    """Have the only node complete a job once its ephemeral node is gone; returns the verdict.

    On a busy machine its term may end at any moment besides.
    """
    with node.extended() as client, node.worker(b"f") as worker:
        for peer in (client, worker):
            peer.socket.settimeout(RECEIVE_TIMEOUT)
        submitted(client, unique, keep_unique=60)
        job = worker.job()
        # Nobody is there to take it away before the node speaks.
        node.freeze()
        tree.client.sync(tree.chroot)  # or this member may not know of it yet
        for who in tree.names("/workers"):
            with suppress(NoNodeError):
                tree.client.delete(f"{tree.chroot}/workers/{who}")
        worker.settle(job, b"succeeded", b"late")
        node.thaw()
        return verdict(worker, job)


def submitted(client: ExtensionPeer, unique: bytes, **options: Any) -> bytes:
    """Submit as clients do, again where a node between two terms refuses; what was stored is joined. Returns the handle."""
    handles: list[bytes] = []

    def stored() -> bool:
        client.request(b"f", unique=unique, options=options)
        answer = client.next()
        assert answer.kind in {More.SUBMITTED, Kind.ERROR}
        handles.extend(answer.arguments[:1] if answer.kind is More.SUBMITTED else ())
        return bool(handles)

    eventually(stored, "the node takes a job", timeout=RECEIVE_TIMEOUT)
    return handles[0]


def verdict(worker: ExtensionPeer, job: Assigned) -> bytes:
    """Await the verdict on a job, of which the worker may hear before that it is lost."""
    while (packet := worker.next()).kind is not More.SETTLED:
        assert packet.kind is More.STOP
    assert packet.arguments[:2] == (job.handle, job.lease)
    return packet.arguments[2]


def finish(node: FleetNode, unique: bytes) -> None:
    """Complete a job, however often the node's term ends over it."""

    def once() -> bool:
        with node.worker(b"f") as worker:
            worker.socket.settimeout(RECEIVE_TIMEOUT)
            job = worker.job()
            assert job.unique == unique
            worker.settle(job, b"succeeded", b"in time")
            return verdict(worker, job) == b"recorded"

    eventually(once, "the job is completed", timeout=RECEIVE_TIMEOUT)


# ---- what a client sees of it


def test_without_a_majority_nothing_is_acknowledged_and_it_comes_in_the_end(
    fork_server: ForkServer, own: Ensemble, tmp_path: Path
) -> None:
    with Fleet(fork_server, tmp_path, place_of(own).url) as fleet, ExitStack() as stack:
        n1, n2 = fleet.several("n1", "n2")
        client = stack.enter_context(n1.extended())
        before = [client.put(b"f", b"%d" % number) for number in range(5)]
        for index in (0, 1):
            own.kill(index)
        client.request(b"f", b"without")
        client.socket.settimeout(LEASE / 2)
        with pytest.raises(TimeoutError):
            client.next()
        client.socket.settimeout(RECEIVE_TIMEOUT)
        eventually(lambda: "has given up" in n1.log_text(), "the node fences itself", timeout=RECEIVE_TIMEOUT)
        own.heal()
        answer = client.next()  # it is told either way
        assert answer.kind in {More.SUBMITTED, Kind.ERROR}
        acknowledged = {*before, *(answer.arguments[:1] if answer.kind is More.SUBMITTED else ())}
        worker = stack.enter_context(n2.worker(b"f", places=10))
        worker.socket.settimeout(RECEIVE_TIMEOUT)
        eventually(lambda: take_part(n2) == 2, "both take part", timeout=RECEIVE_TIMEOUT)
        seen: set[bytes] = set()
        while not acknowledged <= seen:
            job = worker.job()
            assert job.handle not in seen
            seen.add(job.handle)
        assert len(seen) <= len(before) + 1


def take_part(node: FleetNode) -> int:
    """Return how many nodes take part, as one of them says; none where it has lost its own term a moment ago."""
    try:
        return len(node.ask("nodes.list")["nodes"])
    except FaultError:
        return 0


def test_a_node_that_starts_without_a_majority_waits_for_it(
    fork_server: ForkServer, own: Ensemble, tmp_path: Path
) -> None:
    for index in (0, 1):
        own.kill(index)
    with Fleet(fork_server, tmp_path, place_of(own).url) as fleet:
        node = fleet.launch("n1")
        eventually(node.log_text, "it says what it waits for")
        time.sleep(0.5)
        assert node.is_alive
        own.heal()
        with node.ready().extended() as client:
            client.socket.settimeout(RECEIVE_TIMEOUT)
            submitted(client, b"u")
