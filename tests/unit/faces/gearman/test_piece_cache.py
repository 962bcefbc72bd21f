"""Pieces of long answers that several peers request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.errors import StoreFullError
from mainspring.faces.gearman.face import CACHE_BYTES, CACHE_SECONDS, PieceCache
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.face import Piece


class Reader:
    """Requests pieces, which are built when the test lets it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cache = PieceCache(self.clock.monotonic)
        self.building: list[Callable[[Piece | StoreFullError], None]] = []
        self.got: list[Piece | object] = []

    def request(self, key: str) -> None:
        self.cache.get(key, self.building.append, self.got.append)

    def build(self, key: str, piece: bytes) -> None:
        self.request(key)
        self.building.pop()((piece, None))
        self.got.clear()


def test_a_piece_is_built_once_for_concurrent_requests() -> None:
    reader = Reader()
    for _ in range(3):
        reader.request("a")
    (make,) = reader.building
    assert reader.got == []
    make((b"piece", 1))
    assert reader.got == [(b"piece", 1)] * 3


def test_a_piece_is_cached_for_a_second() -> None:
    reader = Reader()
    reader.build("a", b"a")
    reader.clock.advance(CACHE_SECONDS)
    reader.request("a")
    assert reader.got == [(b"a", None)]
    reader.clock.advance(0.001)
    reader.request("a")
    assert len(reader.building) == 1


def test_a_failed_piece_is_built_again() -> None:
    reader = Reader()
    error = StoreFullError("full")
    reader.request("a")
    reader.building.pop()(error)
    assert reader.got == [error]
    reader.request("a")
    assert len(reader.building) == 1


def test_the_cache_has_a_limit_in_bytes() -> None:
    reader = Reader()
    for key in "abcd":
        reader.build(key, bytes(CACHE_BYTES // 3))
    reader.request("a")
    assert reader.got == []
    for key in "bcd":
        reader.request(key)
    assert len(reader.got) == 3
