"""Values of running jobs: VALUES, those in reports of decisions, and the calls that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api.handlers import values as values_calls
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.features import Feature
from mainspring.values.model import MOST_NAMES, VALUE_BYTES
from mainspring.values.service import RETRY_PAUSE
from mainspring.wire.gearman_protocol import Type

from .a_face import Node
from .test_decide_packets import TASK, Decider, report, start
from .test_extension import assigned, settle, submit

if TYPE_CHECKING:
    from .a_face import Peer


def send(worker: Peer, handle: bytes, token: bytes, *values: tuple[str, bytes]) -> None:
    worker.request(Type.VALUES, msgspec.msgpack.encode([[handle, token, values]]))


def read(node: Node, handle: bytes, **params: Any) -> Any:
    return node.connect(extended=True).call("jobs.values", handle=handle.decode(), **params)


def values(node: Node, handle: bytes) -> dict[str, Any]:
    return {one["name"]: one["value"] for one in read(node, handle)["items"]}


class Running:
    """A worker with a running job."""

    def __init__(self, node: Node, **options: Any) -> None:
        self.node = node
        self.peer = node.stream(**options)
        submit(node.connect(extended=True))
        node.commit()
        self.handle, self.token, _ = assigned(self.peer)

    def publish(self, *values: tuple[str, bytes]) -> None:
        send(self.peer, self.handle, self.token, *values)
        self.node.commit()


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def running(node: Node) -> Running:
    return Running(node)


def test_a_node_takes_values_if_its_store_keeps_them(node: Node) -> None:
    assert node.connect(extended=True).call("worker.logs") == {"values": True, "streams": True}


def test_another_node_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryEngine, "lacks", frozenset({Feature.VALUES}))
    node = Node()
    peer = node.connect(extended=True)
    assert peer.call("jobs.values", handle="H:n:1000000000001") == "usage"
    assert peer.call("worker.logs") == {}
    assert peer.ask(Type.VALUES, b"\x90")[1][0] == "UNSUPPORTED"


def test_a_value_is_shown_with_its_time_and_attempt(running: Running) -> None:
    running.publish(("stage", b'{"at":1}'))
    shown = {"name": "stage", "value": {"at": 1}, "at": "2023-11-14T22:13:20.000000Z", "attempt": 1, "number": 1}
    assert read(running.node, running.handle) == {"items": [shown], "ended": False}
    assert running.node.connect(extended=True).call("jobs.value", handle=running.handle.decode(), name="stage") == shown


def test_values_of_others_are_ignored(node: Node, running: Running) -> None:
    other = node.stream(b"g")
    send(other, running.handle, running.token, ("a", b"1"))
    send(running.peer, running.handle, b"1.1.wrong", ("a", b"1"))
    send(running.peer, b"H:n:1000000999999", running.token, ("a", b"1"))
    node.commit()
    assert values(node, running.handle) == {}
    assert running.peer.received() == []


def test_the_last_values_come_before_the_end(running: Running) -> None:
    send(running.peer, running.handle, running.token, ("a", b"1"))
    settle(running.peer, running.handle, running.token)
    running.node.commit()
    assert read(running.node, running.handle)["ended"]
    assert values(running.node, running.handle) == {"a": 1}
    running.publish(("a", b"2"))
    assert values(running.node, running.handle) == {"a": 1}, "it has ended"


def test_a_delivery_that_has_lost_its_job_publishes_nothing(node: Node) -> None:
    first = Running(node)
    first.publish(("a", b"1"))
    second = node.stream()
    first.peer.leave()
    node.commit()
    handle, token, _ = assigned(second)
    assert handle == first.handle
    send(second, handle, first.token, ("a", b'"late"'))
    node.commit()
    assert values(node, handle) == {"a": 1}, "that of the lost attempt stays"
    send(second, handle, token, ("a", b"2"))
    node.commit()
    assert values(node, handle) == {"a": 2}


def test_the_attempt_is_that_of_the_delivery(node: Node) -> None:
    running = Running(node, retry={"max_attempts": 3})
    running.publish(("a", b"1"))
    settle(running.peer, running.handle, running.token, b"failed")
    node.commit()
    running.peer.received()
    running.peer.request(Type.READY, b"1")
    node.wait(10)
    handle, token, _ = assigned(running.peer)
    assert [one["attempt"] for one in read(node, handle)["items"]] == [1]
    send(running.peer, handle, token, ("a", b"2"))
    node.commit()
    assert [one["attempt"] for one in read(node, handle)["items"]] == [2]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([[b"h", b"t", [["", b"1"]]]]),
        msgspec.msgpack.encode([[b"h", b"t", [["a", b"{"]]]]),
        msgspec.msgpack.encode([[b"h", b"t", [["a", b"1" * (VALUE_BYTES + 1)]]]]),
        msgspec.msgpack.encode([[b"h", b"t", [[f"n{number}", b"1"] for number in range(MOST_NAMES + 1)]]]),
    ],
)
def test_a_packet_that_no_worker_sends_is_refused(running: Running, body: bytes) -> None:
    assert running.peer.ask(Type.VALUES, body)[1][0] == "INVALID_ARGUMENTS"
    assert values(running.node, running.handle) == {}


def test_values_outlive_a_full_store(running: Running) -> None:
    send(running.peer, running.handle, running.token, ("a", b"1"))
    running.node.fail()
    running.node.wait(RETRY_PAUSE)
    assert values(running.node, running.handle) == {"a": 1}


def test_a_job_in_the_foreground_has_no_values(node: Node) -> None:
    worker, client = node.stream(), node.connect()
    client.request(Type.SUBMIT_JOB, b"f", b"", b"")
    node.commit()
    handle, token, _ = assigned(worker)
    send(worker, handle, token, ("a", b"1"))
    node.commit()
    assert read(node, handle) == {"items": [], "ended": False}


def test_a_request_waits_for_a_value(running: Running) -> None:
    client = running.node.connect(extended=True)
    wait = msgspec.json.encode({"handle": running.handle.decode(), "name": "a", "wait": 20})
    client.request(Type.CALL, b"1", b"jobs.values", wait)
    running.node.commit()
    running.publish(("b", b"1"))
    assert client.received() == []
    running.publish(("a", b"2"))
    ((name, args),) = client.received()
    assert (name, msgspec.json.decode(args[1])["items"][0]["value"]) == ("ANSWER", 2)
    assert running.node.face.values is not None
    assert not running.node.face.values.waiters.jobs


def test_a_request_waits_for_a_later_change(running: Running) -> None:
    running.publish(("a", b"1"))
    client = running.node.connect(extended=True)
    wait = msgspec.json.encode({"handle": running.handle.decode(), "name": "a", "after": 1, "wait": 20})
    client.request(Type.CALL, b"1", b"jobs.values", wait)
    running.node.commit()
    assert client.received() == []
    running.publish(("a", b"2"))
    ((_, args),) = client.received()
    assert msgspec.json.decode(args[1])["items"][0]["number"] == 2


def test_the_end_of_a_job_ends_a_wait(running: Running) -> None:
    client = running.node.connect(extended=True)
    wait = msgspec.json.encode({"handle": running.handle.decode(), "name": "a", "wait": 20})
    client.request(Type.CALL, b"1", b"jobs.values", wait)
    running.node.commit()
    settle(running.peer, running.handle, running.token)
    running.node.commit()
    ((_, args),) = client.received()
    assert msgspec.json.decode(args[1]) == {"items": [], "ended": True}


def test_a_wait_ends_in_time(running: Running) -> None:
    client = running.node.connect(extended=True)
    wait = msgspec.json.encode({"handle": running.handle.decode(), "name": "a", "wait": 20})
    client.request(Type.CALL, b"1", b"jobs.value", wait)
    running.node.commit()
    running.node.wait(19)
    assert client.received() == []
    running.node.wait(2)
    ((name, args),) = client.received()
    assert (name, args[1]) == ("FAULT", "not_found")
    assert "has published no value 'a'" in args[2]


def test_a_client_that_leaves_waits_no_longer(running: Running) -> None:
    client = running.node.connect(extended=True)
    wait = msgspec.json.encode({"handle": running.handle.decode(), "name": "a", "wait": 20})
    client.request(Type.CALL, b"1", b"jobs.values", wait)
    running.node.commit()
    assert running.node.face.values is not None
    assert running.node.face.values.waiters.jobs
    client.leave()
    running.node.wait(21)
    assert not running.node.face.values.waiters.jobs


@pytest.mark.parametrize(
    ("grant", "code"),
    [
        (Grant(Role.VIEWER, "default"), "forbidden"),
        (Grant(Role.VIEWER, "default", functions=("other",), payloads=True), "job_not_found"),
        (Grant(Role.ADMIN, "other", payloads=True), "forbidden"),
    ],
)
def test_values_are_payloads(running: Running, grant: Grant, code: str) -> None:
    running.publish(("a", b'"secret"'))
    stranger = running.node.connect(extended=True, caller=Caller("s", (grant,), token="s"))
    for method, params in (("jobs.values", {}), ("jobs.value", {"name": "a"})):
        answer = stranger.call(method, handle=running.handle.decode(), **params)
        assert answer in {"forbidden", "not_found"}, code
    reader = Caller("r", (Grant(Role.VIEWER, "default", payloads=True),), token="r")
    seen = running.node.connect(extended=True, caller=reader).call("jobs.values", handle=running.handle.decode())
    assert seen["items"][0]["value"] == "secret"


# ---- runs ----


def values_of_run(node: Node, handle: str) -> dict[str, Any]:
    return values(node, handle.encode())


def test_values_come_with_the_report_of_a_decision() -> None:
    node = Node(workflows=True)
    decider = Decider(node)
    handle = start(node)
    client = node.connect(extended=True)
    client.request(Type.CALL, b"1", b"jobs.values", msgspec.json.encode({"handle": handle, "wait": 20}))
    node.commit()
    decision = decider.assigned()
    assert client.received() == []
    answer, _ = decider.ask(report(decision, TASK, values=(("stage", b'"begun"'),)))
    assert answer.verdict == "recorded"
    ((_, args),) = client.received()
    assert msgspec.json.decode(args[1])["items"][0]["value"] == "begun"
    assert values_of_run(node, handle) == {"stage": "begun"}


def test_values_of_a_report_that_is_not_recorded_are_dropped() -> None:
    node = Node(workflows=True)
    decider = Decider(node)
    handle = start(node)
    decision = decider.assigned()
    bad = report(decision, TASK, values=(("", b"1"),))
    answer, _ = decider.ask(bad)
    assert (answer.verdict, answer.why) == ("refused", "'' is no name of a published value")
    assert values_of_run(node, handle) == {}


def test_a_lost_decision_publishes_nothing() -> None:
    node = Node(workflows=True)
    first = Decider(node)
    handle = start(node)
    lost = first.assigned()
    second = Decider(node)
    first.peer.leave()
    node.wait(1)
    decision = second.assigned()
    late = report(lost, TASK, values=(("a", b'"late"'),))
    answer, _ = second.ask(late)
    assert answer.verdict == "stale"
    assert values_of_run(node, handle) == {}
    second.ask(report(decision, TASK, values=(("a", b"1"),)))
    assert values_of_run(node, handle) == {"a": 1}


def test_a_decider_publishes_nothing_under_the_lease_of_its_decision() -> None:
    node = Node(workflows=True)
    decider = Decider(node)
    handle = start(node)
    decision = decider.assigned()
    send(decider.peer, decision.handle, decision.token, ("a", b"1"))
    node.commit()
    assert values_of_run(node, handle) == {}, "it would be ahead of the history"
    assert node.engine.tables.values == {}, "nor does the job of the decision have any"


def test_places_of_those_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_calls, "MOST_WAITS", 4)
    node = Node()
    busy = Running(node)
    clients = [node.connect(extended=True) for _ in range(5)]
    wait = msgspec.json.encode({"handle": busy.handle.decode(), "name": "a", "wait": 20})
    for client in clients:
        client.request(Type.CALL, b"1", b"jobs.values", wait)
    node.commit()
    refused = [args for client in clients for _, args in client.received()]
    assert refused
    assert {args[1] for args in refused} == {"unavailable"}
    assert read(node, busy.handle)["items"] == [], "requests that do not wait need no place"
    busy.publish(("a", b"1"))
    for client in clients:
        client.received()
    assert read(node, busy.handle, wait=1)["items"], "the places are free"
