"""What nodes of one store say of its jobs, what a worker is told that asks, and what becomes of jobs whose clients have left."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest
from tests.interop.packets import Kind, got

from .servers import eventually
from .stores import on_each_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .extension import ExtensionPeer
    from .fleet import Fleet, FleetNode
    from .stores import Store

JOBS = 300


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Counted(NamedTuple):
    """A line of ``status``, as monitoring reads it."""

    total: int
    running: int
    workers: int


def counted(peer: ExtensionPeer, function: bytes) -> Counted:
    """Ask for the counts of a function, and say what must be true of them in every answer."""
    lines = [line.rstrip(b"\n").split(b"\t") for line in peer.table(b"status")]
    found = {name: Counted(int(total), int(running), int(workers)) for name, total, running, workers in lines}
    counts = found.get(function, Counted(0, 0, 0))
    assert counts.total >= counts.running >= 0, counts
    return counts


def assert_consistent(node: FleetNode) -> None:
    """Say what must be true of the counts that tools are told."""
    for entry in node.status()["functions"]:
        assert entry["total"] >= entry["running"] + sum(entry["waiting"].values()), entry
        assert min(entry["total"], entry["running"], *entry["waiting"].values()) >= 0, entry


@on_each_store
@pytest.mark.parametrize("options", [(), ("--fleet-status",)], ids=["own", "fleet"])
def test_the_counts_of_jobs_that_came_from_another_node(
    fleet: Fleet, function: bytes, options: tuple[str, ...], stack: ExitStack
) -> None:
    """They are all submitted where there are no workers, and run where nobody has submitted any: that node never counted them."""
    here, there = [node.ready() for node in (fleet.launch("n1", *options), fleet.launch("n2", *options))]
    client, worker = stack.enter_context(here.peer()), stack.enter_context(there.peer())
    watchers = [stack.enter_context(node.peer()) for node in (here, there)]
    worker.can_do(function)
    for _ in range(JOBS):
        client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    left = JOBS
    while left:
        handle = taken(worker)
        assert counted(watchers[1], function).running == 1
        counted(watchers[0], function)
        worker.complete(handle)
        left -= 1
        for node in (here, there) if left % 50 == 0 else ():
            assert_consistent(node)
    for watcher, workers in zip(watchers, (int(bool(options)), 1), strict=True):
        eventually(lambda: counted(watcher, function) == Counted(0, 0, workers), "all have ended")  # noqa: B023 - at once


# ---- what a worker is told that asks


@contextmanager
def a_look_under_way(store: Store) -> Iterator[None]:
    """Hold up a node that has just asked the database what waits there, until the end of the block."""
    with psycopg.connect(store.url) as holder, psycopg.connect(store.url, autocommit=True) as observer:
        holder.execute("LOCK TABLE mainspring.counts IN ACCESS EXCLUSIVE MODE")
        waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%journal%inbox%'"
        eventually(lambda: observer.execute(waiting).fetchall(), "a node looks what waits")
        yield
        holder.rollback()


def test_a_job_is_there_for_the_first_worker_that_asks_once_it_is_acknowledged(
    fleet: Fleet, store: Store, function: bytes, stack: ExitStack
) -> None:
    """The look that was under way when it came does not know it. The worker does not sleep: nothing wakes it later."""
    node = fleet.start("n1")
    client, worker, watcher = (stack.enter_context(node.peer()) for _ in range(3))
    worker.can_do(function)
    with a_look_under_way(store):
        client.send(Kind.SUBMIT_JOB_BG, function, b"", b"payload")
        eventually(lambda: counted(watcher, function).total, "the node has read it")
    (handle,) = client.expect(Kind.JOB_CREATED)
    assert worker.grab() == got(Kind.JOB_ASSIGN, handle, function, b"payload")


# ---- foreground jobs that nobody waits for any more


@on_each_store
@pytest.mark.parametrize("there", [False, True], ids=["one-node", "two-nodes"])
def test_a_foreground_job_whose_client_has_left_is_dropped_with_its_worker(
    fleet: Fleet, function: bytes, there: bool, stack: ExitStack
) -> None:
    """It was stored, for no worker was there when it came."""
    nodes = fleet.several("n1", "n2") if there else [fleet.start("n1")]
    client, watcher, worker, other = (
        stack.enter_context(node.peer()) for node in (nodes[0], nodes[0], nodes[-1], nodes[-1])
    )
    unique = b"unique"
    handle = client.submit(function, unique, b"payload")
    worker.can_do(function)
    assert taken(worker) == handle
    other.can_do(function)
    client.close()
    watcher.await_waiters(unique, 0)
    worker.close()
    watcher.await_status(handle, b"0", b"0", b"0", b"0")
    assert other.grab() == got(Kind.NO_JOB)
    eventually(lambda: counted(watcher, function).total == 0, "it is not counted")


@on_each_store
def test_a_foreground_job_that_a_client_of_another_node_waits_for_goes_to_another_worker(
    fleet: Fleet, function: bytes, stack: ExitStack
) -> None:
    here, there = fleet.several("n1", "n2")
    client, worker, other = (stack.enter_context(here.peer()) for _ in range(3))
    waiting = stack.enter_context(there.peer())
    unique = b"unique"
    handle = client.submit(function, unique, b"payload")
    assert waiting.submit(function, unique, b"payload") == handle
    worker.can_do(function)
    assert taken(worker) == handle
    client.close()
    other.await_waiters(unique, 0)
    other.can_do(function)
    worker.close()
    assert taken(other) == handle
    other.complete(handle, b"result")
    assert waiting.receive() == got(Kind.WORK_COMPLETE, handle, b"result")


# ---- a job that another node runs


@on_each_store
def test_what_a_running_job_does_is_told_at_any_node(fleet: Fleet, function: bytes, stack: ExitStack) -> None:
    here, there = fleet.several("n1", "n2")
    client, worker = stack.enter_context(here.extended()), stack.enter_context(there.worker(function, places=0))
    handle = client.put(function)
    worker.ready()
    job = worker.job()
    assert job.handle == handle
    worker.send(Kind.WORK_STATUS, handle, b"1", b"3")
    worker.assert_silent()
    elsewhere = client.show(handle)
    with there.extended() as observer:
        assert elsewhere == observer.show(handle)
    assert (elsewhere["state"], elsewhere["attempt"]) == ("running", 1)
    assert (elsewhere["numerator"], elsewhere["denominator"]) == (1, 3)
    assert elsewhere["started_at"] is not None
    assert elsewhere["worker"] is not None
    there.freeze()
    silent = client.show(handle)
    there.thaw()
    assert (silent["worker"], silent["started_at"]) == (None, None), "its node does not answer"


def taken(worker: ExtensionPeer) -> bytes:
    """Ask for a job as plain workers do, asleep in between; returns its handle."""
    while True:
        packet = worker.grab()
        while packet.kind is Kind.NOOP:
            packet = worker.receive()
        if packet.kind is Kind.JOB_ASSIGN:
            return packet.arguments[0]
        worker.send(Kind.PRE_SLEEP)
        assert worker.receive() == got(Kind.NOOP)
