"""Each event becomes one job of a listener, in the order of its job's events, whichever process is killed between the two."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from mainspring import App, Event, current_job
from mainspring.client.blocking import Client
from mainspring.client.environment import parse_servers
from mainspring.client.session import Request
from mainspring.jobs.model import MOST_DEPTH

from .extension import ExtensionPeer
from .fleet import Fleet
from .servers import eventually, serving
from .stores import on_postgresql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .fleet import ForkServer

NUMBER = 400
SECONDS = 1.2
"""The duration of an operation, by its rate."""
ACTIONS = ("cancel", "retry", "cancel")
TYPES = ["job.cancelled", "job.retried", "job.cancelled"]
LEASE = 2.0
LISTENER = {"name": "tell", "types": ["job.cancelled", "job.retried"], "functions": ["f"]}


class Deliveries:
    """The deliveries that a worker has had."""

    def __init__(self) -> None:
        self.of: dict[str, dict[int, set[bytes]]] = defaultdict(lambda: defaultdict(set))
        """By the job that the events are about, and by the number of the event: the jobs that have delivered it."""
        self.types: dict[int, str] = {}
        self.order: dict[str, list[int]] = defaultdict(list)
        """The numbers of the events about a job, in the order of their first deliveries."""
        self.settled: set[int] = set()

    def take(self, port: int, most: int) -> None:
        """Run deliveries until so many events are settled, or the node ends."""
        peer = ExtensionPeer(port)
        try:
            peer.extend()
            peer.register(b"tell")
            while len(self.settled) < most:
                peer.ready()
                job = peer.job()
                (event,) = json.loads(job.payload)
                number = int(event["id"])
                self.types[number] = event["type"]
                if number not in self.of[event["job"]]:
                    self.order[event["job"]].append(number)
                self.of[event["job"]][number].add(job.handle)
                if peer.settle_as(job, b"succeeded") == b"recorded":
                    self.settled.add(number)
        finally:
            peer.close()

    def check(self) -> None:
        """Assert that each job had all of its events, each by one delivery, in their order."""
        assert len(self.of) == NUMBER
        for job, delivered in self.of.items():
            assert all(len(handles) == 1 for handles in delivered.values()), "an event was delivered twice"
            assert self.order[job] == sorted(self.order[job]), "events of a job have swapped"
            assert [self.types[number] for number in self.order[job]] == TYPES


class Node:
    """A client of a node."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.client = Client(parse_servers(f"127.0.0.1:{port}"))

    def declare(self) -> None:
        answer = self.client.call("listeners.declare", {"app": "a", "listeners": [LISTENER], "functions": ["tell"]})
        assert answer["governs"]

    def submit(self) -> None:
        request = Request(b"f", b"", b"", b"")
        assert sum(map(len, self.client.submit_many([request] * NUMBER))) == NUMBER

    def start(self, action: str) -> str:
        params = {"action": action, "filter": {"function": "f"}, "rate": NUMBER / SECONDS}
        name: str = self.client.call("operations.start", params)["id"]
        return name

    def show(self, name: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.client.call("operations.show", {"id": name})
        return shown

    def under_way(self, name: str, share: float) -> None:
        eventually(lambda: self.show(name)["done"] > NUMBER * share, "the operation is under way")

    def ended(self, name: str) -> None:
        eventually(lambda: self.show(name)["state"] != "running", "the operation ends", 60)
        assert self.show(name)["done"] == NUMBER

    def listener(self) -> dict[str, Any]:
        shown: dict[str, Any] = self.client.call("listeners.show", {"name": "tell"})
        return shown


def disturbed(first: Callable[[], Node], after_kill: Callable[[], Node], share: float) -> Deliveries:
    """Cause events, and kill a node in the middle of each operation and of the deliveries; return the deliveries."""
    node = first()
    node.declare()
    node.submit()
    for action in ACTIONS:
        name = node.start(action)
        node.under_way(name, share)
        node.client.close()
        node = after_kill()
        node.ended(name)
    deliveries = Deliveries()
    deliveries.take(node.port, int(NUMBER * share))
    node.client.close()
    node = after_kill()
    eventually(lambda: node.listener()["behind"] == 0, "all events are deliveries")
    deliveries.take(node.port, NUMBER * len(ACTIONS))
    node.client.close()
    deliveries.check()
    return deliveries


@pytest.mark.parametrize("share", [0.05, 0.35, 0.7])
def test_a_killed_node_on_sqlite_delivers_each_event_once(tmp_path: Path, share: float) -> None:
    with contextlib.ExitStack() as stack:
        servers: list[Any] = []

        def start() -> Node:
            if servers:
                servers[-1].kill()
            servers.append(stack.enter_context(serving(tmp_path)))
            return Node(servers[-1].port)

        disturbed(start, start, share)


@pytest.mark.parametrize("share", [0.35])
def test_the_other_node_delivers_events_of_a_killed_one_once(
    fork_server: ForkServer, tmp_path: Path, request: pytest.FixtureRequest, share: float
) -> None:
    with on_postgresql(request.getfixturevalue) as store, Fleet(fork_server, tmp_path, store.url, lease=LEASE) as fleet:
        fleet.start_many("n1", "n2")

        def begin() -> Node:
            return Node(fleet.live_nodes()[0].port)

        def kill() -> Node:
            fleet.live_nodes()[0].kill()
            fleet.start(f"n{len(fleet.nodes) + 1}")
            return begin()

        disturbed(begin, kill, share)


# ---- submits in transactions of users ----


@contextlib.contextmanager
def working(app: App, port: int) -> Iterator[None]:
    """Run a worker of an App in a thread, and declare its listeners."""
    before = app.connect_to(f"127.0.0.1:{port}")
    loop = asyncio.new_event_loop()
    worker = app.worker()

    def work() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(worker.run())

    thread = threading.Thread(target=work)
    thread.start()
    client = Client(parse_servers(f"127.0.0.1:{port}"))
    try:
        client.call("listeners.declare", {**app.listeners.params("a"), "functions": app.registry.names()})
        yield
    finally:
        client.close()
        loop.call_soon_threadsafe(worker.stop)
        thread.join()
        loop.close()
        app.close()
        app.connect_to(before)


def test_a_circle_of_submits_in_transactions_ends(tmp_path: Path, database: str) -> None:
    app = App()
    depths: list[int] = []

    @app.task
    def fails() -> None:
        raise ValueError("no")

    @app.on("job.failed", function="fails")
    def tell(event: Event) -> None:
        depths.append(current_job().depth)
        with psycopg.connect(database) as connection:
            fails.options(connection=connection).submit()

    with serving(tmp_path, store=database) as server, working(app, server.port):
        with psycopg.connect(database) as connection:
            fails.options(connection=connection).submit()
            connection.rollback()
            fails.options(connection=connection).submit()
        eventually(lambda: "in a circle" in server.log_text(), "the circle ends")
        assert depths == list(range(1, MOST_DEPTH + 1)), "the submit that was rolled back has no event"
