"""Connections to the Gearman port: each has one caller, with the rights of its port or of its token, and no others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from mainspring.access.caller import Caller, Grant, Role, caller_of_port
from mainspring.wire.gearman_protocol import EXTENSION, Type, request
from mainspring.workflows.history import decode_events
from tests.unit.faces.gearman.a_face import Node, Peer, configure
from tests.unit.faces.gearman.test_decide_packets import ORDER, WORKFLOW, Decider
from tests.unit.faces.gearman.test_guard import TOKENS, Access

if TYPE_CHECKING:
    from collections.abc import Iterable

F = b"f"


def port(node: Node, role: Role = Role.DEVELOPER) -> Peer:
    """Return a connection of the extension to a port of the namespace ``team``."""
    peer = node.connect(namespace="team", caller=caller_of_port("team", role))
    peer.request(Type.OPTION_REQ, EXTENSION)
    assert peer.received() == [("OPTION_RES", ["mainspring/2"])]
    return peer


def signed_in(node: Node, access: Access, token: str) -> Peer:
    node.face.access = access
    peer = node.connect()
    peer.request(Type.OPTION_REQ, EXTENSION + b" " + token.encode())
    assert peer.received() == [("OPTION_RES", ["mainspring/2"])]
    return peer


def packets(peer: Peer) -> list[tuple[int, list[bytes]]]:
    """Return a list that gets the packets to a peer from now on."""
    raw: list[tuple[int, list[bytes]]] = []
    peer.wire._see = lambda kind, args: raw.append((kind, list(args)))  # noqa: SLF001 - before it is text
    return raw


# ---- ports of a namespace ----


def test_a_port_of_a_namespace_serves_its_clients_and_workers(node: Node) -> None:
    client, worker, plain = port(node), port(node), port(node)
    _, (handle, _) = client.ask(Type.SUBMIT, F, b"", b"", b"p")
    client.request(Type.WAIT, handle.encode())
    worker.request(Type.REGISTER, F, b"")
    worker.request(Type.READY, b"1")
    node.commit()
    ((_, (_, lease, *_)),) = worker.received()
    worker.request(Type.SETTLE, handle.encode(), lease.encode(), b"succeeded", b"", b"r")
    node.commit()
    assert ("RESULT", [handle, "succeeded", "1", "", "r"]) in client.received()
    assert client.call("jobs.show", handle=handle)["state"] == "succeeded"
    assert plain.ask(Type.SUBMIT_JOB_BG, F, b"", b"")[0] == "JOB_CREATED"
    assert plain.text("status") == "f\t1\t0\t1\n.\n"
    assert plain.text("maxqueue f 1") == plain.text("create function g") == "OK\r\n"


def test_a_port_of_a_namespace_reaches_no_other_one_and_not_the_node(node: Node) -> None:
    default = node.connect(extended=True)
    _, (handle, _) = default.ask(Type.SUBMIT, F, b"", b"", b"secret")
    peer = port(node, Role.ADMIN)
    assert peer.ask(Type.WAIT, handle.encode())[1][1] == "unknown"
    assert peer.ask(Type.GET_STATUS, handle.encode())[1][1] == "0"
    assert peer.call("jobs.show", handle=handle) == "not_found"
    assert peer.call("jobs.list", namespace="other") == "usage"
    assert peer.ask(Type.OPTION_REQ, b"namespace=default")[1][0] == "INVALID_NAMESPACE"
    assert peer.text("status") == ".\n"
    assert peer.text(f"cancel job {handle}").startswith("ERR")
    assert peer.text("show jobs") == ".\n"
    assert len(peer.text("workers").splitlines()) == 2, "its own connection, and the end of the list"
    asked: list[bool] = []
    node.face.shut_down = asked.append
    configure(node, allow_shutdown=True)
    for line in ("shutdown", "shutdown graceful", "getpid", "verbose"):
        assert peer.text(line).startswith("ERR NOT_PERMITTED"), line
    assert asked == []
    assert peer.text("version").startswith("OK")


def test_maxqueue_is_about_the_namespace_of_the_port(node: Node) -> None:
    team, default = port(node), node.connect()
    for peer in (team, default):
        peer.background()
    assert team.text("maxqueue f 1") == "OK\r\n"
    assert [peer.ask(Type.SUBMIT_JOB_BG, F, b"", b"")[0] for peer in (team, default)] == ["ERROR", "JOB_CREATED"]


@pytest.mark.parametrize(
    ("role", "refused"),
    [
        (Role.VIEWER, {"SUBMIT", "SUBMIT_JOB_BG", "REGISTER", "CAN_DO", "cancel job H:n:1", "maxqueue f 1"}),
        (Role.OPERATOR, {"SUBMIT", "SUBMIT_JOB_BG", "REGISTER", "CAN_DO", "maxqueue f 1"}),
        (Role.DEVELOPER, set()),
        (Role.ADMIN, set()),
    ],
)
def test_the_role_of_a_port_limits_packets_and_commands(node: Node, role: Role, refused: set[str]) -> None:
    peer = port(node, role)
    packets = {
        "SUBMIT": request(Type.SUBMIT, F, b"", b"", b""),
        "SUBMIT_JOB_BG": request(Type.SUBMIT_JOB_BG, F, b"", b""),
        "REGISTER": request(Type.REGISTER, F, b""),
        "CAN_DO": request(Type.CAN_DO, F),
    }
    found = set()
    for name, data in packets.items():
        peer.send(data)
        node.commit()
        if any(args[0] == "NOT_PERMITTED" for _, args in peer.received()):
            found.add(name)
    found |= {one for one in ("cancel job H:n:1", "maxqueue f 1", "status") if "NOT_PERMITTED" in peer.text(one)}
    assert found == refused


# ---- one caller for each connection ----


def test_a_second_token_is_refused_and_ends_what_the_first_had(node: Node) -> None:
    access = Access()
    peer = signed_in(node, access, "dev")
    peer.request(Type.REGISTER, F, b"")
    peer.request(Type.READY, b"1")
    peer.request(Type.OPTION_REQ, EXTENSION + b" pay")
    assert [args[0] for _, args in peer.received()] == ["SIGNED_IN_ALREADY"]
    assert peer.closed
    handle = node.connect().background(function=F)
    assert node.connect().ask(Type.GET_STATUS, handle.encode())[1][2] == "0", "nobody runs it"


@pytest.mark.parametrize(
    "earlier",
    [
        [request(Type.REGISTER, F, b"")],
        [request(Type.REGISTER, ORDER, json.dumps(WORKFLOW).encode())],
        [request(Type.CALL, b"1", b"jobs.watch", b"{}")],
        [request(Type.SUBMIT, F, b"", b"", b""), request(Type.WAIT, b"H:n:1000000000001")],
    ],
    ids=["functions", "workflows", "a watch", "a wait"],
)
def test_no_token_after_what_the_connection_already_has(earlier: Iterable[bytes]) -> None:
    node = Node(workflows=True)
    node.face.access = Access()
    peer = node.connect(extended=True)
    peer.send(b"".join(earlier) + request(Type.OPTION_REQ, EXTENSION + b" pay"))
    node.commit()
    assert ("ERROR", "SIGNED_IN_ALREADY") in [(name, args[0]) for name, args in peer.received()]
    assert peer.closed


def test_the_end_of_a_token_ends_all_that_it_holds(node: Node) -> None:
    access = Access()
    worker, waiting, watching = (signed_in(node, access, token) for token in ("dev", "admin", "view"))
    worker.request(Type.REGISTER, F, b"")
    worker.request(Type.READY, b"1")
    _, (handle, _) = waiting.ask(Type.SUBMIT, F, b"", b"", b"")
    waiting.request(Type.WAIT, handle.encode())
    node.commit()
    ((_, (_, lease, *_)),) = worker.received()
    assert watching.call("jobs.watch") == {}
    for token, peer in (("dev", worker), ("admin", waiting), ("view", watching)):
        peer.wire.peer.outgoing.stop()  # it reads nothing more
        access.ended[token]()
        assert peer.closed, token
    worker.request(Type.SETTLE, handle.encode(), lease.encode(), b"succeeded", b"", b"r")
    node.commit()
    assert node.connect().ask(Type.GET_STATUS, handle.encode())[1][1:3] == ["1", "0"], "it waits for another worker"
    assert access.ended == {}
    assert node.face.peers.connected.keys().isdisjoint({worker.wire.peer, waiting.wire.peer, watching.wire.peer})


# ---- histories ----


CALLERS = {
    "viewer": (Caller("viewer", (Grant(Role.VIEWER),), "v"), False),
    "developer of another function": (Caller("mail", (Grant(Role.DEVELOPER, functions=("mail*",)),), "m"), False),
    "payloads of another function": (
        Caller("m", (Grant(Role.ADMIN, functions=("mail*",), payloads=True),), "m"),
        False,
    ),
    "payloads of another namespace": (Caller("o", (Grant(Role.ADMIN, "other", payloads=True),), "o"), False),
    "payloads of the workflow": (Caller("p", (Grant(Role.VIEWER, functions=("ord*",), payloads=True),), "p"), True),
    "payloads of the namespace": (Caller("all", (Grant(Role.VIEWER, payloads=True),), "a"), True),
}


@pytest.mark.parametrize(("caller", "allowed"), CALLERS.values(), ids=CALLERS)
def test_a_history_needs_the_payloads_of_its_workflow(
    caller: Caller, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOKENS, "one", caller)
    node = Node(workflows=True)
    decider = Decider(node)
    node.connect(extended=True).request(Type.SUBMIT, ORDER, b"", b"", b'["CARD-4111"]')
    run = decider.assigned().run
    for namespace in (b"default", b"other"):
        peer = signed_in(node, Access(), "one")
        peer.request(Type.OPTION_REQ, b"namespace=" + namespace)
        raw = packets(peer)
        peer.request(Type.HISTORY, b"%d" % run, b"1")
        node.commit()
        ((kind, args),) = raw
        if allowed and namespace == b"default":
            assert decode_events(args[2])
        else:
            assert args[0] == b"NOT_PERMITTED" if kind == Type.ERROR else decode_events(args[2]) == []
        assert b"CARD-4111" not in b"".join(args) or allowed


def test_a_decider_reads_the_history_of_its_decision_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOKENS, "one", Caller("one", (Grant(Role.DEVELOPER, functions=("order",)),), "o"))
    node = Node(workflows=True)
    other = Decider(node)
    client = node.connect(extended=True)
    client.request(Type.SUBMIT, ORDER, b"", b"", b"[1]")
    foreign = other.assigned().run
    peer = signed_in(node, Access(), "one")
    raw = packets(peer)
    peer.request(Type.REGISTER, ORDER, json.dumps({**WORKFLOW, "decisions": 9}).encode())
    other.peer.leave()
    node.commit()
    runs = {int(json.loads(args[4])["run"]) for kind, args in raw if kind == Type.ASSIGN}
    assert runs == {foreign}, "it has the decision now"
    raw.clear()
    peer.request(Type.HISTORY, b"%d" % foreign, b"1")
    node.commit()
    ((kind, args),) = raw
    assert kind == Type.EVENTS
    assert decode_events(args[2])


def test_a_worker_with_a_token_reports_the_text_of_its_progress(node: Node) -> None:
    worker = signed_in(node, Access(), "pay")
    worker.request(Type.REGISTER, b"pay", b"")
    worker.request(Type.READY, b"1")
    handle = node.connect().background(function=b"pay")
    node.commit()
    worker.received()
    for target in (handle.encode(), b"H:n:7"):
        worker.request(Type.PROGRESS_TEXT, target, b"half")
    assert worker.received() == []
    job = node.service.handles.parse(handle.encode())
    assert job is not None
    assert node.service.reports.text_of(job) == b"half"


@pytest.fixture
def node() -> Node:
    return Node()
