"""Nodes of a PostgreSQL store that detect each other's ends by their sessions on ZooKeeper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.zookeeper.server import Ensemble

from .fleet import Fleet, FleetNode, ForkServer
from .processes import mainspring
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from pathlib import Path

SESSION = 2.0
"""Seconds after which the ensemble ends the session of a dead node."""
RECEIVE_TIMEOUT = 30.0


@pytest.fixture
def watched(fork_server: ForkServer, tmp_path: Path, database: str, zookeeper: str, chroot: str) -> Iterator[Fleet]:
    """Return a fleet whose nodes are in a cluster."""
    with Fleet(
        fork_server, tmp_path, database, "--cluster", f"zookeeper://{zookeeper}{chroot}", lease=SESSION
    ) as fleet:
        yield fleet


def await_join(*nodes: FleetNode) -> None:
    """Wait until nodes have joined the cluster."""
    for node in nodes:
        eventually(partial(has_joined, node), f"{node.name} has joined the cluster")


def has_joined(node: FleetNode) -> bool:
    return "the cluster detects dead nodes" in node.log_text()


def test_a_dead_nodes_jobs_run_elsewhere_once_its_session_has_ended(watched: Fleet, stack: ExitStack) -> None:
    n1, n2 = watched.start_many("n1", "n2")
    await_join(n1, n2)
    client = stack.enter_context(n1.extended())
    first = stack.enter_context(n1.worker(b"f"))
    handle = client.submit_new(b"f", b"payload")
    assert first.job().handle == handle
    second = stack.enter_context(n2.worker(b"f"))
    second.socket.settimeout(RECEIVE_TIMEOUT)
    n1.kill()
    assert second.job().handle == handle
    eventually(lambda: [row["name"] for row in n2.ask("nodes.list")["items"]] == ["n2"], "n1 is gone")


def test_a_foreground_client_receives_its_result_from_another_node(watched: Fleet, stack: ExitStack) -> None:
    n1, n2 = watched.start_many("n1", "n2")
    await_join(n1, n2)
    worker = stack.enter_context(n2.worker(b"f"))
    client = stack.enter_context(n1.extended())
    client.socket.settimeout(RECEIVE_TIMEOUT)
    handle = client.submit_new(b"f", b"payload", wait=True)
    job = worker.job()
    assert job.handle == handle
    assert worker.settle_as(job, b"succeeded", b"result")
    assert client.result().data == b"result"


def test_without_the_ensemble_the_store_alone_detects_dead_nodes(
    fork_server: ForkServer, tmp_path: Path, database: str, zookeeper_program: str, stack: ExitStack
) -> None:
    with Ensemble(parent=tmp_path) as ensemble:
        url = f"zookeeper://{ensemble.hosts}/cluster"
        with Fleet(fork_server, tmp_path, database, "--cluster", url, lease=SESSION) as fleet:
            n1, n2 = fleet.start_many("n1", "n2")
            await_join(n1, n2)
            ensemble.kill()
            client = stack.enter_context(n1.extended())
            worker = stack.enter_context(n1.worker(b"f"))
            handle = client.submit_new(b"f", b"payload")
            assert worker.job().handle == handle, "jobs go on"
            other = stack.enter_context(n2.worker(b"f"))
            other.socket.settimeout(RECEIVE_TIMEOUT)
            n1.kill()
            assert other.job().handle == handle
            ensemble.start()
            await_join(fleet.start("n3"))
            eventually(lambda: n2.log_text().count("the cluster detects dead nodes") == 2, "n2 has joined again")


def test_a_cluster_is_for_a_store_on_postgresql(tmp_path: Path) -> None:
    order = (
        "serve",
        "--store",
        "sqlite:///jobs.db",
        "--gearman",
        "127.0.0.1:0",
        "--cluster",
        "zookeeper://127.0.0.1:1/x",
    )
    refused = mainspring(*order, cwd=tmp_path)
    assert refused.returncode == 2
    assert b"--cluster needs a store on PostgreSQL" in refused.stderr
