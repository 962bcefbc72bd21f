"""A node adjusts its clock to the store's, renews its lease, and recovers ended terms."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mainspring.errors import StoreFencedError, StoreUnavailableError
from mainspring.ids import Term
from mainspring.nodes.lease_manager import CLOCK_READ_INTERVAL, MAX_CLOCK_AGE, SLOW_CLOCK_READ, LeaseManager
from mainspring.testing import ManualClock

from .rows import row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.nodes.model import NodeRow

BEAT = 5.0


class Store:
    """A store and a node in one: the test sets the duration of answers, and the node's clock is adjusted as requested."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.way_there = self.way_back = 0.0
        self.offset = 0.0
        """The sum of all adjustments of the node's clock, in seconds."""
        self.ahead = 3600.0
        """The seconds by which the store's clock is ahead of the node's machine's."""

    async def beat(self, row: NodeRow) -> Sequence[NodeRow]:
        return [row]

    async def rows(self) -> Sequence[NodeRow]:
        return []

    async def now(self) -> float:
        self.clock.advance(self.way_there)
        store = self.clock.wall() + self.ahead
        self.clock.advance(self.way_back)
        return store

    async def end(self, term: int, counter: int | None = None) -> bool:
        raise AssertionError((term, counter))

    async def abandoned(self) -> Sequence[int]:
        return []

    async def ask_to_drain(self, term: int, *, draining: bool = True) -> bool:
        raise AssertionError((term, draining))

    def row(self, counter: int) -> NodeRow:
        return row(1, counter)

    def fenced(self) -> None:
        raise AssertionError

    def recover(self, terms: Sequence[int]) -> None:
        raise AssertionError(terms)

    def begin_term(self, term: Term) -> None:
        raise AssertionError(term)

    def members(self, live: tuple[NodeRow, ...]) -> None:
        pass

    def drain(self, draining: bool) -> None:
        raise AssertionError(draining)

    def adjust_clock(self, offset: float) -> None:
        self.offset = offset

    def session_is_back(self) -> None:
        raise AssertionError


async def begun() -> Term:
    raise AssertionError


@pytest.fixture
def store() -> Store:
    return Store()


async def beats(store: Store, lease_manager: LeaseManager, seconds: float) -> None:
    for _ in range(round(seconds / BEAT)):
        store.clock.advance(BEAT)
        await lease_manager.step()


def test_a_quick_answer_adjusts_the_clock(store: Store) -> None:
    async def main() -> None:
        lease_manager = LeaseManager(store, store, store.clock, begun, beat=BEAT)
        await lease_manager.start(Term(1), store.clock.monotonic())
        assert store.offset == pytest.approx(store.ahead)

    asyncio.run(main())


def test_a_node_without_the_time_of_its_store_does_not_start(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its schedules would fire by its machine's clock, which may be wrong."""
    failures = [StoreUnavailableError("away")]
    answer = store.now

    async def now() -> float:
        if failures:
            raise failures.pop()
        return await answer()

    async def main() -> None:
        monkeypatch.setattr(store, "now", now)
        lease_manager = LeaseManager(store, store, store.clock, begun, beat=BEAT)
        with pytest.raises(StoreUnavailableError):
            await lease_manager.start(Term(1), store.clock.monotonic())
        await lease_manager.start(Term(1), store.clock.monotonic())
        assert store.offset == pytest.approx(store.ahead)

    asyncio.run(main())


def test_a_term_that_ends_before_the_first_beat_fences_the_node(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def now() -> float:
        raise StoreFencedError("the term has ended")

    async def main() -> None:
        fenced: list[None] = []
        monkeypatch.setattr(store, "now", now)
        monkeypatch.setattr(store, "fenced", lambda: fenced.append(None))
        lease_manager = LeaseManager(store, store, store.clock, begun, beat=BEAT)
        await lease_manager.start(Term(1), store.clock.monotonic())
        assert fenced == [None]

    asyncio.run(main())


def test_a_slow_answer_does_not_make_the_clock_worse(store: Store) -> None:
    async def main() -> None:
        lease_manager = LeaseManager(store, store, store.clock, begun, beat=BEAT)
        await lease_manager.start(Term(1), store.clock.monotonic())
        store.way_back = SLOW_CLOCK_READ * 10
        await beats(store, lease_manager, CLOCK_READ_INTERVAL * 2)
        assert store.offset == pytest.approx(store.ahead)
        store.way_back, store.ahead = 0.0, 7200.0
        await beats(store, lease_manager, BEAT)
        assert store.offset == pytest.approx(store.ahead), "the next beat reads the clock again"

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [0.0, MAX_CLOCK_AGE + CLOCK_READ_INTERVAL])
def test_a_slow_answer_is_better_than_none(store: Store, seconds: float) -> None:
    async def main() -> None:
        lease_manager = LeaseManager(store, store, store.clock, begun, beat=BEAT)
        store.way_back = SLOW_CLOCK_READ * 2 if not seconds else 0.0
        await lease_manager.start(Term(1), store.clock.monotonic())
        store.way_back = SLOW_CLOCK_READ * 2
        if seconds:
            store.ahead = 7200.0
        await beats(store, lease_manager, seconds)
        assert store.offset == pytest.approx(store.ahead, abs=SLOW_CLOCK_READ * 1.01)

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_a_node_whose_lease_has_ended_gives_up_its_jobs_and_begins_a_new_term(
    store: Store, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A new term whose begin takes ``seconds`` may have ended by then, and is not used."""
    events: list[object] = []

    async def end(term: int, counter: int | None = None) -> bool:
        events.append(f"term {term} ends")
        return counter is None

    async def begin() -> Term:
        store.clock.advance(seconds)
        return Term(2)

    async def main() -> None:
        monkeypatch.setattr(store, "fenced", lambda: events.append("fenced"))
        monkeypatch.setattr(store, "end", end)
        monkeypatch.setattr(store, "begin_term", lambda term: events.append(f"term {term} begins"))
        monkeypatch.setattr(store, "recover", lambda terms: events.append(f"{terms} are recovered"))
        lease_manager = LeaseManager(store, store, store.clock, begin, lease=25.0, beat=BEAT)
        await lease_manager.start(Term(1), store.clock.monotonic())
        lease_manager.check()
        assert events == []
        store.clock.advance(30.0)
        lease_manager.check()
        assert events == ["fenced"]
        assert not lease_manager.lease_valid()
        await lease_manager.step()
        assert lease_manager.lease_valid() is not bool(seconds)

    asyncio.run(main())
    begun = [] if seconds else ["term 2 begins", "[1] are recovered"]
    assert events == ["fenced", "term 1 ends", *begun]


def test_the_ended_terms_that_still_hold_jobs_are_recovered_by_their_heirs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovered: list[Sequence[int]] = []

    async def beat(own: NodeRow) -> Sequence[NodeRow]:
        return [own, row(7, own.counter)]

    async def abandoned() -> Sequence[int]:
        return [1, 5, 9]

    async def main() -> None:
        monkeypatch.setattr(store, "row", lambda counter: row(3, counter))
        monkeypatch.setattr(store, "beat", beat)
        monkeypatch.setattr(store, "abandoned", abandoned)
        monkeypatch.setattr(store, "recover", recovered.append)
        lease_manager = LeaseManager(store, store, store.clock, begun, beat=BEAT)
        await lease_manager.start(Term(3), store.clock.monotonic())
        await beats(store, lease_manager, BEAT)

    asyncio.run(main())
    assert recovered == [[1, 9]], "term 7 is the heir of term 5"
