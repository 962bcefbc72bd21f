"""Queries have their turns, and nobody waits for those whose askers have left."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.errors import StoreUnavailableError
from mainspring.storage.query import Budget, Meter, Page, PageQuery, Query
from mainspring.storage.reads import BUDGET, Reads

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.storage.engine import Answered


class Letters(PageQuery[str], frozen=True):
    """The letters behind one."""


class Store:
    """Answers when a test says so."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.asked: list[tuple[Query[Any], Answered]] = []
        self.failed: list[Exception] = []
        self.reads = Reads(self, self.soon.append, failing=self.failed.append)

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        assert budget is BUDGET
        self.asked.append((query, answered))

    def turn(self) -> list[Any]:
        """Let the loop turn; returns what the store was asked since."""
        before = len(self.asked)
        while self.soon:
            self.soon.popleft()()
        return [getattr(query, "after", None) for query, _ in self.asked[before:]]

    def answer(self, what: Any) -> None:
        self.asked[-1][1](what)


def test_one_query_is_under_way_at_a_time() -> None:
    store, told = Store(), list[Any]()
    for letter in "abc":
        store.reads.ask(Letters(after=letter), told.append, told.append)
    assert store.asked == [], "not before the turn is over"
    assert store.turn() == ["a"]
    store.answer(Page(["b"]))
    assert told == [Page(["b"])]
    assert store.turn() == ["b"]


def test_pages_are_gathered_in_turns_with_others() -> None:
    store, told, other = Store(), list[Any](), list[Any]()
    store.reads.gather(Letters(limit=3), told.append, told.append)
    assert store.turn() == [None]
    store.reads.ask(Letters(after="other"), other.append, other.append)
    store.answer(Page(["a"], "a", 1))
    assert store.turn() == ["other"]
    store.answer(Page([]))
    assert store.turn() == ["a"]
    assert store.asked[-1][0] == Letters(after="a", limit=2)
    assert told == []
    store.answer(Page(["b", "c"], "c", 3))
    assert told == [Page(["a", "b", "c"], "c", 3)]
    assert store.turn() == []


def test_a_short_list_ends_with_the_last_page() -> None:
    store, told = Store(), list[Any]()
    store.reads.gather(Letters(limit=9), told.append, told.append)
    store.turn()
    store.answer(Page([], "a"))
    store.turn()
    store.answer(Page(["b"]))
    assert told == [Page(["b"])]


def test_what_nobody_waits_for_is_not_read() -> None:
    store, told = Store(), list[Any]()
    there = True
    store.reads.gather(Letters(limit=9), told.append, told.append, lambda: there)
    store.reads.ask(Letters(after="x"), told.append, told.append, lambda: there)
    store.reads.ask(Letters(after="y"), told.append, told.append)
    store.turn()
    there = False
    store.answer(Page(["a"], "a"))
    assert store.turn() == ["y"]
    assert told == []


def test_a_failure_is_told_and_the_next_one_is_asked() -> None:
    store, told = Store(), list[Any]()
    away = StoreUnavailableError("away")
    for letter in "ab":
        store.reads.gather(Letters(after=letter), told.append, told.append)
    store.turn()
    store.answer(away)
    assert told == store.failed == [away]
    assert store.turn() == ["b"]


def test_nothing_is_told_after_the_end() -> None:
    store, told = Store(), list[Any]()
    for letter in "ab":
        store.reads.ask(Letters(after=letter), told.append, told.append)
    store.turn()
    store.reads.close()
    store.answer(Page([]))
    assert told == store.turn() == []


@pytest.mark.parametrize(("seconds", "parts"), [(1.0, [3, 3, 1, 0]), (0.0, [3, 0])])
def test_a_budget_ends_with_its_rows_or_its_time(seconds: float, parts: list[int]) -> None:
    now = 7.0
    meter = Meter(Budget(rows=7, seconds=seconds, part=3), lambda: now)
    given = []
    for _ in parts:
        given.append(meter.part())
        meter.spend(given[-1])
    assert given == parts
