"""An operation on many jobs goes on after `SIGKILL`, and gives each job its turn once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.client.blocking import Client
from mainspring.client.environment import parse_servers
from mainspring.client.session import Request

from .fleet import Fleet
from .servers import eventually, serving
from .stores import on_postgresql

if TYPE_CHECKING:
    from pathlib import Path

    from .fleet import ForkServer

NUMBER = 2_000
LONG_NUMBER = 100_000
SECONDS = 1.5
"""The duration of a short operation, by its rate."""
LEASE = 2.0


class Node:
    """A node with jobs that have ended without success."""

    def __init__(self, address: str) -> None:
        self.client = Client(parse_servers(address))

    def prepare(self, number: int) -> None:
        """Submit jobs, and cancel them in an operation."""
        request = Request(b"f", b"", b"", b"payload")
        assert sum(map(len, self.client.submit_many([request] * number))) == number
        assert self.ended(self.start("cancel"))["outcomes"] == {"cancelled": number}

    def start(self, action: str, **more: Any) -> str:
        started = self.client.call("operations.start", {"action": action, "filter": {"function": "f"}} | more)
        name: str = started["id"]
        return name

    def show(self, name: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.client.call("operations.show", {"id": name})
        return shown

    def ended(self, name: str, timeout: float = 60.0) -> dict[str, Any]:
        eventually(lambda: self.show(name)["state"] != "running", "the operation ends", timeout)
        return self.show(name)

    def handles(self, name: str) -> list[str]:
        """Return the jobs of an operation, in the order of their turns."""
        handles: list[str] = []
        params = {"id": name}
        while True:
            page = self.client.call("operations.jobs", params)
            handles += [job["handle"] for job in page["items"]]
            if page["next"] is None:
                return handles
            params["cursor"] = page["next"]

    def check(self, name: str, number: int, timeout: float = 60.0) -> None:
        """Assert that an operation of another process ends, and has retried each job once."""
        assert self.ended(name, timeout)["outcomes"] == {"retried": number}
        handles = self.handles(name)
        assert len(handles) == len(set(handles)) == number
        eventually(lambda: self.waiting() == number, "all jobs wait")

    def waiting(self) -> int:
        waiting: int = self.client.call("functions.show", {"function": "f"})["waiting"]
        return waiting

    def under_way(self, name: str, number: int) -> None:
        """Wait until an operation is under way."""
        eventually(lambda: self.show(name)["done"] > number / 10, "the operation is under way")
        shown = self.show(name)
        assert shown["state"] == "running", "it was too fast to be killed"
        assert shown["done"] < number


def survive(directory: Path, number: int, **more: Any) -> None:
    """Kill a node on SQLite in the middle of an operation, and start the next one."""
    with serving(directory) as server:
        node = Node(f"127.0.0.1:{server.port}")
        node.prepare(number)
        name = node.start("retry", **more)
        node.under_way(name, number)
        server.kill()
        node.client.close()
    with serving(directory) as server:
        node = Node(f"127.0.0.1:{server.port}")
        node.check(name, number)
        node.client.close()


def take_over(fleet: Fleet, number: int, **more: Any) -> None:
    """Kill a node of two in the middle of an operation: the other one goes on."""
    first, second = fleet.start_many("n1", "n2")
    node, other = Node(first.address), Node(second.address)
    node.prepare(number)
    name = node.start("retry", **more)
    other.under_way(name, number)
    first.kill()
    other.check(name, number)
    for one in (node, other):
        one.client.close()


def test_the_next_process_goes_on(tmp_path: Path) -> None:
    survive(tmp_path, NUMBER, rate=NUMBER / SECONDS)


def test_the_next_live_node_goes_on(fork_server: ForkServer, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with on_postgresql(request.getfixturevalue) as store, Fleet(fork_server, tmp_path, store.url, lease=LEASE) as fleet:
        take_over(fleet, NUMBER, rate=NUMBER / SECONDS)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_next_process_goes_on_with_many_jobs(tmp_path: Path) -> None:
    survive(tmp_path, LONG_NUMBER)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_next_live_node_goes_on_with_many_jobs(
    fork_server: ForkServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with on_postgresql(request.getfixturevalue) as store, Fleet(fork_server, tmp_path, store.url, lease=LEASE) as fleet:
        take_over(fleet, LONG_NUMBER)
