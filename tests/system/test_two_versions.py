"""Nodes, workers and clients of the last version beside those of this one.

The last version has no namespaces, tags, logs, kept arguments, records of attempts, operations and tokens.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.upgrades.old import with_source

from mainspring import App, ServerError
from mainspring.api.handlers.pages import rfc3339
from mainspring.clock import to_us

from . import processes
from .fleet import Fleet, ForkServer
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from .extension import ExtensionPeer
    from .fleet import FleetNode
    from .processes import Node
    from .stores import Store

pytestmark = pytest.mark.usefixtures("migrations")


class Pair:
    """A node of each version, on one database."""

    def __init__(self, fleet: Fleet, last: ForkServer, stack: ExitStack) -> None:
        self._fleet = fleet
        self._stack = stack
        self._versions = {"old": last, "new": fleet.fork_server}
        self.old = self.start("old")
        self.new = self.start("new")

    def start(self, version: str) -> FleetNode:
        """Start a node of a version."""
        self._fleet.fork_server = self._versions[version]
        return self._fleet.start(version)

    def worker(self, node: FleetNode, *functions: bytes, namespace: str = "", places: int = 1) -> ExtensionPeer:
        """Connect a worker."""
        worker = self.client(node, namespace)
        for function in functions:
            worker.register(function)
        worker.ready(places)
        return worker

    def client(self, node: FleetNode, namespace: str = "") -> ExtensionPeer:
        """Connect a client."""
        client: ExtensionPeer = self._stack.enter_context(node.extended())
        if namespace:
            client.option(b"namespace=" + namespace.encode())
        return client


@pytest.fixture
def pair(fork_server: ForkServer, last: ForkServer, tmp_path: Path, store: Store, stack: ExitStack) -> Pair:
    return Pair(stack.enter_context(Fleet(fork_server, tmp_path, store.url)), last, stack)


def end_all(worker: ExtensionPeer, number: int) -> list[bytes]:
    """Run jobs, and return their handles."""
    handles = []
    for _ in range(number):
        job = worker.job()
        assert worker.settle_as(job, b"succeeded", job.payload) == b"recorded"
        worker.ready()
        handles.append(job.handle)
    return handles


def test_an_old_node_keeps_the_jobs_of_namespaces_and_runs_none(pair: Pair) -> None:
    of_team, new, old = pair.client(pair.new, "team"), pair.client(pair.new), pair.client(pair.old)
    team = {of_team.submit_new(b"f", b"team", b"u%d" % number) for number in range(3)}
    default = {client.submit_new(b"f", b"default", unique) for client, unique in ((new, b"u0"), (old, b"u1"))}
    old_worker = pair.worker(pair.old, b"f")
    assert set(end_all(old_worker, 2)) == default
    assert handles_of(old.call("jobs.list", function="f")) == default
    of_team.call("schedules.add", name="once", function="f", at=rfc3339(to_us(time.time() + 1)))

    pair.worker(pair.new, b"f", namespace="team").job()
    pair.new.kill()
    eventually(lambda: old.call("schedules.list")["schedules"][0]["last_at"], "the old node fires the schedule")
    pair.new = pair.start("new")
    of_team = pair.client(pair.new, "team")
    ended = end_all(pair.worker(pair.new, b"f", namespace="team"), 4)
    (fired,) = set(ended) - team
    assert len(set(ended)) == 4, "each has run once"
    (run,) = of_team.call("schedules.history", name="once")["items"]
    assert run["handle"] == fired.decode()
    listed = of_team.call("jobs.list", function="f")
    assert handles_of(listed) == set(ended)
    assert {job["state"] for job in listed["items"]} == {"succeeded"}
    old_worker.assert_silent()


def handles_of(listed: dict[str, Any]) -> set[bytes]:
    """Return the handles of listed jobs."""
    return {job["handle"].encode() for job in listed.get("items") or listed["jobs"]}


def test_jobs_remember_what_nodes_of_this_version_have_seen(pair: Pair) -> None:
    new, old = pair.client(pair.new), pair.client(pair.old)
    courses = {
        b"new": ((pair.new, pair.new), [(1, "failed", "new"), (2, "succeeded", "new")]),
        b"old at the end": ((pair.new, pair.old), [(2, "succeeded", "old")]),
        b"old at first": ((pair.old, pair.new), [(2, "succeeded", "new")]),
    }
    for function, (nodes, expected) in courses.items():
        handle, lines = run_twice(pair, function, nodes)
        attempts = new.call("jobs.attempts", handle=handle)["attempts"]
        assert [(one["number"], one["outcome"], one["node"]) for one in attempts] == expected
        assert lines == [f"attempt {number}" for number, node in enumerate(nodes, 1) if node is pair.new]
        assert new.call("jobs.arguments", handle=handle)["kept"] == (nodes[1] is pair.new)
        assert old.call("jobs.show", handle=handle)["state"] == "succeeded"
    tagged = new.call("jobs.list", tag="seen")
    assert [job["function"].encode() for job in tagged["items"]] == list(reversed(courses))


def run_twice(pair: Pair, function: bytes, nodes: Sequence[FleetNode]) -> tuple[str, list[str]]:
    """Submit a job with a tag whose first attempt fails, run it at two nodes, and return its handle and the lines of its log."""
    client = pair.client(pair.new)
    retry = {"max_attempts": 2, "initial": 0.001}
    handle = client.submit_new(function, b'{"x": 1}', tags=["seen"], retry=retry).decode()
    for node, outcome in zip(nodes, (b"failed", b"succeeded"), strict=True):
        with node.worker(function) as worker:
            job = worker.job()
            assert (job.handle.decode(), job.payload) == (handle, b'{"x": 1}')
            if node is pair.new:
                worker.log(job, 1, f"attempt {job.info['attempt']}")
            assert worker.settle_as(job, outcome, error={"type": "E", "message": "no"}) == b"recorded"

    def lines() -> list[str]:
        return [line["message"] for line in client.call("jobs.logs", handle=handle)["items"]]

    eventually(lambda: len(lines()) >= nodes.count(pair.new), "the lines are stored")
    return handle, lines()


def test_operations_change_jobs_at_nodes_of_both_versions(pair: Pair) -> None:
    new, old = pair.client(pair.new), pair.client(pair.old)
    running = {client.submit_new(b"f") for client in (old, new)}
    workers = [pair.worker(node, b"f") for node in (pair.old, pair.new)]
    jobs = [worker.job() for worker in workers]
    assert {job.handle for job in jobs} == running
    waiting = {client.submit_new(b"f") for client in (old, new) for _ in range(3)}
    dead = old.submit_new(b"dead")
    with pair.old.worker(b"dead") as worker:
        assert worker.settle_as(worker.job(), b"failed", error={"type": "E", "message": "no"}) == b"recorded"

    def run(action: str, **filters: str) -> dict[str, int]:
        operation = new.call("operations.start", action=action, filter=filters)["id"]
        eventually(lambda: new.call("operations.show", id=operation)["state"] != "running", "the operation ends")
        outcomes: dict[str, int] = new.call("operations.show", id=operation)["outcomes"]
        return outcomes

    assert run("cancel", function="f") == {"cancelled": 6, "stopping": 2}
    for worker, job in zip(workers, jobs, strict=True):
        assert worker.await_stop() == (job.handle, job.token, b"cancelled")
        assert worker.settle_as(job, b"cancelled") == b"recorded"
    assert (run("retry", state="cancelled"), run("retry", state="failed")) == ({"retried": 8}, {"retried": 1})
    at_old, at_new = pair.worker(pair.old, b"f"), pair.worker(pair.new, b"dead")
    assert sorted(end_all(at_old, 8)) == sorted(running | waiting)
    assert end_all(at_new, 1) == [dead]


APP = """
import logging

from mainspring import App, current_job

app = App()

@app.task
def chat() -> str:
    logging.getLogger("shop").warning("by logging")
    job = current_job()
    if hasattr(job, "log"):
        job.log.info("by its log")
        job.progress(1, 2, "half")
    else:
        job.progress(1, 2)
    return "done"
"""


@pytest.fixture
def server(request: pytest.FixtureRequest, last_source: Path, tmp_path: Path) -> Iterator[tuple[Node, Path]]:
    """Run a node of one version with a worker of the other; return the node, and the log of the worker."""
    (tmp_path / "app.py").write_text(APP)
    old: dict[str, Any] = with_source(last_source, {})
    of_node, of_worker = (old, {}) if request.param == "old node" else ({}, old)
    with (
        processes.node("serve", "--gearman", "127.0.0.1:0", "--store", "memory://", cwd=tmp_path, **of_node) as server,
        processes.node("worker", "app.py", "--server", server.address, cwd=tmp_path, faces=(), **of_worker) as worker,
    ):
        yield server, worker.log


@pytest.mark.parametrize("server", ["old node"], indirect=True)
def test_a_new_worker_and_clients_at_an_old_node_say_that_it_needs_an_update(server: tuple[Node, Path]) -> None:
    running, log = server
    with (
        contextlib.closing(App(running.address)) as app,
        pytest.raises(ServerError, match="earlier version of Mainspring, update it: this one speaks mainspring/2"),
    ):
        app.function("chat").submit()
    eventually(lambda: "this one speaks mainspring/2" in log.read_text(), "the worker says why it does not start")


@pytest.mark.parametrize("server", ["new node"], indirect=True)
def test_an_old_worker_at_a_new_node_shows_which_version_it_needs(server: tuple[Node, Path]) -> None:
    running, log = server
    eventually(lambda: "this node speaks mainspring/2" in log.read_text(), "the worker shows the refusal")
    with contextlib.closing(App(running.address)) as app:
        job = app.function("chat").submit()
        assert app.connections.blocking().call("jobs.show", {"handle": job.handle})["state"] == "pending"
