"""Nodes on an ensemble die: one node, all at once, or also the master. Their tasks soon run elsewhere, once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tests.interop.packets import encode

from .extension import ExtensionKind
from .fleet import Fleet
from .servers import eventually
from .stores import ZOOKEEPER
from .zookeeper_tree import TreeReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from .extension import ExtensionPeer
    from .fleet import FleetNode, ForkServer
    from .stores import Store

pytestmark = pytest.mark.parametrize("store", [ZOOKEEPER], indirect=True)
RECEIVE_TIMEOUT = 40.0
LEASE = 4.0
"""Lease in seconds: long enough that a node with a thousand jobs on a busy machine keeps its term until the test kills it.
Tasks that were under way in two lost nodes run in isolation, and a worker that never ends one would wait for the others."""
HELD_TASKS = 1000
RECOVERED_WITHIN = LEASE + 1
"""Seconds from a worker's death until all its tasks run elsewhere: measured in bench/, only reported here."""


@pytest.fixture
def fleet(fork_server: ForkServer, tmp_path: Path, store: Store) -> Iterator[Fleet]:
    with Fleet(fork_server, tmp_path, store.url, lease=LEASE) as fleet:
        yield fleet


@pytest.fixture
def tree(store: Store, fleet: Fleet) -> Iterator[TreeReader]:
    with TreeReader(store.url) as tree:
        yield tree
    del fleet


def submit(client: ExtensionPeer, number: int, function: bytes = b"f") -> set[bytes]:
    """Submit many jobs, and return their handles."""
    handles: set[bytes] = set()
    client.socket.settimeout(RECEIVE_TIMEOUT)
    for start in range(0, number, 500):
        count = min(500, number - start)
        client.write(b"".join(encode(ExtensionKind.SUBMIT, function, b"", b"", b"%d" % at) for at in range(count)))
        handles |= {client.expect(ExtensionKind.SUBMITTED)[0] for _ in range(count)}
    assert len(handles) == number
    return handles


def gather(workers: list[ExtensionPeer], number: int, *, done: bool = False) -> dict[bytes, int]:
    """Wait until workers have received a number of jobs, and settle them if ``done``; return how often each was assigned."""
    seen: dict[bytes, int] = {}
    deadline = time.monotonic() + RECEIVE_TIMEOUT
    while len(seen) < number:
        assert time.monotonic() < deadline, f"{len(seen)} of {number}"
        for worker in workers:
            for packet in worker.drain():
                if packet.kind is not ExtensionKind.ASSIGN:
                    continue
                handle, token, *_ = packet.arguments
                seen[handle] = seen.get(handle, 0) + 1
                if done:
                    worker.write(encode(ExtensionKind.SETTLE, handle, token, b"succeeded", b"", b""))
    return seen


def master_and_others(fleet: Fleet, tree: TreeReader) -> tuple[FleetNode, list[FleetNode]]:
    """Return the master's node and the others."""
    eventually(tree.master, "there is a master", timeout=RECEIVE_TIMEOUT)
    name = tree.master().rpartition("-")[0]
    live = fleet.live_nodes()
    (master,) = [node for node in live if node.name == name]
    return master, [node for node in live if node is not master]


@pytest.mark.parametrize("which", ["worker", "master"])
def test_tasks_of_a_dead_node_run_elsewhere(
    fleet: Fleet, tree: TreeReader, stack: ExitStack, record_property: Callable[[str, object], None], which: str
) -> None:
    fleet.start_many("n1", "n2", "n3")
    master, others = master_and_others(fleet, tree)
    dying, (first, second) = (master, others) if which == "master" else (others[0], [master, others[1]])
    holder = stack.enter_context(dying.worker(b"f", places=HELD_TASKS))
    handles = submit(stack.enter_context(second.extended()), HELD_TASKS)
    assert set(gather([holder], HELD_TASKS)) == handles
    successors = [stack.enter_context(node.worker(b"f", places=HELD_TASKS)) for node in (first, second)]
    dying.kill()
    began = time.monotonic()
    seen = gather(successors, HELD_TASKS, done=True)
    seconds = time.monotonic() - began
    record_property("seconds", round(seconds, 2))
    print(f"{HELD_TASKS} tasks of a dead {which} run elsewhere after {seconds:.2f} s; the session lasts {LEASE} s")  # noqa: T201
    assert seen == dict.fromkeys(handles, 1)
    assert tree.names("/queues") == tree.names("/workers") != []


def test_jobs_run_on_after_the_master_dies_under_load(fleet: Fleet, tree: TreeReader, stack: ExitStack) -> None:
    fleet.start_many("n1", "n2", "n3")
    master, (one, other) = master_and_others(fleet, tree)
    client = stack.enter_context(one.extended())
    worker = stack.enter_context(other.worker(b"f", places=1))
    client.socket.settimeout(RECEIVE_TIMEOUT)
    handles: list[bytes] = []
    gaps: list[float] = []
    last = began = time.monotonic()
    dead = False
    while time.monotonic() - began < LEASE + 3:
        handles.append(client.submit_new(b"f"))
        worker.socket.settimeout(RECEIVE_TIMEOUT)
        job = worker.job()
        assert worker.settle_as(job, b"succeeded", b"done") == b"recorded"
        worker.ready()
        gaps.append(time.monotonic() - last)
        last = time.monotonic()
        if not dead and last - began > 0.5:
            dead = True
            master.kill()
    assert tree.master() not in {"", f"{master.name}-{master.term if master.is_alive else 0}"}
    print(f"longest time without a job during the failover of the master: {max(gaps):.2f} s, {len(handles)} jobs")  # noqa: T201
    assert {client.outcome(handle).data for handle in handles} == {b"done"}


def test_a_master_whose_journal_another_client_has_written_is_replaced(
    fleet: Fleet, tree: TreeReader, stack: ExitStack
) -> None:
    """An ensemble that has lost a write looks the same. The node would go on to beat, and to keep ``/master``."""
    fleet.start_many("n1", "n2")
    master, (other,) = master_and_others(fleet, tree)
    before = tree.master()
    journal = f"{tree.chroot}/journals/{before}"
    tree.client.set(journal, tree.client.get(journal)[0])
    client = stack.enter_context(other.extended())
    worker = stack.enter_context(other.worker(b"f"))
    client.socket.settimeout(RECEIVE_TIMEOUT)
    worker.socket.settimeout(RECEIVE_TIMEOUT)
    stack.enter_context(master.worker(b"g"))  # its claim is a write
    handle = client.submit_new(b"f")
    job = worker.job()
    assert worker.settle_as(job, b"succeeded", b"done") == b"recorded"
    assert client.outcome(handle).data == b"done"
    eventually(lambda: tree.master() not in {"", before}, "another term is the master's", timeout=RECEIVE_TIMEOUT)
    eventually(lambda: before not in tree.names("/workers"), "the term has ended", timeout=RECEIVE_TIMEOUT)


def test_a_batch_as_large_as_a_packet_leaves_the_master_at_work(
    fleet: Fleet, tree: TreeReader, stack: ExitStack
) -> None:
    """The journal of a node with many functions of long names, and the largest task, do not fit into one packet together."""
    fleet.start_many("n1", "n2")
    master, (other,) = master_and_others(fleet, tree)
    before = tree.master()
    client = stack.enter_context(master.extended())
    client.socket.settimeout(RECEIVE_TIMEOUT)
    for number in range(198):
        client.submit_new(b"%03d" % number + b"n" * 360)
    client.submit_new(b"large", b'"' * 491_510)
    worker = stack.enter_context(other.worker(b"f", b"large", places=2))
    worker.socket.settimeout(RECEIVE_TIMEOUT)
    client.submit_new(b"f")
    seen = gather([worker], 2, done=True)
    assert set(seen.values()) == {1}
    assert tree.master() == before


def test_tasks_that_complete_without_a_master_are_published_by_the_next(
    fleet: Fleet, tree: TreeReader, stack: ExitStack
) -> None:
    fleet.start_many("n1", "n2")
    master, (other,) = master_and_others(fleet, tree)
    client = stack.enter_context(other.extended())
    worker = stack.enter_context(other.worker(b"f", places=20))
    handles = submit(client, 20)
    jobs = [worker.job() for _ in handles]
    master.kill()
    for job in jobs:
        assert worker.settle_as(job, b"succeeded", b"done") == b"recorded"
    assert (
        tree.names(
            "/queues/"
            + next(worker_name for worker_name in tree.names("/workers") if worker_name.startswith(other.name))
        )
        == []
    )
    eventually(lambda: not tree.tasks("/completed_tasks"), "all tasks are published", timeout=RECEIVE_TIMEOUT)
    assert not tree.tasks("/names")
    assert {client.outcome(handle).data for handle in handles} == {b"done"}


def test_tasks_of_workers_that_die_without_a_master_run_elsewhere(
    fleet: Fleet, tree: TreeReader, stack: ExitStack
) -> None:
    fleet.start_many("n1", "n2", "n3", "n4")
    master, others = master_and_others(fleet, tree)
    *dying, survivor = others
    client = stack.enter_context(survivor.extended())
    client.socket.settimeout(RECEIVE_TIMEOUT)
    handles: set[bytes] = set()
    for node in dying:
        holder = stack.enter_context(node.worker(node.name.encode(), places=50))
        handles |= submit(client, 50, node.name.encode())
        assert len(gather([holder], 50)) == 50
    for node in (master, *dying):
        node.kill()
    successor = stack.enter_context(survivor.worker(*(node.name.encode() for node in dying), places=100))
    assert gather([successor], 100, done=True) == dict.fromkeys(handles, 1)


@pytest.mark.parametrize("seconds", [0.0, LEASE + 1])
def test_tasks_run_once_after_all_nodes_die_and_restart(
    fleet: Fleet, tree: TreeReader, stack: ExitStack, seconds: float
) -> None:
    nodes = fleet.start_many("n1", "n2", "n3")
    client = nodes[0].extended()
    waiting = submit(client, 30, b"waits")
    delayed = {client.submit_new(b"later", delay=4.0) for _ in range(5)}
    with nodes[1].worker(b"held", places=50) as holder:
        held = submit(client, 50, b"held")
        assert len(gather([holder], 50)) == 50
        for node in nodes:
            node.kill()
    client.close()
    time.sleep(seconds)  # their sessions are still open, or have ended
    restarted = fleet.start_many("n1", "n2", "n3")
    workers = [stack.enter_context(node.worker(b"waits", b"held", b"later", places=100)) for node in restarted]
    seen = gather(workers, 85, done=True)
    assert seen == dict.fromkeys(waiting | held | delayed, 1)
    assert len(tree.names("/workers")) == 3
