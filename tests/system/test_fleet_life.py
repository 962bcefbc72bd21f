"""The life of a fleet: nodes start at the same time, are listed, drained and removed; and the cost of an idle fleet."""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.packets import encode
from tests.postgres.server import PostgresServer, memory_directory, name_of

from mainspring.jobs.attempts import RECORD_INTERVAL
from mainspring.jobs.model import State

from .extension import ExtensionKind, ExtensionPeer, FaultError
from .fleet import Fleet, FleetNode, ForkServer
from .leaving import assert_leaving_workers_keep_no_job
from .processes import mainspring
from .servers import eventually
from .stores import on_each_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .stores import Store

RECEIVE_TIMEOUT = 30.0
JOBS = 10_000
IDLE_STATEMENTS = 12.0
"""Statements per second of three idle nodes: half of them find out soon that a node is dead."""


def names(node: FleetNode) -> list[str]:
    """Return the names of the nodes that a node lists."""
    return [row["name"] for row in node.ask("nodes.list")["items"]]


# ---- starting


@on_each_store
@pytest.mark.usefixtures("migrations")
def test_several_nodes_may_start_at_the_same_time_on_an_empty_database(fleet: Fleet) -> None:
    nodes = fleet.start_many(*(f"n{number}" for number in range(1, 6)))
    assert sorted(names(nodes[0])) == sorted(node.name for node in nodes)
    assert len({node.term for node in nodes}) == len(nodes)


@pytest.mark.usefixtures("migrations")
def test_a_node_that_may_not_migrate_names_the_command_to_run(database: str, tmp_path: Path) -> None:
    order = ("serve", "--store", database, "--gearman", "127.0.0.1:0", "--name", "n1", "--no-migrate")
    refused = mainspring(*order, cwd=tmp_path)
    assert refused.returncode == 1
    assert b"mainspring migrate" in refused.stderr
    assert b"Traceback" not in refused.stderr


@on_each_store
@pytest.mark.usefixtures("migrations")
def test_a_node_starts_without_migrating_on_a_migrated_store(fleet: Fleet, store: Store, tmp_path: Path) -> None:
    assert mainspring("migrate", "--store", store.url, cwd=tmp_path).returncode == 0
    assert names(fleet.start("n1", "--no-migrate")) == ["n1"]


@on_each_store
def test_a_name_is_reused_with_another_term(fleet: Fleet, stack: ExitStack) -> None:
    first = fleet.start("n1")
    before = first.term
    client = first.extended()
    handle = client.submit_new(b"f", b"payload")
    with first.worker(b"f") as worker:
        assert worker.job().handle == handle
        first.kill()
    client.close()
    second = fleet.start("n1")
    assert second.term > before
    # Both rows exist until the first one's lease has ended: until then the name is ambiguous.
    with pytest.raises(FaultError, match="name one of the terms"):
        second.ask("nodes.show", node="n1")
    assert second.ask("nodes.show", node=str(before))["state"] == "live"
    worker = stack.enter_context(second.worker(b"f"))
    worker.socket.settimeout(RECEIVE_TIMEOUT)
    assert worker.job().handle == handle
    eventually(lambda: names(second) == ["n1"], "the first is gone")


@on_each_store
def test_two_nodes_of_one_name_are_two_nodes(fleet: Fleet, stack: ExitStack) -> None:
    one, other = fleet.start("same"), fleet.start("same")
    client = stack.enter_context(one.extended())
    worker = stack.enter_context(other.worker(b"f"))
    handles = {client.submit_new(b"f", b"%d" % number) for number in range(3)}
    with other.extended() as second:
        handles.add(second.submit_new(b"f", b"3"))
    assert len(handles) == 4
    worker.ready(3)
    assert {worker.job().handle for _ in handles} == handles


# ---- administration of nodes


@on_each_store
def test_the_command_lists_and_shows_nodes(fleet: Fleet, tmp_path: Path) -> None:
    n1, n2 = fleet.start_many("n1", "n2")
    with n2.worker(b"f"):
        eventually(lambda: n1.ask("nodes.show", node="n2")["prefetch"] == 1, "n2 has reported its worker")
        listed = mainspring("nodes", "list", "--server", n1.address, cwd=tmp_path)
        shown = mainspring("nodes", "show", "n2", "--server", n1.address, cwd=tmp_path)
    assert listed.returncode == shown.returncode == 0
    lines = [line.split() for line in listed.stdout.decode().splitlines()]
    assert {(line[0], line[2], line[3]) for line in lines if line[0] in {"n1", "n2"}} == {
        ("n1", "live", n1.address),
        ("n2", "live", n2.address),
    }
    assert n2.address.encode() in shown.stdout
    missing = mainspring("nodes", "show", "n3", "--server", n1.address, cwd=tmp_path)
    assert missing.returncode == 4


@on_each_store
def test_a_node_that_is_drained_leaves_its_work_to_the_others(fleet: Fleet, tmp_path: Path, stack: ExitStack) -> None:
    n1, n2 = fleet.start_many("n1", "n2")
    client = stack.enter_context(n1.extended())
    first = stack.enter_context(n1.worker(b"f"))
    handles = [client.submit_new(b"f", b"%d" % number) for number in range(20)]
    running = first.job()
    assert running.handle == handles[0]
    assert mainspring("nodes", "drain", "n1", "--server", n2.address, cwd=tmp_path).returncode == 0
    eventually(lambda: "the node drains" in n1.log_text(), "n1 has begun to drain")
    second = stack.enter_context(n2.worker(b"f", places=30))
    second.socket.settimeout(RECEIVE_TIMEOUT)
    assert {second.job().handle for _ in handles[1:]} == set(handles[1:])
    # Jobs that run there run to their ends; the other nodes run the jobs that are submitted there.
    assert first.settle_as(running, b"succeeded", b"result") == b"recorded"
    first.ready()
    late = client.submit_new(b"f", b"late")
    assert second.job().handle == late
    first.assert_silent()
    assert n2.ask("nodes.show", node="n1")["state"] == "draining"

    assert mainspring("nodes", "drain", "n1", "--off", "--server", n2.address, cwd=tmp_path).returncode == 0
    eventually(lambda: "takes part again" in n1.log_text(), "n1 no longer drains")
    own = client.submit_new(b"g", b"again")
    first.register(b"g")
    first.socket.settimeout(RECEIVE_TIMEOUT)
    assert first.job().handle == own


@on_each_store
def test_a_live_node_is_removed_by_force_and_begins_a_new_term(fleet: Fleet, tmp_path: Path, stack: ExitStack) -> None:
    n1, n2 = fleet.start_many("n1", "n2")
    client = stack.enter_context(n2.extended())
    holder = stack.enter_context(n1.worker(b"f"))
    handle = client.submit_new(b"f")
    job = holder.job()
    before = n1.term
    refused = mainspring("nodes", "remove", "n1", "--server", n2.address, cwd=tmp_path)
    assert refused.returncode == 1
    assert b"--force" in refused.stderr
    successor = stack.enter_context(n2.worker(b"f"))
    assert mainspring("nodes", "remove", "n1", "--force", "--server", n2.address, cwd=tmp_path).returncode == 0
    assert successor.job().handle == handle
    assert holder.await_stop() == (handle, job.token, b"lost")
    assert holder.settle_as(job, b"succeeded", b"late") == b"stale"
    eventually(lambda: n1.term > before, "n1 has a new term")
    eventually(lambda: sorted(names(n2)) == ["n1", "n2"], "both are listed")
    holder.ready()
    next_job = client.submit_new(b"f", b"again")
    assert holder.job().handle == next_job


@on_each_store
def test_a_dead_node_is_removed_without_waiting_for_its_lease(
    fork_server: ForkServer, tmp_path: Path, store: Store, stack: ExitStack
) -> None:
    with Fleet(fork_server, tmp_path, store.url, lease=15) as fleet:
        n1, n2 = fleet.start_many("n1", "n2")
        client = stack.enter_context(n2.extended())
        handle = client.submit_new(b"f")
        with n1.worker(b"f") as worker:
            worker.job()
            n1.kill()
        removed = mainspring("nodes", "remove", "n1", "--force", "--server", n2.address, cwd=tmp_path)
        assert removed.returncode == 0
        successor = stack.enter_context(n2.worker(b"f"))
        successor.socket.settimeout(3)
        assert successor.job().handle == handle


@on_each_store
def test_a_node_that_shuts_down_leaves_nothing_behind(fleet: Fleet, stack: ExitStack) -> None:
    n1, n2 = fleet.start_many("n1", "n2")
    client = stack.enter_context(n2.extended())
    handle = client.submit_new(b"f")
    n1.worker(b"f", places=0).close()
    n1.stop()
    assert names(n2) == ["n2"]
    successor = stack.enter_context(n2.worker(b"f"))
    assert successor.job().info["attempt"] == 1
    assert client.show(handle)["attempt"] == 1


# ---- workers that leave


@on_each_store
def test_workers_that_leave_with_a_pending_request_keep_no_job(
    fork_server: ForkServer, tmp_path: Path, store: Store
) -> None:
    """Over TCP and a Unix socket."""
    with Fleet(fork_server, tmp_path, store.url, lease=30) as fleet:
        node = fleet.launch("n1", socket="unix:n1.s").ready()
        assert_leaving_workers_keep_no_job(node.peer, b"f")
        assert_leaving_workers_keep_no_job(lambda: ExtensionPeer(tmp_path / "n1.s"), b"g")


# ---- figures


def test_all_jobs_of_a_dead_node_are_recovered(
    fleet: Fleet, stack: ExitStack, record_property: Callable[[str, object], None]
) -> None:
    n1, n2, n3 = fleet.start_many("n1", "n2", "n3")
    client = stack.enter_context(n3.extended())
    client.socket.settimeout(RECEIVE_TIMEOUT)
    holder = stack.enter_context(n1.worker(b"f", places=JOBS))
    handles = set()
    for start in range(0, JOBS, 500):
        client.write(
            b"".join(encode(ExtensionKind.SUBMIT, b"f", b"", b"", b"%d" % (start + number)) for number in range(500))
        )
        handles |= {client.expect(ExtensionKind.SUBMITTED)[0] for _ in range(500)}
    holder.socket.settimeout(RECEIVE_TIMEOUT)
    assert {holder.job().handle for _ in range(JOBS)} == handles
    successors = [stack.enter_context(node.worker(b"f", places=JOBS)) for node in (n2, n3)]
    n1.kill()
    began = time.monotonic()
    seen: dict[bytes, int] = {}
    while len(seen) < JOBS:
        assert time.monotonic() < began + RECEIVE_TIMEOUT, f"{len(seen)} of {JOBS} are recovered"
        for successor in successors:
            for packet in successor.drain():
                if packet.kind is ExtensionKind.ASSIGN:
                    seen[packet.arguments[0]] = seen.get(packet.arguments[0], 0) + 1
    record_property("seconds", round(time.monotonic() - began, 2))
    assert set(seen) == handles
    assert max(seen.values()) == 1


def test_an_idle_fleet_queries_the_database_rarely(
    fork_server: ForkServer, tmp_path: Path, postgres_programs: Path
) -> None:
    """It has jobs behind it, a limit, a schedule, and workers that decide workflows."""
    del postgres_programs
    seconds = 20.0
    with PostgresServer(parent=memory_directory()) as server:
        store = server.create_database()
        with Fleet(fork_server, tmp_path, store, lease=15) as fleet, ExitStack() as stack:
            for node in fleet.start_many("n1", "n2", "n3"):
                worker = stack.enter_context(node.worker(b"f"))
                worker.register(b"order", workflow={"version": "1"}, decisions=10)
                client = stack.enter_context(node.extended())
                client.submit_new(b"f")
                job = worker.job()
                assert worker.settle_as(job, b"succeeded") == b"recorded"
                worker.ready()
            client.call("functions.limit", function="f", concurrency=5)
            client.call("schedules.add", name="rare", function="f", every=86_400.0)
            time.sleep(RECORD_INTERVAL + 2)  # until the series have the last job
            server.set(log_statement="all")
            time.sleep(0.2)
            before = len(server.log())
            time.sleep(seconds)
            written = server.log()[before:]
        own = rf"\] mainspring:\S+.* {name_of(store)} LOG:  (?:statement|execute \S+): (.{{0,60}})"
        statements = re.findall(own, written)
    assert sum("FROM nodes" in one or "counter, about" in one for one in statements) / seconds > 4, (
        "nodes look at each other"
    )
    assert len(statements) / seconds < IDLE_STATEMENTS, Counter(statements).most_common()


def test_a_node_that_rests_leaves_the_database_alone_until_it_has_work(
    fork_server: ForkServer, tmp_path: Path, postgres_programs: Path
) -> None:
    del postgres_programs
    seconds = 10.0
    with PostgresServer(parent=memory_directory()) as server:
        store = server.create_database()
        with Fleet(fork_server, tmp_path, store, "--rest", "120s", lease=360) as fleet, ExitStack() as stack:
            node = fleet.start("n1")
            worker, client = stack.enter_context(node.worker(b"f")), stack.enter_context(node.extended())
            worker.socket.settimeout(RECEIVE_TIMEOUT)

            def run_one(**options: Any) -> None:
                handle = client.submit_new(b"f", **options)
                job = worker.job()
                assert job.handle == handle
                assert worker.settle_as(job, b"succeeded") == b"recorded"
                worker.ready()

            run_one()
            time.sleep(RECORD_INTERVAL + 2)
            server.set(log_statement="all")
            time.sleep(0.2)
            before = len(server.log())
            time.sleep(seconds)
            written = server.log()[before:]
            own = rf"\] mainspring:\S+.* {name_of(store)} LOG:  (?:statement|execute \S+): (.{{0,60}})"
            statements = re.findall(own, written)
            assert len(statements) < seconds, Counter(statements).most_common()
            for _ in range(3):
                run_one()
            run_one(delay=1.5)
            client.submit_new(b"f")
            job = worker.job()
            running = f"SELECT count(*) FROM mainspring.jobs WHERE state = {State.RUNNING:d}"
            eventually(
                lambda: server.sql(running, name_of(store)).strip() == "1", "the running job is recorded as such"
            )
            assert worker.settle_as(job, b"succeeded") == b"recorded"
            worker.ready()
            client.call("schedules.add", name="often", function="f", every=1.0)
            for _ in range(3):
                assert worker.settle_as(worker.job(), b"succeeded") == b"recorded"
                worker.ready()


def test_a_node_can_log_what_its_tasks_await(fleet: Fleet) -> None:
    node = fleet.start("n1")
    node.log_tasks()
    assert "_watch_the_lease" in node.log_text()
