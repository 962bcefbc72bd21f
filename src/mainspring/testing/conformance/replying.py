"""Kept answers of requests."""

# ruff: noqa: D102 - the tests' names describe them
from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.access.replies import Keep, KeptReply, Release, Reservation, Reserve, SweepReplies

if TYPE_CHECKING:
    from mainspring.testing.conformance.driver import Store

REPLY = KeptReply(201, {b"location": b"/x"}, b"{}")


def reserve(
    store: Store, key: bytes, request: bytes = b"r", at_us: int = 100, expired_us: int = 0
) -> Reservation | None:
    """Reserve a key; return the outcome."""
    (outcome,) = store.group(Reserve(key, request, at_us, expired_us))
    assert outcome is None or isinstance(outcome, Reservation)
    return outcome


class Replying:
    """Tests of kept answers in a store."""

    def test_a_key_is_reserved_once(self, store: Store) -> None:
        assert store.group(Reserve(b"k", b"r", 100, 0), Reserve(b"k", b"s", 101, 0)) == [
            None,
            Reservation(b"r", 100, None),
        ]
        store.reopen()
        assert reserve(store, b"k", b"t") == Reservation(b"r", 100, None)
        assert reserve(store, b"other") is None

    def test_an_answer_is_kept(self, store: Store) -> None:
        reserve(store, b"k")
        store.group(Keep(b"k", REPLY), Release(b"k"))
        store.reopen()
        assert reserve(store, b"k") == Reservation(b"r", 100, REPLY)
        store.group(Keep(b"unknown", REPLY))
        assert reserve(store, b"unknown") is None

    def test_a_released_key_can_be_reserved(self, store: Store) -> None:
        reserve(store, b"k")
        store.group(Release(b"k"))
        assert reserve(store, b"k") is None

    def test_old_answers_are_deleted_and_count_no_more(self, store: Store) -> None:
        for number in range(4):
            reserve(store, b"k%d" % number, at_us=100 + number)
        store.group(Keep(b"k0", REPLY))
        assert reserve(store, b"k0", b"new", at_us=200, expired_us=101) is None
        assert reserve(store, b"k0") == Reservation(b"new", 200, None)
        assert store.group(SweepReplies(103)) == [2]
        assert reserve(store, b"k3", expired_us=103) == Reservation(b"r", 103, None)
        assert reserve(store, b"k1") is None
