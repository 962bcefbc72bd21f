from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.engines.postgres.relay import BACKLOG_LIMIT, Relay, decode, encode
from mainspring.events.relay import Ask, Direct, Message, Pending, Progress, Running, Settled, Stop, StopRequested
from mainspring.nodes.model import NodeRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

IDS = st.integers(1, 2**63 - 1)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Settled, st.lists(IDS)),
    st.builds(Pending, st.lists(st.binary())),
    st.builds(Progress, IDS, st.sampled_from(["data", "warning", "status"]), st.binary(), st.binary()),
    st.builds(Stop, IDS, st.text()),
    st.builds(Ask, IDS, IDS),
    st.builds(StopRequested, IDS, IDS),
    st.builds(Direct, IDS, st.sampled_from(["drain", "undrain", "stop"])),
    st.builds(Running, IDS, IDS, st.integers(1, 9), st.text(), st.binary(), st.binary()),
)


@given(st.lists(MESSAGES))
def test_decoding_reverts_encoding(messages: list[Message]) -> None:
    assert decode(encode(messages)) == messages


def test_messages_of_a_newer_version_are_ignored() -> None:
    newer = base64.b85encode(msgspec.msgpack.encode([[99, "what"], [3, 5, "stop"]])).decode()
    assert decode(newer) == [Stop(5, "stop")]


class Wire:
    """A server for notifications only: it keeps sent ones, and delivers them to listeners."""

    def __init__(self) -> None:
        self.channels: list[str] = []
        self.payloads: list[str] = []
        self.listeners: dict[str, Callable[[Any, int, str, Any], None]] = {}

    async def run(self, do: Callable[[Wire], Awaitable[object]], _seconds: float) -> None:
        await do(self)

    async def execute(self, _statement: str, channels: list[str], payloads: list[str]) -> None:
        self.channels += channels
        self.payloads += payloads

    async def add_listener(self, channel: str, listeners: Callable[[Any, int, str, Any], None]) -> None:
        self.listeners[channel] = listeners


class Member:
    """A node with its relay."""

    def __init__(self, term: int = 3, cluster: Any = None) -> None:
        self.wire = cast("Any", Wire())
        self.relay = Relay(self.wire, 7, cluster)
        self.messages: list[Message] = []
        self.relay.listen(self.messages.append)
        asyncio.run(self.relay.greet(self.wire, term))

    def sent(self) -> list[str]:
        """Send the queued messages; return the payloads."""
        self.wire.channels, self.wire.payloads = [], []
        asyncio.run(self.relay.send_once())
        payloads: list[str] = self.wire.payloads
        return payloads

    def receive(self, payloads: list[str]) -> list[Message]:
        """Deliver payloads; return all messages so far."""
        for listeners in [*self.wire.listeners.values()][:1]:
            for payload in payloads:
                listeners(None, 0, "", payload)
        return self.messages


def content(payloads: list[str]) -> list[Message]:
    """Return the messages that a listener of term 4 decodes from payloads."""
    return Member(4).receive(payloads)


@given(st.lists(MESSAGES, min_size=1), st.integers(0, 5))
def test_a_batch_in_pieces_is_joined_and_an_incomplete_one_is_ignored(messages: list[Message], missed: int) -> None:
    sender = Member()
    big = Progress(1, "data", b"\0" * 30_000)
    for message in (big, *messages):
        sender.relay.send(4, message)
    first = sender.sent()
    sender.relay.send(4, Stop(7, "the next batch"))
    second = sender.sent()
    assert len(first) > 4
    assert len(set(first)) == len(first), "PostgreSQL would drop duplicates"
    assert all(len(payload.encode()) < 8000 for payload in first)
    expected = [Stop(7, "the next batch")] if missed else [big, *messages, Stop(7, "the next batch")]
    # a listener that connects in the middle has missed the first pieces
    assert content(first[min(missed, len(first)) :] + second) == expected


def test_a_batch_whose_end_is_missing_does_not_spoil_the_next() -> None:
    sender = Member()
    sender.relay.send(4, Progress(1, "data", b"x" * 30_000))
    first = sender.sent()
    sender.relay.send(4, Progress(2, "data", b"y" * 30_000))
    assert content(first[:-1] + sender.sent()) == [Progress(2, "data", b"y" * 30_000)]


@pytest.mark.parametrize("payload", ["", "1 2 3", "a 1 0 1 x", "9 1 0 1 \x01"])
def test_foreign_payloads_are_ignored(payload: str) -> None:
    assert content([payload]) == []


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
    assert sum(map(len, one.sent())) < 1.3 * BACKLOG_LIMIT
    one.relay.send(4, Stop(1, ""))
    assert one.sent(), "the queue has space again"


def test_many_ended_jobs_are_sent_in_several_messages() -> None:
    one = Member()
    one.relay.notify_settled({4: list(range(2000))})
    messages = content(one.sent())
    assert [len(message.ids) for message in messages if isinstance(message, Settled)] == [500] * 4
    one.relay.notify_settled({5: [1]})
    assert content(one.sent()) == [Settled([1])]


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
    one.relay.observe([NodeRow(term=5, name="n5", counter=1, cluster="" if mixed else "c")])
    one.relay.send(4, Settled([1]))
    one.relay.send(5, Settled([2]))
    one.relay.notify_pending({b"f"})
    assert cluster.sent == [(4, Settled([1])), (0, Pending([b"f"]))]
    assert content(one.sent()) == [Settled([2]), *([Pending([b"f"])] if mixed else [])]
