"""Webhooks of whole nodes: receivers that are away, slow or gone, nodes that are killed or stopped, and refused addresses."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.client.blocking import Client
from mainspring.client.environment import parse_servers
from mainspring.client.session import Request
from mainspring.errors import UsageError

from .fleet import Fleet
from .servers import eventually, serving
from .stores import on_postgresql
from .webhook_receivers import Receiver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .fleet import ForkServer

ALLOWED = ("--webhook-allow", "127.0.0.1")
NUMBER = 40
ACTIONS = ("cancel", "retry", "cancel")
TYPES = ["job.cancelled", "job.retried", "job.cancelled"]
LEASE = 2.0
LONG_AGO = "2020-01-01T00:00:00Z"


class Node:
    """A client of a node."""

    def __init__(self, port: int) -> None:
        self.client = Client(parse_servers(f"127.0.0.1:{port}"))

    def call(self, request: str, /, **params: Any) -> Any:
        return self.client.call(request, params)

    def add(self, receiver: Receiver, name: str = "crm", **params: Any) -> Any:
        """Add a webhook of a receiver."""
        given = {"name": name, "url": receiver.url, "types": ["job.*"], "functions": ["f"], **params}
        added = self.call("webhooks.add", **given)
        receiver.secret = added["secret"]
        return added

    def submit(self, number: int = NUMBER) -> None:
        assert sum(map(len, self.client.submit_many([Request(b"f", b"", b"", b"")] * number))) == number

    def operate(self, action: str, function: str, **more: Any) -> None:
        """Run an operation on all jobs of a function."""
        name = self.call("operations.start", action=action, filter={"function": function}, **more)["id"]
        eventually(lambda: self.call("operations.show", id=name)["state"] != "running", "the operation ends", 60)

    def deliveries(self, name: str = "crm", **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("jobs.list", function=f"webhook:{name}", limit=1000, **more)["items"]
        return found

    def cancels_one(self) -> None:
        """Cause the event of a cancelled job."""
        self.submit(1)
        self.operate("cancel", "f")


@contextlib.contextmanager
def one_node(directory: Path, *options: str) -> Iterator[Node]:
    with serving(directory, *options) as server:
        node = Node(server.port)
        try:
            yield node
        finally:
            node.client.close()
        server.assert_healthy()


def away(first: Callable[[], Node], after_kill: Callable[[], Node]) -> None:
    """Cause events for a receiver that is away, kill nodes twice, and let it come back."""
    with Receiver() as receiver:
        node = first()
        node.add(receiver)
        receiver.leave()
        node.submit()
        for action in ACTIONS[:2]:
            node.operate(action, "f")
            node.client.close()
            node = after_kill()
        node.operate(ACTIONS[2], "f")
        receiver.come()

        def has_all() -> bool:
            # The delays between attempts are those of the standard: an operator lets the deliveries run now.
            node.operate("reschedule", "webhook:crm", run_at=LONG_AGO)
            return len(receiver.numbers()) == NUMBER * len(ACTIONS)

        eventually(has_all, "the receiver has all events", 90)
        eventually(lambda: not node.deliveries(state=["pending", "scheduled", "leased", "running"]), "all are settled")
        assert {one["state"] for one in node.deliveries()} == {"succeeded"}
        assert len(node.deliveries()) == NUMBER * len(ACTIONS), "each event is one job"
        found = receiver.by_job()
        assert len(found) == NUMBER
        for messages in found.values():
            assert messages == sorted(messages), "events of a job have swapped"
            assert [kind for _, kind in messages] == TYPES
        assert receiver.forged == []
        node.client.close()


def test_a_receiver_that_was_away_gets_each_event_of_a_node_that_was_killed_twice(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        servers: list[Any] = []

        def start() -> Node:
            if servers:
                servers[-1].kill()
            servers.append(stack.enter_context(serving(tmp_path, *ALLOWED)))
            return Node(servers[-1].port)

        away(start, start)


def test_a_receiver_that_was_away_gets_each_event_of_a_fleet_whose_nodes_are_killed(
    fork_server: ForkServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with (
        on_postgresql(request.getfixturevalue) as store,
        Fleet(fork_server, tmp_path, store.url, *ALLOWED, lease=LEASE) as fleet,
    ):
        fleet.start_many("n1", "n2")

        def begin() -> Node:
            return Node(fleet.live_nodes()[0].port)

        def kill() -> Node:
            fleet.live_nodes()[0].kill()
            fleet.start(f"n{len(fleet.nodes) + 1}")
            return begin()

        away(begin, kill)


def test_a_stopping_node_finishes_the_attempts_under_way(tmp_path: Path) -> None:
    with Receiver() as receiver:
        with serving(tmp_path, *ALLOWED) as server:
            node = Node(server.port)
            node.add(receiver)
            receiver.held.clear()
            node.cancels_one()
            assert receiver.arrived.wait(20)
            node.client.close()
            server.signal(signal.SIGTERM)
            eventually(lambda: "stopping" in server.log_text(), "the node stops")
            receiver.held.set()
            assert server.wait() == 0
        with one_node(tmp_path, *ALLOWED) as node:
            ((delivery),) = node.deliveries()
            assert (delivery["state"], delivery["attempt"]) == ("succeeded", 1)
        assert len(receiver.messages) == 1


def test_a_receiver_that_is_gone_pauses_its_webhook_and_tells_others(tmp_path: Path) -> None:
    with Receiver(410) as gone, Receiver() as other, one_node(tmp_path, *ALLOWED) as node:
        node.add(other, "other", types=["webhook.*"], functions=[])
        node.add(gone)
        node.cancels_one()
        eventually(lambda: node.call("webhooks.show", name="crm")["state"] == "paused", "the webhook is paused")
        assert node.call("webhooks.show", name="crm")["paused"] == "the receiver answered 410: it is gone"
        eventually(lambda: other.messages, "the other webhook gets the event")
        ((_, message),) = other.messages
        assert (message["type"], message["data"]["subject"]) == ("webhook.paused", "crm")
        node.cancels_one()
        node.call("webhooks.test", name="other")
        assert len(gone.messages) == 1


def test_two_namespaces_have_webhooks_of_the_same_name(tmp_path: Path) -> None:
    with Receiver() as first, Receiver() as second, one_node(tmp_path, *ALLOWED) as node:
        node.add(first)
        node.add(second, namespace="team")
        node.cancels_one()
        eventually(lambda: first.messages, "the webhook of the namespace gets the event")
        tested = node.call("webhooks.test", name="crm", namespace="team")
        assert tested["status"] == 204
        assert [message["type"] for _, message in second.messages] == ["webhook.test"]
        assert {message["data"]["namespace"] for _, message in first.messages} == {"default"}


def test_a_removed_webhook_leaves_no_job_that_waits(tmp_path: Path) -> None:
    with Receiver(500) as receiver, one_node(tmp_path, *ALLOWED) as node:
        node.add(receiver)
        node.cancels_one()
        eventually(lambda: [one["state"] for one in node.deliveries()] == ["scheduled"], "the first attempt has failed")
        node.call("webhooks.remove", name="crm")
        eventually(lambda: [one["state"] for one in node.deliveries()] == ["cancelled"], "its delivery is cancelled")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1234/",
        "http://localhost:1234/",
        "http://[::ffff:127.0.0.1]:1234/",
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/",
        "http://0x7f.1/",
    ],
)
def test_an_inner_address_is_refused_when_a_webhook_is_added(tmp_path: Path, url: str) -> None:
    with one_node(tmp_path) as node, pytest.raises(UsageError):
        node.call("webhooks.add", name="crm", url=url, types=["job.failed"])


def test_an_address_that_is_not_permitted_any_more_is_refused_at_each_attempt(tmp_path: Path) -> None:
    with Receiver() as receiver:
        with one_node(tmp_path, *ALLOWED) as node:
            node.add(receiver)
        with one_node(tmp_path) as node:
            tested = node.call("webhooks.test", name="crm")
            assert (tested["succeeded"], tested["status"]) == (False, None)
            node.cancels_one()
            eventually(lambda: [one["state"] for one in node.deliveries()] == ["scheduled"], "the attempt has failed")
            (delivery,) = node.deliveries()
            assert "nothing may be sent" in node.call("jobs.show", handle=delivery["handle"])["error"]
        assert receiver.messages == []


def test_a_node_without_webhooks_leaves_them_to_others(tmp_path: Path) -> None:
    with Receiver() as receiver:
        with one_node(tmp_path, *ALLOWED, "--no-webhooks") as node:
            node.add(receiver)
            node.cancels_one()
            eventually(lambda: [one["state"] for one in node.deliveries()] == ["pending"], "the delivery waits")
        with one_node(tmp_path, *ALLOWED):
            eventually(lambda: receiver.messages, "the other node sends it")
