"""The agenda with letters as items, and a store that answers when the test lets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from mainspring.clock import to_us
from mainspring.errors import StoreUnavailableError
from mainspring.storage.agenda import (
    FETCH_AHEAD,
    FETCH_INTERVAL,
    IDLE_FACTOR,
    LAST_PART,
    PAUSE,
    RETRY_DELAY,
    TAKEOVER_DELAY,
    Agenda,
)
from mainspring.testing import ManualClock
from mainspring.turns_of_loop import Timers

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
        """Let time pass, ringing timers at their times."""
        while (at := self.timers.next()) is not None and at - self.clock.monotonic() <= seconds - self.now:
            self.clock.advance(max(at - self.clock.monotonic(), 0))
            self.timers.run(self.clock.monotonic())
        self.clock.advance(max(seconds - self.now, 0))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_due_item_is_handled_at_its_time(desk: Desk) -> None:
    desk.agenda.fetch()
    assert [until for until, _, _ in desk.asked] == [FETCH_AHEAD]
    desk.answer(("a", 1), ("b", 3))
    desk.until(2)
    assert desk.done == [(1.0, "a")]
    desk.until(4)
    assert desk.done[1:] == [(3.0, "b")]
    assert desk.agenda.lateness < 0.002


def test_an_item_in_progress_is_not_handled_twice(desk: Desk) -> None:
    desk.agenda.fetch()
    desk.answer(("a", 0))
    desk.agenda.fetch()
    desk.answer(("a", 0))
    assert [item for _, item in desk.done] == ["a"]
    desk.agenda.done(["a"])
    desk.agenda.add([("a", desk.us(0.5))])
    desk.until(1)
    assert desk.done[1:] == [(0.5, "a")]


def test_another_nodes_item_is_handled_if_that_node_has_not(desk: Desk) -> None:
    desk.agenda.fetch()
    desk.answer(("x", 1), ("y", 1))
    desk.until(1 + TAKEOVER_DELAY + 0.01)
    assert desk.done == []
    assert [until for until, _, _ in desk.asked] == [1.0], "it reads which items are still due"
    desk.answer(("y", 1))
    assert [item for _, item in desk.done] == ["y"]


def test_a_late_item_is_handled_by_every_node(desk: Desk) -> None:
    desk.agenda.fetch()
    desk.answer(("x", -TAKEOVER_DELAY))
    assert desk.done == [(0.0, "x")]


def test_a_distant_item_is_fetched_shortly_before_its_time(desk: Desk) -> None:
    desk.agenda.fetch()
    desk.answer(following=60)
    desk.agenda.add([("a", desk.us(30))])
    desk.until(30 - FETCH_AHEAD - 1)
    assert desk.asked == []
    desk.until(30 - FETCH_AHEAD + 0.1)
    assert [until for until, _, _ in desk.asked] == [30.0], "the earlier of the two"


def test_a_failed_fetch_is_retried(desk: Desk) -> None:
    desk.agenda.fetch()
    _, _, failed = desk.asked.pop()
    failed(StoreUnavailableError("away"))
    desk.until(RETRY_DELAY + 0.01)
    assert len(desk.asked) == 1


def test_a_fetch_requested_during_a_fetch_follows_it(desk: Desk) -> None:
    desk.agenda.fetch()
    desk.agenda.fetch()
    desk.agenda.fetch()
    assert len(desk.asked) == 1
    desk.answer()
    assert len(desk.asked) == 1
    desk.answer()
    assert desk.asked == []


def test_an_item_that_was_added_twice_is_handled_once(desk: Desk) -> None:
    desk.agenda.add([("a", desk.us(1)), ("a", desk.us(1))])
    desk.until(2)
    assert [item for _, item in desk.done] == ["a"]


def test_changes_of_other_nodes_are_fetched_regularly(desk: Desk) -> None:
    desk.agenda.tick()
    assert desk.asked == []
    desk.clock.advance(FETCH_INTERVAL)
    desk.agenda.tick()
    assert len(desk.asked) == 1


def test_a_paused_agenda_fetches_and_handles_nothing(desk: Desk) -> None:
    desk.agenda.fetch()
    desk.answer(("a", 1))
    desk.paused = True
    desk.until(2)
    desk.agenda.fetch()
    assert (desk.asked, desk.done) == ([], [])
    desk.paused = False
    desk.agenda.tick()
    assert desk.done == [(2.0, "a")]


def test_a_stepped_clock_delays_no_item(desk: Desk) -> None:
    desk.agenda.fetch()
    desk.answer(("a", 3))
    desk.clock.step(3)
    desk.agenda.tick()
    assert [item for _, item in desk.done] == ["a"]


def test_a_late_node_leaves_the_items_of_others_to_them_for_longer(desk: Desk) -> None:
    desk.agenda.fetch()
    desk.answer(("a", 1), ("x", 1))
    desk.until(1 + TAKEOVER_DELAY + 0.1)
    (until,) = (until for until, _, _ in desk.asked)
    assert until == pytest.approx(1 - TAKEOVER_DELAY, abs=0.01), "it has handled its own item since 1"
    desk.answer()
    desk.agenda.fetch()
    desk.answer(("a", 1), ("x", 1))
    assert [item for _, item in desk.done] == ["a"]
    desk.agenda.done("a")
    desk.agenda.fetch()
    desk.answer(("x", 1))
    assert [item for _, item in desk.done] == ["a", "x"]


def test_the_next_fetch_comes_before_the_last_of_very_many_items(desk: Desk) -> None:
    desk.agenda.fetch()
    desk.answer(("a", 1), ("x", 2), following=2)  # more than one fetch finds
    desk.until(2 * (1 - LAST_PART) - 0.01)
    assert desk.asked == []
    desk.until(2 * (1 - LAST_PART) + 0.01)
    assert [until for until, _, _ in desk.asked] == [pytest.approx(2 * (1 - LAST_PART) + FETCH_AHEAD, abs=0.01)]


def test_items_that_are_due_in_the_same_moment_have_one_turn(desk: Desk) -> None:
    desk.agenda.fetch()
    desk.answer(("a", 1), ("b", 1 + PAUSE / 5), ("c", 1 + PAUSE / 2))
    desk.until(2)
    assert [item for _, item in desk.done] == ["a", "b", "c"]
    assert desk.done[1][0] == desk.done[2][0]


def test_a_node_without_due_items_fetches_less_often(desk: Desk) -> None:
    assert FETCH_INTERVAL * IDLE_FACTOR < FETCH_AHEAD, "or items of other nodes would be found late"
    desk.agenda.fetch()
    desk.answer()
    for seconds in (FETCH_INTERVAL, FETCH_INTERVAL * IDLE_FACTOR):
        assert desk.asked == []
        desk.until(seconds)
        desk.agenda.tick()
    desk.answer(("a", FETCH_INTERVAL * IDLE_FACTOR + 4))
    desk.until(FETCH_INTERVAL * (IDLE_FACTOR + 1))
    desk.agenda.tick()
    assert len(desk.asked) == 1


def test_a_node_handles_an_item_that_others_may_not_have_fetched(desk: Desk) -> None:
    desk.agenda.add([("x", desk.us(1)), ("y", desk.us(FETCH_INTERVAL * IDLE_FACTOR + 0.5))])
    desk.until(FETCH_INTERVAL * IDLE_FACTOR + 0.5 + TAKEOVER_DELAY - 0.01)
    assert [item for _, item in desk.done] == ["x"], "the first in line has had time to fetch the other one"
    assert desk.done[0][0] == pytest.approx(1, abs=0.01)


def test_an_empty_agenda_skips_fetches_while_nothing_is_due(desk: Desk) -> None:
    for second in range(3, 30, 3):
        desk.agenda.skip(0)
        desk.until(second)
        desk.agenda.tick()
    assert desk.asked == []
    desk.agenda.skip(desk.us(40))
    desk.until(27 + FETCH_INTERVAL * IDLE_FACTOR)
    desk.agenda.tick()
    assert len(desk.asked) == 1, "it has skipped none for long"
    desk.answer(following=40)
    while desk.now < 40:
        desk.agenda.skip(desk.us(40))
        desk.until(desk.now + 0.25)
        if desk.asked:
            assert desk.now >= 40 - FETCH_AHEAD
            desk.answer(("a", 40))
    desk.until(41)
    assert desk.done == [(40.0, "a")]


@pytest.mark.parametrize("items", [[("a", 2.0)], [("x", 2.0)]])
def test_an_agenda_with_items_skips_no_fetch(desk: Desk, items: list[tuple[str, float]]) -> None:
    """The first time may be older than its last fetch."""
    desk.agenda.fetch()
    desk.agenda.skip(0)
    desk.answer(*items)
    assert not desk.agenda.is_empty
    desk.agenda.skip(0)
    desk.until(FETCH_INTERVAL)
    desk.agenda.tick()
    assert desk.asked


def test_an_item_that_is_due_soon_is_fetched(desk: Desk) -> None:
    for seconds in (-1.0, FETCH_AHEAD - 0.1):
        desk.agenda.skip(desk.us(desk.now + seconds))
    desk.until(FETCH_INTERVAL)
    desk.agenda.tick()
    assert len(desk.asked) == 1
