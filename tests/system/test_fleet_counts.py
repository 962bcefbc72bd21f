"""Counts of jobs in a fleet, the answers to polling workers, and foreground jobs whose clients have left."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest
from tests.interop.packets import Kind, encode, packet_of

from .extension import ExtensionKind
from .fleet import Fleet
from .servers import eventually
from .stores import on_each_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .extension import ExtensionPeer
    from .fleet import FleetNode, ForkServer
    from .stores import Store

JOBS = 300


@pytest.fixture
def fleet(fork_server: ForkServer, tmp_path: Path, store: Store) -> Iterator[Fleet]:
    """Return a fleet without nodes. No lease of its nodes ends, however busy the machine is."""
    with Fleet(fork_server, tmp_path, store.url, lease=15) as fleet:
        yield fleet


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Counts(NamedTuple):
    """A line of ``status``, as monitoring reads it."""

    total: int
    running: int
    workers: int


def read_counts(peer: ExtensionPeer, function: bytes) -> Counts:
    """Return the counts of a function, and assert that they are consistent."""
    lines = [line.rstrip(b"\n").split(b"\t") for line in peer.table(b"status")]
    found = {name: Counts(int(total), int(running), int(workers)) for name, total, running, workers in lines}
    counts = found.get(function, Counts(0, 0, 0))
    assert counts.total >= counts.running >= 0, counts
    return counts


def assert_consistent(node: FleetNode) -> None:
    """Assert that the counts for tools are consistent."""
    for entry in node.status()["functions"]:
        assert entry["total"] >= entry["running"] + sum(entry["waiting"].values()), entry
        assert min(entry["total"], entry["running"], *entry["waiting"].values()) >= 0, entry


@on_each_store
@pytest.mark.parametrize("options", [(), ("--fleet-status",)], ids=["own", "fleet"])
def test_counts_include_jobs_that_were_submitted_at_another_node(
    fleet: Fleet, function: bytes, options: tuple[str, ...], stack: ExitStack
) -> None:
    """The jobs are submitted at a node without workers, and run at the other node, which has never counted them."""
    here, there = [node.ready() for node in (fleet.launch("n1", *options), fleet.launch("n2", *options))]
    client, worker = stack.enter_context(here.peer()), stack.enter_context(there.peer())
    watchers = [stack.enter_context(node.peer()) for node in (here, there)]
    worker.can_do(function)
    for _ in range(JOBS):
        client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    left = JOBS
    while left:
        handle = grab_until_assigned(worker)
        assert read_counts(watchers[1], function).running == 1
        read_counts(watchers[0], function)
        worker.complete(handle)
        left -= 1
        for node in (here, there) if left % 50 == 0 else ():
            assert_consistent(node)
    for watcher, workers in zip(watchers, (int(bool(options)), 1), strict=True):
        eventually(lambda: read_counts(watcher, function) == Counts(0, 0, workers), "all jobs have ended")  # noqa: B023 - at once


# ---- the answers to polling workers


@contextmanager
def pending_backlog_query(store: Store) -> Iterator[None]:
    """Block the node's next query for queued jobs until the block ends."""
    with psycopg.connect(store.url) as holder, psycopg.connect(store.url, autocommit=True) as observer:
        holder.execute("LOCK TABLE mainspring.counts IN ACCESS EXCLUSIVE MODE")
        waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%journal%inbox%'"
        eventually(lambda: observer.execute(waiting).fetchall(), "a node queries its backlog")
        yield
        holder.rollback()


def test_the_first_grab_after_the_acknowledgement_returns_the_job(
    fleet: Fleet, store: Store, function: bytes, stack: ExitStack
) -> None:
    """A query for queued jobs that began earlier does not return the job. The worker does not sleep: no later event wakes it."""
    node = fleet.start("n1")
    client, worker, watcher = (stack.enter_context(node.peer()) for _ in range(3))
    worker.can_do(function)
    with pending_backlog_query(store):
        client.send(Kind.SUBMIT_JOB_BG, function, b"", b"payload")
        eventually(lambda: read_counts(watcher, function).total, "the node has read it")
    (handle,) = client.expect(Kind.JOB_CREATED)
    assert worker.grab() == packet_of(Kind.JOB_ASSIGN, handle, function, b"payload")


# ---- foreground jobs without waiting clients


@on_each_store
@pytest.mark.parametrize("there", [False, True], ids=["one-node", "two-nodes"])
def test_a_foreground_job_without_a_client_is_dropped_when_its_worker_leaves(
    fleet: Fleet, function: bytes, there: bool, stack: ExitStack
) -> None:
    """The job is stored, because no worker was connected when it was submitted."""
    nodes = fleet.start_many("n1", "n2") if there else [fleet.start("n1")]
    client, watcher, worker, other = (
        stack.enter_context(node.peer()) for node in (nodes[0], nodes[0], nodes[-1], nodes[-1])
    )
    unique = b"unique"
    handle = client.submit(function, unique, b"payload")
    worker.can_do(function)
    assert grab_until_assigned(worker) == handle
    other.can_do(function)
    client.close()
    watcher.await_waiters(unique, 0)
    worker.close()
    watcher.await_status(handle, b"0", b"0", b"0", b"0")
    assert other.grab() == packet_of(Kind.NO_JOB)
    eventually(lambda: read_counts(watcher, function).total == 0, "it is not counted")


@on_each_store
def test_a_foreground_job_with_a_client_at_another_node_goes_to_another_worker(
    fleet: Fleet, function: bytes, stack: ExitStack
) -> None:
    here, there = fleet.start_many("n1", "n2")
    client, worker, other = (stack.enter_context(here.peer()) for _ in range(3))
    waiting = stack.enter_context(there.peer())
    unique = b"unique"
    handle = client.submit(function, unique, b"payload")
    assert waiting.submit(function, unique, b"payload") == handle
    worker.can_do(function)
    assert grab_until_assigned(worker) == handle
    client.close()
    other.await_waiters(unique, 0)
    other.can_do(function)
    worker.close()
    assert grab_until_assigned(other) == handle
    other.complete(handle, b"result")
    assert waiting.receive() == packet_of(Kind.WORK_COMPLETE, handle, b"result")


# ---- a job that runs at another node


@on_each_store
def test_any_node_shows_the_progress_of_a_running_job(fleet: Fleet, function: bytes, stack: ExitStack) -> None:
    here, there = fleet.start_many("n1", "n2")
    client, worker = stack.enter_context(here.extended()), stack.enter_context(there.worker(function, places=0))
    handle = client.submit_new(function)
    worker.ready()
    job = worker.job()
    assert job.handle == handle
    worker.write(encode(ExtensionKind.PROGRESS_TEXT, handle, b"a third"))
    worker.send(Kind.WORK_STATUS, handle, b"1", b"3")
    worker.assert_silent()
    elsewhere = client.show(handle)
    with there.extended() as observer:
        assert elsewhere == observer.show(handle)
    assert (elsewhere["state"], elsewhere["attempt"]) == ("running", 1)
    assert (elsewhere["done"], elsewhere["total"]) == (1, 3)
    assert elsewhere["text"] == "a third"
    assert elsewhere["started_at"] is not None
    assert elsewhere["worker"] is not None
    there.freeze()
    silent = client.show(handle)
    there.thaw()
    assert (silent["worker"], silent["started_at"]) == (None, None), "its node does not answer"


def grab_until_assigned(worker: ExtensionPeer) -> bytes:
    """Grab a job as plain workers do, asleep in between, and return its handle."""
    while True:
        packet = worker.grab()
        while packet.kind is Kind.NOOP:
            packet = worker.receive()
        if packet.kind is Kind.JOB_ASSIGN:
            return packet.arguments[0]
        worker.send(Kind.PRE_SLEEP)
        assert worker.receive() == packet_of(Kind.NOOP)
