"""Queries run one at a time, and those whose callers have left are dropped."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.errors import StoreUnavailableError
from mainspring.storage.engine import Budget, Meter, Page, PageQuery, Query
from mainspring.storage.reads import BUDGET, Reads

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.storage.engine import Answered


class Letters(PageQuery[str], frozen=True):
    """The letters behind one."""


class Store:
    """A store that answers when the test lets it."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.asked: list[tuple[Query[Any], Answered]] = []
        self.failed: list[Exception] = []
        self.reads = Reads(self, self.soon.append, failing=self.failed.append)

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        assert budget is BUDGET
        self.asked.append((query, answered))

    def turn(self) -> list[Any]:
        """End the loop's turn. Return the queries that the store has received since."""
        before = len(self.asked)
        while self.soon:
            self.soon.popleft()()
        return [getattr(query, "after", None) for query, _ in self.asked[before:]]

    def answer(self, what: Any) -> None:
        self.asked[-1][1](what)


def test_one_query_runs_at_a_time() -> None:
    store, answers = Store(), list[Any]()
    for letter in "abc":
        store.reads.ask(Letters(after=letter), answers.append, answers.append)
    assert store.asked == [], "not before the turn is over"
    assert store.turn() == ["a"]
    store.answer(Page(["b"]))
    assert answers == [Page(["b"])]
    assert store.turn() == ["b"]


class Row(Query[str], frozen=True):
    """A single row."""

    is_small = True
    after: str


def test_a_small_query_precedes_waiting_lists() -> None:
    store, answers = Store(), list[Any]()
    for query in (Letters(after="a"), Letters(after="b"), Row("1"), Row("2")):
        store.reads.ask(query, answers.append, answers.append)
    assert [query for query, _ in store.asked] == [Row("1")], "a small one begins at once"
    seen = store.turn()
    while len(answers) < 4:
        store.answer("answer")
        seen += store.turn()
    assert seen == ["2", "a", "b"]


def test_a_small_query_waits_for_the_one_under_way() -> None:
    store, answers = Store(), list[Any]()
    store.reads.ask(Letters(after="a"), answers.append, answers.append)
    assert store.turn() == ["a"]
    store.reads.ask(Row("1"), answers.append, answers.append)
    assert store.turn() == []
    store.answer("answer")
    assert store.turn() == ["1"]


def test_other_queries_run_between_gathered_pages() -> None:
    store, answers, other = Store(), list[Any](), list[Any]()
    store.reads.gather(Letters(limit=3), answers.append, answers.append)
    assert store.turn() == [None]
    store.reads.ask(Letters(after="other"), other.append, other.append)
    store.answer(Page(["a"], "a", 1))
    assert store.turn() == ["other"]
    store.answer(Page([]))
    assert store.turn() == ["a"]
    assert store.asked[-1][0] == Letters(after="a", limit=2)
    assert answers == []
    store.answer(Page(["b", "c"], "c", 3))
    assert answers == [Page(["a", "b", "c"], "c", 3)]
    assert store.turn() == []


def test_a_short_list_ends_with_the_last_page() -> None:
    store, answers = Store(), list[Any]()
    store.reads.gather(Letters(limit=9), answers.append, answers.append)
    store.turn()
    store.answer(Page([], "a"))
    store.turn()
    store.answer(Page(["b"]))
    assert answers == [Page(["b"])]


def test_pages_are_gathered_until_their_bytes_are_used_up() -> None:
    store, answers = Store(), list[Any]()
    store.reads.gather(Letters(limit=9, bytes=10), answers.append, answers.append)
    store.turn()
    store.answer(Page(["a"], "a", size=4))
    assert store.turn() == ["a"]
    assert store.asked[-1][0] == Letters(after="a", limit=8, bytes=6)
    store.answer(Page(["b"], "b", size=6))
    assert answers == [Page(["a", "b"], "b", size=6)]


def test_an_unwanted_query_is_not_read() -> None:
    store, answers = Store(), list[Any]()
    there = True
    store.reads.gather(Letters(limit=9), answers.append, answers.append, lambda: there)
    store.reads.ask(Letters(after="x"), answers.append, answers.append, lambda: there)
    store.reads.ask(Letters(after="y"), answers.append, answers.append)
    store.turn()
    there = False
    store.answer(Page(["a"], "a"))
    assert store.turn() == ["y"]
    assert answers == []


def test_a_failure_is_reported_and_the_next_query_runs() -> None:
    store, answers = Store(), list[Any]()
    away = StoreUnavailableError("away")
    for letter in "ab":
        store.reads.gather(Letters(after=letter), answers.append, answers.append)
    store.turn()
    store.answer(away)
    assert answers == store.failed == [away]
    assert store.turn() == ["b"]


def test_a_closed_queue_calls_nothing() -> None:
    store, answers = Store(), list[Any]()
    for letter in "ab":
        store.reads.ask(Letters(after=letter), answers.append, answers.append)
    store.turn()
    store.reads.close()
    store.answer(Page([]))
    assert answers == store.turn() == []


@pytest.mark.parametrize(
    ("seconds", "took", "parts"),
    [
        pytest.param(1.0, 0.0, [3, 12, 5, 0], id="rows, in quick parts, which grow"),
        pytest.param(1.0, 0.125, [3, 3, 3, 3, 3, 3, 2, 0], id="rows, in slow parts"),
        pytest.param(1.0, 0.25, [3, 3, 3, 3, 0], id="time, in slow parts"),
        pytest.param(0.0, 0.0, [3, 0], id="no time"),
    ],
)
def test_a_budget_ends_with_its_rows_or_its_time(seconds: float, took: float, parts: list[int]) -> None:
    now = 7.0
    meter = Meter(Budget(rows=20, seconds=seconds, part=3), lambda: now)
    given = []
    for _ in parts:
        given.append(meter.part())
        meter.spend(given[-1])
        now += took
    assert given == parts


class Item:
    """Something that a weak reference can refer to."""


def test_gathered_items_are_freed_without_the_collector() -> None:
    store, answers = Store(), list[Any]()
    gc.disable()
    try:
        item = Item()
        seen = weakref.ref(item)
        store.reads.gather(PageQuery[Item](), answers.append, answers.append)
        store.turn()
        store.answer(Page([item]))
        assert answers.pop().items == [item]
        store.asked.clear()
        del item
        assert seen() is None
    finally:
        gc.enable()
