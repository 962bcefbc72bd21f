"""What is due soon, with things that are letters and a store that answers when a test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from mainspring.clock import to_us
from mainspring.errors import StoreUnavailableError
from mainspring.jobs.timers import Timers
from mainspring.storage.agenda import AGAIN, AHEAD, BACKUP, LOOK_EVERY, Agenda
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Found(NamedTuple):
    due: list[tuple[str, int]]
    next_us: int | None = None


class Desk:
    """One node with an agenda. Times are seconds after the start."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.start = self.clock.wall()
        self.timers = Timers(lambda _: None)
        self.asked: list[tuple[float, Callable[[Found], None], Callable[[Any], None]]] = []
        self.done: list[tuple[float, str]] = []
        self.mine = set("abc")
        self.paused = False
        self.agenda: Agenda[str] = Agenda(
            self.clock,
            self.timers,
            lambda until_us, found, failed: self.asked.append((self.since(until_us), found, failed)),
            self.act,
            str,
            first=lambda name: name in self.mine,
            paused=lambda: self.paused,
        )

    def since(self, time_us: int) -> float:
        return round(time_us / 1_000_000 - self.start, 3)

    def us(self, seconds: float) -> int:
        return to_us(self.start + seconds)

    def act(self, items: Iterable[str]) -> None:
        self.done += [(self.now, item) for item in items]

    @property
    def now(self) -> float:
        return round(self.clock.wall() - self.start, 3)

    def answer(self, *due: tuple[str, float], following: float | None = None) -> None:
        _, found, _ = self.asked.pop(0)
        next_us = None if following is None else self.us(following)
        found(Found([(item, self.us(at)) for item, at in due], next_us))

    def until(self, seconds: float) -> None:
        """Let time pass, and timers ring at their times."""
        while (at := self.timers.next()) is not None and at - self.clock.monotonic() <= seconds - self.now:
            self.clock.advance(max(at - self.clock.monotonic(), 0))
            self.timers.run(self.clock.monotonic())
        self.clock.advance(max(seconds - self.now, 0))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_is_due_is_done_at_its_time(desk: Desk) -> None:
    desk.agenda.look()
    assert [until for until, _, _ in desk.asked] == [AHEAD]
    desk.answer(("a", 1), ("b", 3))
    desk.until(2)
    assert desk.done == [(1.0, "a")]
    desk.until(4)
    assert desk.done[1:] == [(3.0, "b")]
    assert desk.agenda.lateness < 0.002


def test_what_is_under_way_does_not_come_again_before_it_is_done(desk: Desk) -> None:
    desk.agenda.look()
    desk.answer(("a", 0))
    desk.agenda.look()
    desk.answer(("a", 0))
    assert [item for _, item in desk.done] == ["a"]
    desk.agenda.done(["a"])
    desk.agenda.add([("a", desk.us(0.5))])
    desk.until(1)
    assert desk.done[1:] == [(0.5, "a")]


def test_what_is_another_nodes_is_done_where_that_one_has_not(desk: Desk) -> None:
    desk.agenda.look()
    desk.answer(("x", 1), ("y", 1))
    desk.until(1 + BACKUP + 0.01)
    assert desk.done == []
    assert [until for until, _, _ in desk.asked] == [1.0], "what was due then and still is"
    desk.answer(("y", 1))
    assert [item for _, item in desk.done] == ["y"]


def test_what_is_late_is_everybodys(desk: Desk) -> None:
    desk.agenda.look()
    desk.answer(("x", -BACKUP))
    assert desk.done == [(0.0, "x")]


def test_what_is_far_ahead_is_fetched_shortly_before(desk: Desk) -> None:
    desk.agenda.look()
    desk.answer(following=60)
    desk.agenda.add([("a", desk.us(30))])
    desk.until(30 - AHEAD - 1)
    assert desk.asked == []
    desk.until(30 - AHEAD + 0.1)
    assert [until for until, _, _ in desk.asked] == [30.0], "the earlier of both"


def test_a_look_that_failed_is_repeated(desk: Desk) -> None:
    desk.agenda.look()
    _, _, failed = desk.asked.pop()
    failed(StoreUnavailableError("away"))
    desk.until(AGAIN + 0.01)
    assert len(desk.asked) == 1


def test_a_look_during_a_look_is_a_second_one(desk: Desk) -> None:
    desk.agenda.look()
    desk.agenda.look()
    desk.agenda.look()
    assert len(desk.asked) == 1
    desk.answer()
    assert len(desk.asked) == 1
    desk.answer()
    assert desk.asked == []


def test_changes_of_others_are_looked_for_now_and_then(desk: Desk) -> None:
    desk.agenda.tick()
    assert desk.asked == []
    desk.clock.advance(LOOK_EVERY)
    desk.agenda.tick()
    assert len(desk.asked) == 1


def test_while_it_is_paused_nothing_is_fetched_or_done(desk: Desk) -> None:
    desk.agenda.look()
    desk.answer(("a", 1))
    desk.paused = True
    desk.until(2)
    desk.agenda.look()
    assert (desk.asked, desk.done) == ([], [])
    desk.paused = False
    desk.agenda.tick()
    assert desk.done == [(2.0, "a")]


def test_a_clock_that_is_stepped_makes_nothing_late(desk: Desk) -> None:
    desk.agenda.look()
    desk.answer(("a", 3))
    desk.clock.step(3)
    desk.agenda.tick()
    assert [item for _, item in desk.done] == ["a"]
