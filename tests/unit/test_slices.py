"""Long work alternates with the other work of the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.turns_of_loop import SLICE, LongWork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Loop:
    """A loop whose turns the test runs; each step takes ``share`` of a slice."""

    def __init__(self, share: float) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []
        self.slices = LongWork(self.soon.append, lambda: self.now)
        self.steps: list[str] = []
        self._share = share

    def work(self, name: str, steps: int) -> Iterator[None]:
        for number in range(steps):
            self.now += self._share * SLICE
            self.steps.append(f"{name}{number}")
            yield

    def turn(self) -> list[str]:
        """Run one turn and return the steps that ran."""
        soon, self.soon[:] = list(self.soon), []
        self.steps.clear()
        for function in soon:
            function()
        return list(self.steps)


def test_a_slice_ends_after_its_time_and_the_next_turn_continues() -> None:
    loop = Loop(0.4)
    loop.slices.run(loop.work("a", 5), lambda: loop.steps.append("end"))
    assert loop.steps == [], "the caller continues first"
    assert [loop.turn(), loop.turn(), loop.turn()] == [["a0", "a1", "a2"], ["a3", "a4", "end"], []]


def test_several_pieces_of_work_alternate() -> None:
    loop = Loop(0.5)
    loop.slices.run(loop.work("a", 3))
    loop.slices.run(loop.work("b", 2))
    assert [loop.turn(), loop.turn(), loop.turn()] == [["a0", "b0"], ["a1", "b1"], ["a2"]]
    loop.turn()
    assert loop.soon == [], "nothing is left"


def test_a_failed_step_does_not_stop_other_work() -> None:
    loop = Loop(0.5)

    def fail() -> None:
        raise ValueError

    loop.slices.put(fail)
    loop.slices.run(loop.work("a", 2))
    with pytest.raises(ValueError):
        loop.turn()
    assert loop.turn() == ["a0", "a1"]


def test_short_work_ends_at_once_and_long_work_continues_later() -> None:
    loop = Loop(0.4)
    loop.slices.start(loop.work("a", 2))
    assert (loop.steps, loop.soon) == (["a0", "a1"], [])
    loop.slices.start(loop.work("b", 5))
    assert loop.steps[2:] == ["b0", "b1", "b2"]
    assert loop.turn() == ["b3", "b4"]
