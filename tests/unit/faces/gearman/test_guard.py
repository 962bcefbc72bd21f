"""A Gearman port that demands tokens, and connections that have signed in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs
from tests.simulation.wires import Wire

from mainspring.access.caller import Caller, Grant, Kind, Role
from mainspring.api.handlers.registry import Api
from mainspring.errors import StoreUnavailableError
from mainspring.faces.gearman.guard import Guard
from mainspring.wire.gearman_protocol import EXTENSION, Type, request
from mainspring.workflows.model import decision_function

from .a_face import Node, configure

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Act
    from mainspring.errors import StoreError

    from .a_face import Peer

TOKENS = {
    "dev": Caller("dev", (Grant(Role.DEVELOPER),), "t1"),
    "pay": Caller("pay", (Grant(Role.DEVELOPER, functions=("pay*",)),), "t2"),
    "view": Caller("view", (Grant(Role.VIEWER),), "t3"),
    "shop": Caller("shop", (Grant(Role.DEVELOPER, "shop"),), "t5"),
    "exact": Caller("exact", (Grant(Role.DEVELOPER, functions=("o@1\\ (decisions)",)),), "t6"),
    "decider": Caller("decider", (Grant(Role.DEVELOPER, functions=("o@1 (decisions)",)),), "t7"),
    "admin": Caller("admin", (Grant(Role.ADMIN),), "t4"),
}


class Access:
    """Credentials whose secrets are the names of `TOKENS`."""

    def __init__(self) -> None:
        self.delayed: list[Callable[[], None]] | None = None
        self.ended: dict[str, Callable[[], object]] = {}
        self.is_away = False

    def find(
        self,
        kind: Kind,
        text: str,
        done: Callable[[Caller | None], None],
        failed: Callable[[StoreError], None],
        address: str = "",
    ) -> None:
        assert kind is Kind.TOKEN
        assert address
        if self.is_away:
            failed(StoreUnavailableError("the store is away"))
        elif self.delayed is not None:
            self.delayed.append(lambda: done(TOKENS.get(text)))
        else:
            done(TOKENS.get(text))

    def watch(self, secret: str, ended: Callable[[], object]) -> Callable[[], None]:
        self.ended[secret] = ended

        def end() -> None:
            self.ended.pop(secret, None)

        return end


@pytest.fixture
def access() -> Access:
    return Access()


@pytest.fixture
def guarded(access: Access, monkeypatch: pytest.MonkeyPatch) -> Node:
    def information(_: Wire, name: str, default: object = None) -> object:
        return ("10.0.0.9", 1234) if name == "peername" else default

    monkeypatch.setattr(Wire, "get_extra_info", information)
    node = Node()
    configure(node, require_token=True)
    node.face.access = access
    return node


def signed_in(node: Node, token: str) -> Peer:
    peer = node.connect()
    peer.request(Type.OPTION_REQ, EXTENSION + b" " + token.encode())
    assert peer.received() == [("OPTION_RES", ["mainspring/2"])]
    return peer


@pytest.mark.parametrize(
    "data",
    [
        request(Type.SUBMIT_JOB_BG, b"f", b"", b""),
        request(Type.SUBMIT_JOB, b"f", b"", b""),
        request(Type.CAN_DO, b"f"),
        request(Type.GRAB_JOB),
        request(Type.ECHO_REQ, b"x"),
        request(Type.OPTION_REQ, EXTENSION),
        request(Type.OPTION_REQ, b"exceptions"),
    ],
)
def test_without_a_token_nothing_is_answered_but_the_reason(guarded: Node, data: bytes) -> None:
    peer = guarded.connect()
    peer.send(data + request(Type.SUBMIT_JOB_BG, b"f", b"", b""))
    guarded.commit()
    ((name, (code, message)),) = peer.received()
    assert (name, code) == ("ERROR", "TOKEN_REQUIRED")
    assert "MAINSPRING_TOKEN" in message
    assert peer.closed
    assert guarded.service.dispatch.queues.get(b"f") is None


@pytest.mark.parametrize("line", ["status", "shutdown", "workers", "nonsense"])
def test_administrators_commands_need_more_than_a_connection(guarded: Node, line: str) -> None:
    peer = guarded.connect()
    assert peer.text(line).startswith("ERR TOKEN_REQUIRED")
    assert peer.closed


def test_a_wrong_token_is_refused(guarded: Node) -> None:
    peer = guarded.connect()
    peer.request(Type.OPTION_REQ, EXTENSION + b" ms_wrong")
    assert [args[0] for _, args in peer.received()] == ["TOKEN_REFUSED"]
    assert peer.closed


def test_refusals_are_in_the_audit_or_in_the_log(guarded: Node) -> None:
    acts: list[Act] = []
    guarded.face.api = Api(refused=acts.append)
    with capture_logs() as logged:
        for _ in range(3):
            guarded.connect().request(Type.OPTION_REQ, EXTENSION + b" ms_wrong")
            guarded.connect().request(Type.SUBMIT_JOB_BG, b"f", b"", b"")
            guarded.connect().text("status")
        guarded.clock.advance(60)
        guarded.connect().request(Type.CAN_DO, b"f")
    assert [(act.what, act.who, act.address) for act in acts] == [("sign_in", "", "10.0.0.9")] * 3
    assert "ms_wrong" not in str((acts, logged))
    assert [(line["event"], line["peer"], line["left_out"]) for line in logged] == [
        ("a token was refused", "10.0.0.9", 0),
        ("a connection without a token was refused", "10.0.0.9", 0),
        ("a connection without a token was refused", "10.0.0.9", 5),
    ]


def test_messages_that_a_token_does_not_permit_are_in_the_audit(guarded: Node) -> None:
    acts: list[Act] = []
    guarded.face.api = Api(refused=acts.append)
    pay = signed_in(guarded, "pay")
    pay.ask(Type.SUBMIT, b"mail", b"", b"", b"")
    pay.ask(Type.REGISTER, b"mail", b"")
    pay.ask(Type.SUBMIT, b"pay", b"", b"", b"")
    pay.ask(Type.CAN_DO, b"mail")
    pay.text("shutdown")
    assert [(act.what, act.who, act.token, act.object, act.namespace) for act in acts] == [
        ("jobs.submit", "pay", "t2", "mail", "default"),
        ("workers.register", "pay", "t2", "mail", "default"),
        ("gearman.can_do", "pay", "t2", "", "default"),
        ("gearman.text", "pay", "t2", "", "default"),
    ]
    assert all(act.refused for act in acts)


def test_a_token_is_refused_while_the_store_is_away(guarded: Node, access: Access) -> None:
    access.is_away = True
    peer = guarded.connect()
    peer.request(Type.OPTION_REQ, EXTENSION + b" dev")
    assert [args[0] for _, args in peer.received()] == ["STORE_UNAVAILABLE"]
    assert peer.closed


def test_requests_wait_until_the_token_is_found(guarded: Node, access: Access) -> None:
    access.delayed = []
    peer = guarded.connect()
    peer.send(request(Type.OPTION_REQ, EXTENSION + b" dev") + request(Type.ECHO_REQ, b"x"))
    guarded.commit()
    assert peer.received() == []
    access.delayed.pop()()
    guarded.wait(0)
    guarded.commit()
    assert [name for name, _ in peer.received()] == ["OPTION_RES", "ECHO_RES"]


def test_a_developer_submits_and_waits(guarded: Node) -> None:
    peer = signed_in(guarded, "dev")
    _, (handle, _) = peer.ask(Type.SUBMIT, b"f", b"", b"", b"p")
    worker = signed_in(guarded, "dev")
    worker.request(Type.REGISTER, b"f", b"")
    worker.request(Type.READY, b"1")
    guarded.commit()
    ((kind, (assigned, token, *_)),) = worker.received()
    assert (kind, assigned) == ("ASSIGN", handle)
    peer.request(Type.WAIT, handle.encode())
    worker.request(Type.SETTLE, assigned.encode(), token.encode(), b"succeeded", b"", b"r")
    guarded.commit()
    assert ("RESULT", [handle, "succeeded", "1", "", "r"]) in peer.received()


def test_a_token_for_some_functions_reaches_no_others(guarded: Node) -> None:
    dev, pay = signed_in(guarded, "dev"), signed_in(guarded, "pay")
    _, (foreign, _) = dev.ask(Type.SUBMIT, b"mail", b"", b"", b"")
    pay.send(
        request(Type.SUBMIT, b"pay", b"", b"", b"")
        + request(Type.SUBMIT, b"mail", b"", b"", b"")
        + request(Type.SUBMIT, b"payments", b"", b"", b"")
    )
    guarded.commit()
    first, second, third = pay.received()
    assert (first[0], second[0], second[1][0], third[0]) == ("SUBMITTED", "ERROR", "NOT_PERMITTED", "SUBMITTED")
    assert pay.ask(Type.REGISTER, b"mail", b"")[1][0] == "NOT_PERMITTED"
    assert pay.ask(Type.WAIT, foreign.encode()) == ("RESULT", [foreign, "unknown", "0", "", ""])
    pay.request(Type.WAIT, first[1][0].encode())
    guarded.commit()
    assert pay.received() == [], "it waits"
    assert pay.call("jobs.watch") == "forbidden"
    assert pay.call("jobs.watch", function="mail") == "forbidden"
    assert pay.call("jobs.watch", function="pay") == {}


def test_a_token_names_decisions_and_a_function_of_the_same_name_as_calls_do(guarded: Node) -> None:
    function, decisions = b"o@1 (decisions)", decision_function("default", "o", "1")
    foreign = decision_function("shop", "o", "1")
    exact, decider = signed_in(guarded, "exact"), signed_in(guarded, "decider")
    name, (handle, _) = exact.ask(Type.SUBMIT, function, b"", b"", b"")
    assert name == "SUBMITTED"
    assert exact.call("jobs.show", handle=handle)["handle"] == handle
    exact.request(Type.WAIT, handle.encode())
    guarded.commit()
    assert exact.received() == [], "it waits"
    assert decider.ask(Type.WAIT, handle.encode())[1][1] == "unknown"
    for peer, refused in ((exact, (decisions, foreign)), (decider, (function, foreign))):
        for one in refused:
            assert peer.ask(Type.REGISTER, one, b"")[1][0] == "NOT_PERMITTED"
    assert decider.ask(Type.REGISTER, decisions, b"")[1][0] == "INVALID_FUNCTION_NAME", "permitted, but not so"


def test_a_token_is_for_its_namespace(guarded: Node) -> None:
    dev, shop = signed_in(guarded, "dev"), signed_in(guarded, "shop")
    for peer in (dev, shop):
        peer.request(Type.OPTION_REQ, b"namespace=shop")
        assert [name for name, _ in peer.received()] == ["OPTION_RES"]
    assert dev.ask(Type.SUBMIT, b"f", b"", b"", b"")[1][0] == "NOT_PERMITTED"
    assert dev.ask(Type.REGISTER, b"f", b"")[1][0] == "NOT_PERMITTED"
    assert dev.call("jobs.list") == "forbidden"
    name, (handle, _) = shop.ask(Type.SUBMIT, b"f", b"", b"", b"")
    assert name == "SUBMITTED"
    assert dev.ask(Type.WAIT, handle.encode())[1][1] == "unknown"
    default = signed_in(guarded, "dev")
    assert default.ask(Type.WAIT, handle.encode())[1][1] == "unknown"
    own = signed_in(guarded, "shop")
    assert own.ask(Type.SUBMIT, b"f", b"", b"", b"")[1][0] == "NOT_PERMITTED", "in the default namespace"


def test_a_remembered_check_is_for_its_namespace(guarded: Node) -> None:
    pay = signed_in(guarded, "pay")

    def outcome() -> str:
        name, (first, *_) = pay.ask(Type.SUBMIT, b"pay", b"", b"", b"")
        return first if name == "ERROR" else name

    assert [outcome(), outcome()] == ["SUBMITTED", "SUBMITTED"]
    pay.request(Type.OPTION_REQ, b"namespace=shop")
    assert [name for name, _ in pay.received()] == ["OPTION_RES"]
    assert [outcome(), outcome()] == ["NOT_PERMITTED", "NOT_PERMITTED"]
    pay.request(Type.OPTION_REQ, b"namespace=default")
    assert [name for name, _ in pay.received()] == ["OPTION_RES"]
    assert outcome() == "SUBMITTED"
    guard = Guard(TOKENS["dev"])
    assert [guard.reach(namespace) for namespace in ("default", "shop", "default")] == [None, (), None]


def test_a_namespace_may_be_chosen_before_the_token_is_sent(guarded: Node) -> None:
    peer = guarded.connect()
    peer.request(Type.OPTION_REQ, b"namespace=shop")
    peer.request(Type.OPTION_REQ, EXTENSION + b" shop")
    assert [name for name, _ in peer.received()] == ["OPTION_RES", "OPTION_RES"]
    assert peer.ask(Type.SUBMIT, b"f", b"", b"", b"")[0] == "SUBMITTED"


def test_roles_limit_calls_and_packets(guarded: Node) -> None:
    view = signed_in(guarded, "view")
    assert view.ask(Type.SUBMIT, b"f", b"", b"", b"")[1][0] == "NOT_PERMITTED"
    assert view.ask(Type.REGISTER, b"f", b"")[1][0] == "NOT_PERMITTED"
    assert view.call("jobs.list")["items"] == []
    assert view.call("jobs.cancel", handle="H:n:1000000000001") == "forbidden"
    assert view.call("worker.slots", slots=3) == "forbidden"


def test_packets_of_gearman_and_administrators_commands_have_no_token(guarded: Node) -> None:
    peer = signed_in(guarded, "admin")
    assert peer.ask(Type.SUBMIT_JOB_BG, b"f", b"", b"")[1][0] == "NOT_PERMITTED"
    assert peer.ask(Type.CAN_DO, b"f")[1][0] == "NOT_PERMITTED"
    assert peer.text("shutdown").startswith("ERR NOT_PERMITTED")


def test_a_unix_socket_and_a_client_certificate_are_as_good_as_a_token(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts: dict[str, object] = {}
    monkeypatch.setattr(Wire, "get_extra_info", lambda _, name, default=None: facts.get(name, default))
    node = Node()
    configure(node, require_token=True)
    node.face.access = access
    facts["peername"] = ""  # of a Unix socket
    assert node.connect().background()
    facts.update(peername=("10.0.0.9", 1), peercert={"subject": ()})
    assert node.connect().background()
    facts["peercert"] = {}  # TLS without a certificate
    assert node.connect().ask(Type.SUBMIT_JOB_BG, b"f", b"", b"")[1][0] == "TOKEN_REQUIRED"


def test_a_revoked_token_ends_its_connections(guarded: Node, access: Access) -> None:
    peer = signed_in(guarded, "dev")
    assert not peer.closed
    access.ended["dev"]()
    assert peer.closed
    assert access.ended == {}, "the watch ends with the connection"


def test_a_token_limits_its_connection_where_none_is_demanded() -> None:
    node = Node()
    node.face.access = Access()
    assert signed_in(node, "view").ask(Type.SUBMIT, b"f", b"", b"", b"")[1][0] == "NOT_PERMITTED"
    assert node.connect(extended=True).ask(Type.SUBMIT, b"f", b"", b"", b"")[0] == "SUBMITTED"
    wrong = node.connect()
    wrong.request(Type.OPTION_REQ, EXTENSION + b" ms_wrong")
    assert [args[0] for _, args in wrong.received()] == ["TOKEN_REFUSED"]


def test_the_token_is_in_no_answer(guarded: Node) -> None:
    secret = "ms_canary"
    peer = guarded.connect()
    peer.request(Type.OPTION_REQ, EXTENSION + b" " + secret.encode())
    assert secret not in json.dumps(peer.received())
