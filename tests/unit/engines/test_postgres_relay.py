from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.engines.postgres.relay import (
    BACKLOG_LIMIT,
    HINTS_LIMIT,
    WAKE_INTERVAL,
    Relay,
    decode,
    encode,
)
from mainspring.events import Ask, Direct, Logged, Message, Pending, Progress, Running, Settled, Stop, StopRequested
from mainspring.nodes.model import NodeRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

IDS = st.integers(1, 2**63 - 1)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Settled, st.lists(IDS)),
    st.builds(Pending, st.lists(st.binary())),
    st.builds(Progress, IDS, st.sampled_from(["data", "warning", "status"]), st.binary(), st.binary()),
    st.builds(Stop, IDS, st.text()),
    st.builds(Ask, IDS, IDS),
    st.builds(StopRequested, IDS, IDS),
    st.builds(Logged, st.lists(IDS)),
    st.builds(Direct, IDS, st.sampled_from(["drain", "undrain", "stop"])),
    st.builds(Running, IDS, IDS, st.integers(1, 9), st.text(), st.binary(), st.binary()),
)


@given(st.lists(MESSAGES))
def test_decoding_reverts_encoding(messages: list[Message]) -> None:
    assert decode(encode(messages)) == messages


def test_messages_of_a_newer_version_are_ignored() -> None:
    assert decode(msgspec.msgpack.encode([[99, "what"], [3, 5, "stop"]])) == [Stop(5, "stop")]


FUNCTIONS = [(1, "default", b"f"), (2, "team", b"team\x1fg")]


class Wire:
    """A server for notifications and mail only: it keeps what is sent, and delivers it on request."""

    def __init__(self) -> None:
        self.channels: list[str] = []
        self.payloads: list[str] = []
        self.mail: list[tuple[int, bytes]] = []
        self.listeners: dict[str, Callable[[Any, int, str, Any], None]] = {}
        self.reads = 0

    async def run(self, do: Callable[[Wire], Awaitable[object]], _seconds: float) -> None:
        await do(self)

    async def execute(
        self,
        _statement: str,
        channels: list[str],
        payloads: list[str],
        terms: Sequence[int] = (),
        bodies: Sequence[bytes] = (),
    ) -> None:
        self.channels += channels
        self.payloads += payloads
        self.mail += zip(terms, bodies, strict=True)

    async def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        self.reads += 1
        if "DELETE FROM mail" in statement:
            found = [body for term, body in self.mail if term == arguments[0]]
            self.mail = [entry for entry in self.mail if entry[0] != arguments[0]]
            return list(enumerate(found))
        return [row for row in FUNCTIONS if row[0] in arguments[0] or row[2] in arguments[-1]]

    async def add_listener(self, channel: str, listener: Callable[[Any, int, str, Any], None]) -> None:
        self.listeners[channel] = listener

    async def remove_listener(self, channel: str, _: Callable[[Any, int, str, Any], None]) -> None:
        self.listeners.pop(channel, None)


class Member:
    """A node with its relay."""

    def __init__(self, term: int = 3, cluster: Any = None, secret: bytes = b"secret") -> None:
        self.wire = cast("Any", Wire())
        self.relay = Relay(self.wire, cluster)
        self.relay.use_secret(secret)
        self.messages: list[Message] = []
        self.relay.listen(self.messages.append)
        asyncio.run(self.relay.greet(self.wire, term))

    def sent(self) -> Wire:
        """Send the queued messages; return a wire with them alone."""
        self.wire.channels, self.wire.payloads, self.wire.mail = [], [], []
        asyncio.run(self.relay.send_once())
        sent = Wire()
        sent.channels, sent.payloads, sent.mail = self.wire.channels, self.wire.payloads, self.wire.mail
        return sent

    def receive(self, *wires: Wire) -> list[Message]:
        """Deliver what was sent; return all messages so far."""
        for wire in wires:
            self.wire.mail += wire.mail
            for channel, payload in zip(wire.channels, wire.payloads, strict=True):
                if channel in self.wire.listeners:
                    self.wire.listeners[channel](None, 0, channel, payload)
            asyncio.run(self.relay.receive_once())
        return self.messages


def content(*wires: Wire) -> list[Message]:
    """Return the messages that the node of term 4 gets."""
    return Member(4).receive(*wires)


def ids_of(messages: list[Message], kind: type[Settled | Logged]) -> list[int]:
    return [job_id for message in messages if isinstance(message, kind) for job_id in message.ids]


@given(st.lists(MESSAGES.filter(lambda message: not isinstance(message, Pending)), min_size=1))
def test_messages_arrive_in_order_and_mail_before_hints(messages: list[Message]) -> None:
    sender = Member()
    for message in messages:
        sender.relay.send(4, message)
    wire = sender.sent()
    assert all(len(payload.encode()) < 8000 for payload in wire.payloads)
    received = content(wire)
    mail = [message for message in messages if not isinstance(message, (Settled, Logged))]
    assert received[: len(mail)] == mail
    for kind in (Settled, Logged):
        assert ids_of(received, kind) == list(dict.fromkeys(ids_of(messages, kind)))


def test_notifications_contain_ids_alone() -> None:
    sender = Member()
    for message in (Progress(1, "data", b"secret part"), Stop(5, "reason"), Running(7, 1, 1, "worker"), Settled([8])):
        sender.relay.send(4, message)
    sender.relay.notify_pending([b"f", b"team\x1fg"])
    wire = sender.sent()
    assert wire.payloads == ["3 m", "3 s 8", "3 p 1,2"]
    assert content(wire)[-1] == Pending([b"f", b"team\x1fg"])


def test_only_who_has_the_secret_finds_the_channels() -> None:
    assert not Member(4).wire.listeners.keys() & Member(4, secret=b"guessed").wire.listeners.keys()
    stranger = Member(secret=b"guessed")
    stranger.relay.send(4, Settled([1]))
    stranger.relay.notify_pending([b"f"])
    assert content(stranger.sent()) == []


def forged(*payloads: str, term: int | None = 4) -> Wire:
    """Return notifications on the right channel."""
    wire = Wire()
    wire.channels, wire.payloads = [Member(4).relay.channel(term)] * len(payloads), list(payloads)
    return wire


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "1",
        "a s 1",
        "9 s x",
        "9 s",
        "9 s 1,,2",
        "9 s " + "9" * 30,
        "9 s -1",
        "9 p 0",
        "9 z 1",
        "9 p 99",
        "9 3 5 stop",
        "9 m",
        "1 1 0 1 x",
    ],
)
def test_forged_payloads_change_nothing(payload: str) -> None:
    assert content(forged(payload), forged(payload, term=None)) == []


def test_forged_hints_cost_one_delivery_and_little_memory() -> None:
    receiver = Member(4)
    receiver.receive()
    wire = forged(*(f"9 s {','.join(map(str, range(at, at + 300)))}" for at in range(1, 900_000, 300)), *["9 m"] * 1000)
    before = receiver.wire.reads
    messages = receiver.receive(wire)
    assert receiver.wire.reads - before == 1
    assert [len(message.ids) for message in messages if isinstance(message, Settled)] == [HINTS_LIMIT // 300 * 300]


def test_deliveries_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def test() -> None:
        receiver = Relay(cast("Any", Wire()))
        receiver.use_secret(b"secret")
        await receiver.greet(cast("Any", Wire()), 4)
        delivered = 0

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        async def receive_once() -> None:
            nonlocal delivered
            delivered += 1
            if delivered == 3:
                raise asyncio.CancelledError

        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(receiver, "receive_once", receive_once)
        with pytest.raises(asyncio.CancelledError):
            await receiver.receive()

    asyncio.run(test())
    assert pauses[0] == 0
    assert all(0 < pause <= WAKE_INTERVAL for pause in pauses[1:])


def test_a_message_that_cannot_be_processed_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    receiver = Member(4)

    def listener(message: Message) -> None:
        if message == Stop(1, ""):
            raise TypeError(message)
        receiver.messages.append(message)

    receiver.relay.listen(listener)
    sender = Member()
    for number in (1, 2):
        sender.relay.send(4, Stop(number, ""))
    wire = sender.sent()
    wire.mail.insert(0, (4, b"\xff"))
    assert receiver.receive(wire) == [Stop(2, "")]


def test_a_node_ignores_its_own_messages() -> None:
    one = Member()
    one.relay.notify_pending([b"f"])
    assert one.receive(one.sent()) == []


def test_the_queue_of_messages_is_bounded() -> None:
    one = Member()
    piece = BACKLOG_LIMIT // 10
    for _ in range(30):
        one.relay.send(4, Progress(1, "data", b"x" * piece))
    assert one.relay.dropped > 15
    assert sum(len(body) for _, body in one.sent().mail) < 1.3 * BACKLOG_LIMIT
    one.relay.send(4, Stop(1, ""))
    assert one.sent().mail, "the queue has space again"


def test_many_ended_jobs_are_sent_in_several_notifications() -> None:
    one = Member()
    one.relay.notify_settled({4: list(range(2**62, 2**62 + 2000))})
    wire = one.sent()
    assert len(wire.payloads) > 4
    assert all(len(payload) < 8000 for payload in wire.payloads)
    assert len(ids_of(content(wire), Settled)) == 2000
    one.relay.notify_settled({5: [1]})
    assert content(one.sent()) == []


class InCluster:
    """A cluster in which this node is, with the node of term 4."""

    id = "c"

    def __init__(self) -> None:
        self.sent: list[tuple[int, Message]] = []

    def joined(self, term: int) -> bool:
        return term == 3

    def send(self, to: int, message: Message) -> bool:
        if to == 4:
            self.sent.append((to, message))
        return to == 4

    def broadcast(self, message: Message) -> None:
        self.sent.append((0, message))


@pytest.mark.parametrize("mixed", [False, True])
def test_the_cluster_carries_messages_for_its_nodes_and_notify_the_others(*, mixed: bool) -> None:
    cluster = InCluster()
    one = Member(cluster=cluster)
    one.relay.observe([NodeRow(term=5, name="n5", counter=1, mail=True, cluster="" if mixed else "c")])
    one.relay.send(4, Settled([1]))
    one.relay.send(5, Settled([2]))
    one.relay.notify_pending({b"f"})
    assert cluster.sent == [(4, Settled([1])), (0, Pending([b"f"]))]
    wire = one.sent()
    assert wire.payloads == ["3 s 2", *(["3 p 1"] if mixed else [])]
