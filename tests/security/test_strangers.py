"""Connections that never sign in on a port that needs tokens cost little, and keep nobody else out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.access.caller import Caller, Grant, Role
from mainspring.faces.gearman.face import SIGN_IN_BYTES
from mainspring.faces.gearman.peers import Strangers
from mainspring.wire.gearman_protocol import EXTENSION, Type, request
from tests.simulation.wires import Wire
from tests.unit.faces.gearman.a_face import Node, configure

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Kind
    from mainspring.errors import StoreError
    from tests.unit.faces.gearman.a_face import Peer

TIMEOUT = 10.0


class Access:
    """The credentials of one token, ``dev``."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] | None = None

    def find(
        self,
        kind: Kind,
        text: str,
        done: Callable[[Caller | None], None],
        failed: Callable[[StoreError], None],
        address: str = "",
    ) -> None:
        found = Caller("dev", (Grant(Role.DEVELOPER),), "t1") if text == "dev" else None
        if self.waiting is None:
            done(found)
        else:
            self.waiting.append(lambda: done(found))

    def watch(self, secret: str, ended: Callable[[], object]) -> Callable[[], None]:
        return lambda: None


@pytest.fixture
def addresses() -> list[str]:
    """The addresses of the next connections, from the end; those after them have 10.0.0.9."""
    return []


@pytest.fixture
def node(addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> Node:
    def information(_: Wire, name: str, default: object = None) -> object:
        return (addresses.pop() if addresses else "10.0.0.9", 1234) if name == "peername" else default

    monkeypatch.setattr(Wire, "get_extra_info", information)
    node = Node()
    configure(node, require_token=True, sign_in_timeout=TIMEOUT)
    node.face.access = Access()
    return node


def signed_in(node: Node) -> Peer:
    peer = node.connect()
    peer.request(Type.OPTION_REQ, EXTENSION + b" dev")
    assert peer.received() == [("OPTION_RES", ["mainspring/2"])]
    return peer


def pass_time(node: Node, seconds: float) -> None:
    node.wait(seconds)
    node.face.end_silent()


def test_a_stranger_has_a_deadline_and_gets_the_reason(node: Node) -> None:
    silent, worker = node.connect(), signed_in(node)
    slow = node.connect()
    slow.send(request(Type.OPTION_REQ, EXTENSION + b" dev")[:-1])
    pass_time(node, TIMEOUT - 1)
    assert not silent.closed
    pass_time(node, 2)
    assert silent.closed
    assert slow.closed
    ((_, (code, message)),) = silent.received()
    assert (code, "did not sign in" in message) == ("TOKEN_REQUIRED", True)
    pass_time(node, 10 * TIMEOUT)
    assert not worker.closed
    assert len(node.face.strangers) == 0


def test_bytes_do_not_extend_the_deadline(node: Node) -> None:
    trickling = node.connect()
    for byte in request(Type.OPTION_REQ, EXTENSION + b" dev")[: int(TIMEOUT)]:
        trickling.send(bytes([byte]))
        pass_time(node, 1)
    assert not trickling.closed
    pass_time(node, 1)
    assert trickling.closed


def test_a_peer_whose_token_the_store_looks_up_is_not_late(node: Node) -> None:
    access = node.face.access
    assert isinstance(access, Access)
    access.waiting = []
    peer = node.connect()
    peer.request(Type.OPTION_REQ, EXTENSION + b" dev")
    pass_time(node, 2 * TIMEOUT)
    (answer,) = access.waiting
    answer()
    assert peer.received() == [("OPTION_RES", ["mainspring/2"])]
    assert not peer.closed


def test_a_new_stranger_takes_the_place_of_the_oldest_of_its_address(node: Node, addresses: list[str]) -> None:
    node.face.strangers = Strangers(100, 2, TIMEOUT)
    addresses += ["10.0.0.1"]
    other = node.connect()
    worker = signed_in(node)
    strangers = [node.connect() for _ in range(4)]
    assert [one.closed for one in strangers] == [True, True, False, False]
    assert not other.closed
    assert not worker.closed
    signed_in(node)


def test_addresses_of_one_network_count_together(node: Node, addresses: list[str]) -> None:
    node.face.strangers = Strangers(100, 1, TIMEOUT)
    addresses += ["2001:db8:0:2::1", "2001:db8:0:1::2", "2001:db8:0:1::1", "::ffff:10.0.0.9", "10.0.0.9"]
    plain, mapped, first, second, elsewhere = (node.connect() for _ in range(5))
    assert [one.closed for one in (plain, mapped, first, second, elsewhere)] == [True, False, True, False, False]


def test_strangers_of_all_addresses_have_few_places(node: Node, addresses: list[str]) -> None:
    node.face.strangers = Strangers(2, 2, TIMEOUT)
    addresses += ["10.0.0.3", "10.0.0.2", "10.0.0.1"]
    assert [one.closed for one in [node.connect() for _ in range(3)]] == [True, False, False]
    assert len(node.face.strangers) == 2


def test_strangers_make_room_in_a_node_with_its_most_connections(node: Node) -> None:
    configure(node, connections=3)
    strangers = [node.connect() for _ in range(3)]
    assert not any(one.closed for one in strangers)
    workers = [signed_in(node) for _ in range(3)]
    assert all(one.closed for one in strangers)
    assert not any(one.closed for one in workers)
    refused = node.connect()  # all others have signed in
    assert refused.received()[0][1][0] == "TOO_MANY_CONNECTIONS"
    assert not any(one.closed for one in workers)


def test_a_stranger_sends_no_large_packet(node: Node) -> None:
    peer = node.connect()
    whole = request(Type.SUBMIT_JOB_BG, b"f", b"", bytes(64 * SIGN_IN_BYTES))
    peer.send(whole[:100])  # the head alone, without the body that it announces
    ((_, (code, _)),) = peer.received()
    assert code == "TOKEN_REQUIRED"
    assert peer.closed
    signed_in(node).send(request(Type.SUBMIT, b"f", b"", b"", bytes(64 * SIGN_IN_BYTES)))
    node.commit()
    assert node.service.dispatch.queues.get(b"f") is not None
