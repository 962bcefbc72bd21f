"""Answers are written in the order of their requests, in whatever order they are completed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainspring.faces.gearman.peer_io import Outbox, Outstanding, Slot


@given(st.lists(st.booleans(), max_size=30), st.randoms(use_true_random=False))
def test_every_answer_is_written_once_in_the_order_of_the_requests(waits: list[bool], chance: object) -> None:
    written: list[bytes] = []
    outbox = Outbox(lambda data, _owner=None, /: written.append(data), Outstanding(2**40, 2**40, lambda _: None))
    slots: list[tuple[Slot, bytes]] = []
    for number, wait in enumerate(waits):
        data = b"%d," % number
        if wait:
            slots.append((outbox.reserve(), data))
        else:
            outbox.send(data)
    chance.shuffle(slots)  # type: ignore[attr-defined]
    for slot, data in slots:
        outbox.fill(slot, data)
    assert b"".join(written) == b"".join(b"%d," % number for number in range(len(waits)))
    assert not outbox


def test_answers_behind_pending_ones_are_counted_by_their_bytes() -> None:
    pressed: list[bool] = []
    outbox = Outbox(lambda _data, _owner=None, /: None, Outstanding(100, 10, pressed.append))
    first, second = outbox.reserve(), outbox.reserve()
    outbox.fill(second, b"x" * 11)
    assert pressed == [True]
    outbox.fill(first, b"x")
    assert pressed == [True, False]


def test_data_with_an_owner_is_written_separately() -> None:
    written: list[tuple[bytes, object]] = []
    outbox = Outbox(
        lambda data, owner=None, /: written.append((data, owner)), Outstanding(2**40, 2**40, lambda _: None)
    )
    owner = object()
    outbox.send(b"1", owner)
    slot = outbox.reserve()
    for data in (b"3", b"4"):
        outbox.send(data)
    outbox.send(b"5", owner)
    outbox.send(b"6")
    outbox.fill(slot, b"2")
    assert written == [(b"1", owner), (b"234", None), (b"5", owner), (b"6", None)]


class Machine(RuleBasedStateMachine):
    """Sends, reserves and fills at any time; the model contains all answers in order."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.presses = False
        self.outbox = Outbox(self._write, Outstanding(0, 0, self._press))
        self.model: list[tuple[bytes, Slot | None]] = []
        self.filled: dict[Slot, bytes] = {}
        self.count = 0

    def _write(self, data: bytes, _owner: object = None, /) -> None:
        assert data
        self.written += data

    def _press(self, full: bool) -> None:
        self.presses = full

    def _next(self) -> bytes:
        self.count += 1
        return b"%d," % self.count

    @rule()
    def send(self) -> None:
        data = self._next()
        self.model.append((data, None))
        self.outbox.send(data)

    @rule()
    def reserve(self) -> None:
        self.model.append((self._next(), self.outbox.reserve()))

    def open(self) -> list[tuple[bytes, Slot]]:
        return [(data, slot) for data, slot in self.model if slot is not None and slot not in self.filled]

    @precondition(lambda self: self.open())
    @rule(which=st.integers(min_value=0))
    def fill(self, which: int) -> None:
        waiting = self.open()
        data, slot = waiting[which % len(waiting)]
        self.filled[slot] = data
        self.outbox.fill(slot, data)

    @invariant()
    def all_completed_answers_are_written(self) -> None:
        expected = b""
        for data, slot in self.model:
            if slot is not None and slot not in self.filled:
                break
            expected += data
        assert self.written == expected
        assert bool(self.outbox) == bool(self.open())
        assert self.presses == bool(self.open()), "only pending answers are counted"


TestMachine = Machine.TestCase
