"""Pieces of long answers that several peers ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.errors import StoreFullError
from mainspring.faces.gearman.kept_pieces import KEPT_BYTES, KEPT_FOR, Kept
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.kept_pieces import Made


class Asking:
    """Asks for pieces, which are made when the test says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.kept = Kept(self.clock.monotonic)
        self.making: list[Callable[[Made | StoreFullError], None]] = []
        self.got: list[Made | object] = []

    def ask(self, key: str) -> None:
        self.kept.ask(key, self.making.append, self.got.append)

    def make(self, key: str, made: bytes) -> None:
        self.ask(key)
        self.making.pop()((made, None))
        self.got.clear()


def test_a_piece_is_made_once_for_all_who_ask_meanwhile() -> None:
    asking = Asking()
    for _ in range(3):
        asking.ask("a")
    (make,) = asking.making
    assert asking.got == []
    make((b"piece", 1))
    assert asking.got == [(b"piece", 1)] * 3


def test_a_piece_is_kept_for_a_while() -> None:
    asking = Asking()
    asking.make("a", b"a")
    asking.clock.advance(KEPT_FOR)
    asking.ask("a")
    assert asking.got == [(b"a", None)]
    asking.clock.advance(0.001)
    asking.ask("a")
    assert len(asking.making) == 1


def test_what_could_not_be_made_is_made_again() -> None:
    asking = Asking()
    error = StoreFullError("full")
    asking.ask("a")
    asking.making.pop()(error)
    assert asking.got == [error]
    asking.ask("a")
    assert len(asking.making) == 1


def test_pieces_have_room_for_so_many_bytes() -> None:
    asking = Asking()
    for key in "abcd":
        asking.make(key, bytes(KEPT_BYTES // 3))
    asking.ask("a")
    assert asking.got == []
    for key in "bcd":
        asking.ask(key)
    assert len(asking.got) == 3
