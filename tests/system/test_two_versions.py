"""Nodes, workers and clients of the last version beside those of this one."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.upgrades.old import with_source

from mainspring import App
from mainspring.api.handlers.pages import rfc3339
from mainspring.client.inside import waiter
from mainspring.clock import to_us
from mainspring.errors import RefusedError

from . import processes
from .fleet import Fleet, ForkServer
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from .extension import ExtensionPeer
    from .fleet import FleetNode
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

    def launch(self, version: str) -> FleetNode:
        """Start a node of a version without waiting."""
        self._fleet.fork_server = self._versions[version]
        return self._fleet.launch(version)


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


def test_nodes_of_both_versions_run_the_jobs_of_a_namespace_and_fire_its_schedules(pair: Pair) -> None:
    of_team = {name: pair.client(node, "team") for name, node in (("old", pair.old), ("new", pair.new))}
    team = {
        of_team[name].submit_new(b"f", b"team", b"u%d" % number) for number, name in enumerate(("old", "new", "new"))
    }
    clients = ((pair.client(pair.new), b"u0"), (pair.client(pair.old), b"u1"))
    default = {client.submit_new(b"f", b"default", unique) for client, unique in clients}
    assert set(end_all(pair.worker(pair.old, b"f"), 2)) == default
    of_team["new"].call("schedules.add", name="once", function="f", at=rfc3339(to_us(time.time() + 1)))

    pair.worker(pair.new, b"f", namespace="team").job()
    pair.new.kill()

    def fired() -> bool:
        return bool(of_team["old"].call("schedules.history", name="once")["items"])

    eventually(fired, "the old node fires the schedule")
    pair.new = pair.start("new")
    at_new = pair.client(pair.new, "team")
    old_worker = pair.worker(pair.old, b"f", namespace="team")
    job = old_worker.job()
    assert old_worker.settle_as(job, b"succeeded", job.payload) == b"recorded"
    ended = [job.handle, *end_all(pair.worker(pair.new, b"f", namespace="team"), 3)]
    (of_schedule,) = set(ended) - team
    assert len(set(ended)) == 4, "each has run once"
    for client in (of_team["old"], at_new):
        (run,) = client.call("schedules.history", name="once")["items"]
        assert run["handle"] == of_schedule.decode()
        listed = client.call("jobs.list", function="f")["items"]
        assert {job["handle"].encode() for job in listed} == set(ended)
        assert {job["state"] for job in listed} == {"succeeded"}


def test_jobs_remember_what_nodes_of_both_versions_have_seen(pair: Pair) -> None:
    new, old = pair.client(pair.new), pair.client(pair.old)
    courses = {
        b"new": ("new", "new"),
        b"old at the end": ("new", "old"),
        b"old at first": ("old", "new"),
    }
    nodes = {"old": pair.old, "new": pair.new}
    for function, names in courses.items():
        handle, lines = run_twice(pair, function, [nodes[name] for name in names])
        assert lines == ["attempt 1", "attempt 2"]
        for client in (new, old):
            attempts = client.call("jobs.attempts", handle=handle)["attempts"]
            found = [(one["number"], one["outcome"], one["node"]) for one in attempts]
            assert found == [(1, "failed", names[0]), (2, "succeeded", names[1])]
            assert client.call("jobs.arguments", handle=handle)["kept"]
            assert client.call("jobs.show", handle=handle)["state"] == "succeeded"
    for client in (new, old):
        tagged = client.call("jobs.list", tag="seen")["items"]
        assert [job["function"].encode() for job in tagged] == list(reversed(courses))


def run_twice(pair: Pair, function: bytes, nodes: Sequence[FleetNode]) -> tuple[str, list[str]]:
    """Submit a job with a tag whose first attempt fails, run it at two nodes, and return its handle and the lines of its log."""
    client = pair.client(pair.new)
    retry = {"max_attempts": 2, "initial": 0.001}
    handle = client.submit_new(function, b'{"x": 1}', tags=["seen"], retry=retry).decode()
    for node, outcome in zip(nodes, (b"failed", b"succeeded"), strict=True):
        with node.worker(function) as worker:
            job = worker.job()
            assert (job.handle.decode(), job.payload) == (handle, b'{"x": 1}')
            worker.log(job, 1, f"attempt {job.info['attempt']}")
            assert worker.settle_as(job, outcome, error={"type": "E", "message": "no"}) == b"recorded"

    def lines() -> list[str]:
        return [line["message"] for line in client.call("jobs.logs", handle=handle)["items"]]

    eventually(lambda: len(lines()) >= len(nodes), "the lines are stored")
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
    job.log.info("by its log")
    job.progress(1, 2, "half")
    return "done"
"""


@pytest.mark.parametrize("which", ["old node", "new node"])
def test_a_worker_and_clients_of_one_version_at_a_node_of_the_other(
    last_source: Path, tmp_path: Path, which: str
) -> None:
    (tmp_path / "app.py").write_text(APP)
    old: dict[str, Any] = with_source(last_source, {})
    of_node, of_others = (old, {}) if which == "old node" else ({}, old)
    with (
        processes.node("serve", "--gearman", "127.0.0.1:0", "--store", "memory://", cwd=tmp_path, **of_node) as server,
        processes.node("worker", "app.py", "--server", server.address, cwd=tmp_path, faces=(), **of_others),
    ):
        to_server = ("--server", server.address)
        done = json.loads(
            processes.mainspring("submit", "chat", "--json", *to_server, cwd=tmp_path, **of_others).stdout
        )
        assert done["result"] == "done"
        shown = processes.mainspring("jobs", "show", done["handle"], "--json", *to_server, cwd=tmp_path, **of_others)
        assert json.loads(shown.stdout)["state"] == "succeeded"
        with contextlib.closing(App(server.address)) as app:
            texts = [line.message for line in app.job(done["handle"]).follow()]
        assert texts == ["by logging", "by its log"]


class Delivered:
    """The job of a delivery, in which code makes requests."""

    loop = None
    depth = 3

    def waits(self, awaited: object) -> None:
        """Do nothing."""

    def continues(self, awaited: object) -> None:
        """Do nothing."""


LISTENING = (
    APP
    + """
@app.on("job.failed", function="chat")
def tell(event: Event) -> None: ...

@app.scheduled(every="1h")
def hourly() -> None: ...
""".replace("import App,", "import App, Event,")
)


def test_an_old_node_takes_what_code_of_listeners_requests_and_refuses_what_it_does_not_know(
    last_source: Path, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(LISTENING.replace("import App, current_job", "import App, Event, current_job"))
    old: dict[str, Any] = with_source(last_source, {})
    with (
        processes.node("serve", "--gearman", "127.0.0.1:0", "--store", "memory://", cwd=tmp_path, **old) as server,
        processes.node("worker", "app.py", "--server", server.address, cwd=tmp_path, faces=()) as worker,
        contextlib.closing(App(server.address)) as app,
    ):
        chat = app.function("chat")
        token = waiter.set(Delivered())
        try:
            jobs = [chat.submit(), *chat.submit_many([()] * 3)]
            assert app.job(jobs[0].handle).info()["function"] == "chat"
        finally:
            waiter.reset(token)
        assert [job.result(30) for job in jobs] == [b'"done"'] * 4
        worker.await_log("the listeners were refused")
        assert [one.name for one in app.schedules.list()] == ["hourly"]
        with pytest.raises(RefusedError, match=r"`deadline`.*earlier version"):
            chat.options(deadline=60).submit()


def test_an_old_node_loses_no_delivery_and_no_deadline(pair: Pair) -> None:
    new = pair.client(pair.new)
    retry = {"max_attempts": 9, "initial": 0.001}
    listener = {"name": "tell", "types": ["job.failed"], "functions": ["f"], "retry": retry}
    late = {"name": "late", "types": ["job.overdue"], "functions": ["g"]}
    assert new.call("listeners.declare", app="a", listeners=[listener, late], functions=["tell", "late"])["governs"]
    with pair.new.worker(b"f") as worker:
        new.submit_new(b"f")
        assert worker.settle_as(worker.job(), b"failed", error={"type": "E", "message": "no"}) == b"recorded"
    overdue = new.submit_new(b"g", deadline=0.5)
    with pair.old.worker(b"tell") as at_old, pair.old.worker(b"g") as holder:
        delivery, held = at_old.job(), holder.job()
        assert held.handle == overdue
        assert at_old.settle_as(delivery, b"failed", error={"type": "E", "message": "no"}) == b"recorded"
        with pair.new.worker(b"late") as worker:
            report = worker.job()
            (event,) = json.loads(report.payload)
            assert (event["type"], event["job"].encode()) == ("job.overdue", overdue)
            assert worker.settle_as(report, b"succeeded") == b"recorded"
        assert holder.settle_as(held, b"succeeded") == b"recorded"
    with pair.new.worker(b"tell") as worker:
        repeated = worker.job()
        assert (repeated.handle, repeated.info["attempt"], repeated.info["depth"]) == (delivery.handle, 2, 1)
        pair.new.kill()
    with pair.old.worker(b"tell") as at_old:
        recovered = at_old.job()
        assert recovered.handle == delivery.handle
        assert at_old.settle_as(recovered, b"failed", error={"type": "E", "message": "no"}) == b"recorded"
    pair.new = pair.start("new")
    with pair.new.worker(b"tell") as worker:
        repeated = worker.job()
        assert (repeated.handle, repeated.info["depth"], repeated.payload) == (delivery.handle, 1, delivery.payload)
        assert worker.settle_as(repeated, b"succeeded") == b"recorded"
    new = pair.client(pair.new)
    for name in ("tell", "late"):
        shown = new.call("listeners.show", name=name)
        assert (shown["behind"], shown["failures"]) == (0, 0)
    assert '"level": "error"' not in pair.old.log_text()
    assert "Traceback" not in pair.old.log_text()


FLOW = """
from mainspring import App

app = App()

@app.task
def double(number: int) -> int:
    return 2 * number

@app.workflow
async def order(number: int) -> int:
    return await double.submit(number)
"""


def test_workflows_wait_for_the_end_of_all_nodes_of_the_last_version_and_shut_them_out(
    pair: Pair, tmp_path: Path
) -> None:
    """A node of the last version would run activities and drop their ends."""
    (tmp_path / "app.py").write_text(FLOW)
    with processes.node("worker", "app.py", "--server", pair.new.address, cwd=tmp_path, faces=()):
        waits = "workflows wait for the end of nodes of an earlier version"
        eventually(lambda: waits in pair.new.log_text(), "the new node waits")
        pair.old.kill()
        pair.old = pair.start("old")
        job = pair.client(pair.old).submit_new(b"f", b"", b"u")
        assert end_all(pair.worker(pair.old, b"f"), 1) == [job], "the old node goes on meanwhile"
        root = pair.client(pair.new).submit_new(b"order", b"[21]", b"order-21")
        assert pair.new.ask("workflows.versions")["items"] == []

        pair.old.freeze()
        done = pair.client(pair.new)

        def state() -> str:
            return str(done.call("jobs.show", handle=root.decode())["state"])

        eventually(lambda: state() == "succeeded", "the run begins once the old node is dead, and ends")
        pair.old.thaw()
        eventually(lambda: "the store has workflows" in pair.old.log_text(), "the old node is not let in again")
        (only,) = pair.new.ask("nodes.list")["items"]
        assert only["name"] == "new"
    pair.old.kill()
    refused = pair.launch("old")
    eventually(lambda: not refused.is_alive, "it does not start")
    assert "needs version 24, but this one has version 22" in refused.log_text()
