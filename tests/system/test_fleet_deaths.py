"""Nodes of a PostgreSQL store whose sessions end, by their death or otherwise, long before the end of their leases."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tests.postgres.server import PostgresServer, name_of

from mainspring.nodes.model import LOOK

from .extension import ExtensionKind
from .fleet import Fleet
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from .extension import ExtensionPeer
    from .fleet import FleetNode, ForkServer
    from .stores import Store, StoreRoute

LEASE = 120.0
"""Longer than the tests wait: what they see was not caused by the end of a lease."""
RECEIVE_TIMEOUT = 40.0
SEEN = 4 * LOOK
"""Seconds until other nodes have seen the session of a new node: one of them misses only what it has seen."""


@pytest.fixture
def fleet(fork_server: ForkServer, tmp_path: Path, store: Store) -> Iterator[Fleet]:
    with Fleet(fork_server, tmp_path, store.url, lease=LEASE) as fleet:
        yield fleet


def patient(peer: ExtensionPeer) -> ExtensionPeer:
    peer.socket.settimeout(RECEIVE_TIMEOUT)
    return peer


def listed(node: FleetNode) -> list[str]:
    """Return the names of the nodes that a node lists."""
    return sorted(row["name"] for row in node.ask("nodes.list")["items"])


def end_session(server: PostgresServer, store: Store, node: FleetNode) -> None:
    """Terminate the control session of a node."""
    ended = server.sql(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mainspring:{node.name}'",
        name_of(store.url),
    )
    assert "t" in ended, "there was one"


def announced(server: PostgresServer, store: Store, node: FleetNode) -> str:
    """Return the session that a node has announced."""
    about = f"SELECT about ->> 'session' FROM mainspring.nodes WHERE about ->> 'name' = '{node.name}'"
    return server.sql(about, name_of(store.url)).strip()


def test_the_jobs_of_a_killed_node_run_elsewhere_during_its_lease(fleet: Fleet, stack: ExitStack) -> None:
    n1, n2 = fleet.start_many("n1", "n2")
    client = patient(stack.enter_context(n2.extended()))
    holder = stack.enter_context(n1.worker(b"f"))
    handle = client.submit_new(b"f", b"payload")
    assert holder.job().handle == handle
    successor = patient(stack.enter_context(n2.worker(b"f")))
    time.sleep(SEEN)
    n1.kill()
    job = successor.job()
    assert job.handle == handle
    assert successor.settle_as(job, b"succeeded", b"result") == b"recorded"
    assert client.outcome(handle).data == b"result"
    assert listed(n2) == ["n2"]


def test_two_nodes_of_three_may_be_killed(fleet: Fleet, stack: ExitStack) -> None:
    n1, n2, n3 = fleet.start_many("n1", "n2", "n3")
    client = patient(stack.enter_context(n3.extended()))
    handles = {}
    for node in (n1, n2):
        function = node.name.encode()
        holder = stack.enter_context(node.worker(function))
        handles[function] = client.submit_new(function)
        assert holder.job().handle == handles[function]
    successor = patient(stack.enter_context(n3.worker(*handles, places=2)))
    time.sleep(SEEN)
    n1.kill()
    n2.kill()
    assert {successor.job().handle, successor.job().handle} == set(handles.values())


def test_a_node_whose_session_is_terminated_keeps_its_term_and_jobs(
    fleet: Fleet, stack: ExitStack, store: Store, postgres: PostgresServer
) -> None:
    n1, n2 = fleet.start_many("n1", "n2")
    worker = patient(stack.enter_context(n1.worker(b"f", places=2)))
    stack.enter_context(n2.worker(b"f", places=0))
    client = patient(stack.enter_context(n1.extended()))
    client.submit_new(b"f")
    job, term = worker.job(), n1.term
    for _ in range(3):
        before = announced(postgres, store, n1)
        end_session(postgres, store, n1)
        eventually(lambda before=before: announced(postgres, store, n1) not in {"", before}, "n1 has announced another")  # type: ignore[misc]
    time.sleep(4 * LOOK)
    assert listed(n2) == ["n1", "n2"]
    assert worker.settle_as(job, b"succeeded") == b"recorded"
    client.submit_new(b"f")
    assert worker.settle_as(worker.job(), b"succeeded") == b"recorded"
    assert n1.term == term


def test_a_short_cut_of_the_network_ends_no_term(fleet: Fleet, route: StoreRoute, stack: ExitStack) -> None:
    n1, n2 = fleet.start("n1", store=route.url), fleet.start("n2")
    worker = patient(stack.enter_context(n1.worker(b"f")))
    patient(stack.enter_context(n1.extended())).submit_new(b"f")
    job, term = worker.job(), n1.term
    assert route.proxy is not None
    for _ in range(3):
        route.proxy.cut()
        time.sleep(2 * LOOK)
    assert worker.settle_as(job, b"succeeded") == b"recorded"
    assert n1.term == term
    assert listed(n2) == ["n1", "n2"]


def test_a_frozen_node_keeps_its_jobs_for_its_lease(fleet: Fleet, stack: ExitStack) -> None:
    """Its session stays open, and it may continue at any moment."""
    n1, n2 = fleet.start_many("n1", "n2")
    worker = patient(stack.enter_context(n1.worker(b"f")))
    other = stack.enter_context(n2.worker(b"f"))
    patient(stack.enter_context(n1.extended())).submit_new(b"f")
    job, term = worker.job(), n1.term
    n1.freeze()
    time.sleep(8 * LOOK)
    assert listed(n2) == ["n1", "n2"]
    n1.thaw()
    other.assert_silent()
    assert worker.settle_as(job, b"succeeded") == b"recorded"
    assert n1.term == term


def test_a_node_that_is_cut_off_overlaps_and_records_nothing(fleet: Fleet, route: StoreRoute, stack: ExitStack) -> None:
    """The server sees the end of its session, so others take its jobs. It goes on until it reaches the store again."""
    n1, n2 = fleet.start("n1", store=route.url), fleet.start("n2")
    client = patient(stack.enter_context(n2.extended()))
    holder = patient(stack.enter_context(n1.worker(b"f", places=3)))
    handle, waiting = client.submit_new(b"f"), client.submit_new(b"f")
    jobs = {job.handle: job for job in (holder.job(), holder.job())}
    successor = patient(stack.enter_context(n2.worker(b"f", places=2)))
    before = n1.term
    assert route.proxy is not None
    time.sleep(SEEN)
    route.proxy.refuse()
    taken = {job.handle: job for job in (successor.job(), successor.job())}
    assert set(taken) == set(jobs) == {handle, waiting}
    holder.settle(jobs[handle], b"succeeded", b"late")
    route.proxy.heal()
    # Until now its node has not given up its jobs: it could not know whether others had taken them.
    packets = [holder.next(), holder.next()]
    answers = {packet.kind: packet.arguments for packet in packets}
    assert answers[ExtensionKind.SETTLED] == (handle, jobs[handle].token, b"stale")
    assert answers[ExtensionKind.STOP] == (waiting, jobs[waiting].token, b"lost")
    eventually(lambda: n1.term != before, "n1 has a new term")
    for job in taken.values():
        assert successor.settle_as(job, b"succeeded", b"in time") == b"recorded"
    assert client.outcome(handle).data == b"in time"


def test_nodes_that_return_after_a_restart_of_the_database_keep_their_terms(
    fork_server: ForkServer, tmp_path: Path, stack: ExitStack, postgres_programs: Path
) -> None:
    """All sessions have ended, and one node is late: the other one has not seen its session on this server."""
    with (
        PostgresServer() as server,
        Fleet(fork_server, tmp_path, server.create_database(), lease=LEASE) as fleet,
    ):
        n1, n2 = fleet.start_many("n1", "n2")
        worker = patient(stack.enter_context(n1.worker(b"f")))
        patient(stack.enter_context(n1.extended())).submit_new(b"f")
        job, term = worker.job(), n1.term
        n1.freeze()
        server.restart("fast")
        time.sleep(8 * LOOK)
        eventually(lambda: listed(n2) == ["n1", "n2"], "n2 has the store again")
        n1.thaw()
        assert worker.settle_as(job, b"succeeded") == b"recorded"
        assert n1.term == term


def test_a_node_without_looks_keeps_its_jobs_for_its_lease(fleet: Fleet, stack: ExitStack) -> None:
    n1 = fleet.start("n1", "--look", "0s")
    n2 = fleet.start("n2")
    holder = stack.enter_context(n1.worker(b"f"))
    patient(stack.enter_context(n2.extended())).submit_new(b"f")
    holder.job()
    other = stack.enter_context(n2.worker(b"f"))
    n1.kill()
    time.sleep(8 * LOOK)
    other.assert_silent()
    assert listed(n2) == ["n1", "n2"]
