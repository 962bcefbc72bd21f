from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.engines.postgres.relay import BACKLOG, Relay, decode, encode
from mainspring.events.relay import Ask, Message, Pending, Progress, Running, Settled, Stop

IDS = st.integers(1, 2**63 - 1)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Settled, st.lists(IDS)),
    st.builds(Pending, st.lists(st.binary())),
    st.builds(Progress, IDS, st.sampled_from(["data", "warning", "status"]), st.binary(), st.binary()),
    st.builds(Stop, IDS, st.text()),
    st.builds(Ask, IDS, IDS),
    st.builds(Running, IDS, IDS, st.integers(1, 9), st.text(), st.binary(), st.binary()),
)


@given(st.lists(MESSAGES))
def test_what_is_encoded_is_decoded(messages: list[Message]) -> None:
    assert decode(encode(messages)) == messages


def test_what_a_newer_version_says_is_passed_over() -> None:
    newer = base64.b85encode(msgspec.msgpack.encode([[99, "what"], [3, 5, "stop"]])).decode()
    assert decode(newer) == [Stop(5, "stop")]


def a_relay(cluster: Any = None) -> Relay:
    one = Relay(None, 7, cluster)  # type: ignore[arg-type]
    one._term = 3
    return one


def heard(listener: Relay, payloads: list[str]) -> list[Message]:
    messages: list[Message] = []
    listener.listen(messages.append)
    for payload in payloads:
        listener._heard(None, 0, "", payload)
    return messages


@given(st.lists(MESSAGES, min_size=1), st.integers(0, 5))
def test_a_batch_in_pieces_is_put_together_and_half_a_one_is_passed_over(messages: list[Message], missed: int) -> None:
    sender, listener = a_relay(), a_relay()
    listener._term = 4
    big = Progress(1, "data", b"\0" * 30_000)
    for message in (big, *messages):
        sender.send(4, message)
    _, first = sender._drain()
    sender.send(4, Stop(7, "the next batch"))
    _, second = sender._drain()
    assert len(first) > 4
    assert len(set(first)) == len(first), "PostgreSQL would drop what is the same"
    assert all(len(payload.encode()) < 8000 for payload in first)
    expected = [Stop(7, "the next batch")] if missed else [big, *messages, Stop(7, "the next batch")]
    # a listener that connects in the middle has missed the first pieces
    assert heard(listener, first[min(missed, len(first)) :] + second) == expected


def test_a_batch_whose_end_is_missing_does_not_spoil_the_next() -> None:
    sender, listener = a_relay(), a_relay()
    listener._term = 4
    sender.send(4, Progress(1, "data", b"x" * 30_000))
    _, first = sender._drain()
    sender.send(4, Progress(2, "data", b"y" * 30_000))
    _, second = sender._drain()
    assert heard(listener, first[:-1] + second) == [Progress(2, "data", b"y" * 30_000)]


@pytest.mark.parametrize("payload", ["", "1 2 3", "a 1 0 1 x", "9 1 0 1 \x01"])
def test_what_strangers_say_is_passed_over(payload: str) -> None:
    assert heard(a_relay(), [payload]) == []


def test_a_node_does_not_hear_itself() -> None:
    one = a_relay()
    one.tell_pending([b"f"])
    _, payloads = one._drain()
    assert heard(one, payloads) == []


def test_what_gathers_is_bounded() -> None:
    one = a_relay()
    piece = BACKLOG // 10
    for _ in range(30):
        one.send(4, Progress(1, "data", b"x" * piece))
    assert one.dropped > 15
    _, payloads = one._drain()
    assert sum(map(len, payloads)) < 1.3 * BACKLOG
    one.send(4, Stop(1, ""))
    assert one._drain()[1], "there is room again"


def test_many_ended_jobs_are_told_in_several_messages() -> None:
    one = a_relay()
    one.tell_settled({4: list(range(2000)), 5: [1]})
    assert [len(message.ids) for message in one._queue[4] if isinstance(message, Settled)] == [500] * 4
    assert one._queue[5] == [Settled([1])]


class InCluster:
    """A cluster in which this node is, with the node of term 4."""

    id = "c"

    def __init__(self) -> None:
        self.told: list[tuple[int, Message]] = []

    def joined(self, term: int) -> bool:
        return term == 3

    def send(self, to: int, message: Message) -> bool:
        if to == 4:
            self.told.append((to, message))
        return to == 4

    def tell_all(self, message: Message) -> None:
        self.told.append((0, message))


@pytest.mark.parametrize("mixed", [False, True])
def test_the_cluster_carries_what_is_for_its_nodes_and_notify_the_rest(*, mixed: bool) -> None:
    cluster = InCluster()
    one = a_relay(cluster)
    one.mixed = mixed
    one.send(4, Settled([1]))
    one.send(5, Settled([2]))
    one.tell_pending({b"f"})
    assert cluster.told == [(4, Settled([1])), (0, Pending([b"f"]))]
    assert one._queue == {5: [Settled([2])]}
    assert one._pending == ({b"f"} if mixed else set())
