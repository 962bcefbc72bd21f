"""A store that lists its nodes' sessions: an ended session proves a death early, and a node without one hands out no jobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.errors import StoreUnavailableError
from mainspring.ids import Term
from mainspring.nodes.lease_manager import LeaseManager
from mainspring.nodes.model import LEASE, SETTLE, Membership, session_proves_death

from .rows import row
from .test_lease_manager import Store, begun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.nodes.model import NodeRow

ME = Term(1)
LOOK = 0.5  # its multiples are exact
SESSION, NEXT_SESSION = "7.1", "8.2"


def other(counter: int = 0, *, unlisted: bool = True, session: str = SESSION) -> NodeRow:
    """Return the row of another node."""
    return msgspec.structs.replace(row(2, counter), session=session, look=LOOK, unlisted=unlisted)


# ---- the rule ----


def test_a_session_proves_a_death_when_all_three_conditions_hold() -> None:
    assert session_proves_death(other(), 10.0, 10.0 + 2 * LOOK, SETTLE)


@pytest.mark.parametrize(
    ("found", "asked", "unbroken"),
    [
        pytest.param(other(unlisted=False), 20.0, 20.0, id="the store lists its session"),
        pytest.param(other(), 10.0 + 2 * LOOK - 0.001, 20.0, id="it may have beaten within two looks"),
        pytest.param(other(), 20.0, SETTLE - 0.001, id="the observer was away itself"),
    ],
)
def test_a_session_proves_no_death_when_one_condition_is_missing(found: NodeRow, asked: float, unbroken: float) -> None:
    assert not session_proves_death(found, 10.0, asked, unbroken)


# ---- observing ----


class Observer:
    """A node that looks at another one every `LOOK` seconds."""

    def __init__(self) -> None:
        self.seen = Membership(ME, interval=LOOK)
        self.now = 100.0
        self.counter = 0

    def look(self, found: NodeRow, *, unbroken: float = SETTLE, seconds: float = LOOK, took: float = 0.0) -> bool:
        """Look again after some seconds; return whether the other node is dead."""
        self.now += seconds
        asked, self.now = self.now, self.now + took
        self.counter += 1
        self.seen.observe([row(1, self.counter), found], asked, self.now, unbroken)
        return bool(self.seen.dead(self.now))


def test_a_node_without_a_session_is_dead_after_two_further_looks() -> None:
    observer = Observer()
    assert not observer.look(other(unlisted=False))
    assert not observer.look(other())
    assert not observer.look(other())
    assert observer.seen.wait(observer.now) == pytest.approx(LOOK), "the next look comes when the node may be dead"
    assert observer.look(other(), seconds=observer.seen.wait(observer.now))
    assert [found.term for found in observer.seen.mine(observer.now)] == [2]
    assert [found.term for found in observer.seen.live()] == [1]


def test_a_look_is_due_when_a_node_without_a_session_may_be_dead() -> None:
    observer = Observer()
    observer.look(other(), seconds=0.0)
    observer.look(other(), seconds=LOOK * 1.5)
    assert observer.seen.wait(observer.now) == pytest.approx(LOOK / 2)
    assert observer.look(other(), seconds=observer.seen.wait(observer.now))


def test_a_session_that_is_listed_again_proves_nothing() -> None:
    observer = Observer()
    for unlisted in (True, True, False, True, True):
        assert not observer.look(other(unlisted=unlisted))
    assert observer.look(other())


def test_a_beat_in_between_proves_that_the_node_lives() -> None:
    observer = Observer()
    for counter in (1, 1, 2, 2):
        assert not observer.look(other(counter))
    assert not observer.look(other(3, unlisted=False, session=NEXT_SESSION))
    for _ in range(10):
        assert not observer.look(other(3, unlisted=False, session=NEXT_SESSION))


def test_an_observer_that_was_away_waits() -> None:
    observer = Observer()
    for unbroken in (0.0, LOOK, 2 * LOOK, 3 * LOOK):
        assert not observer.look(other(), unbroken=unbroken)
    assert observer.look(other(), unbroken=4 * LOOK)


def test_a_verdict_does_not_outlast_the_observers_session() -> None:
    observer = Observer()
    for _ in range(3):
        dead = observer.look(other())
    assert dead
    assert not observer.look(other(), unbroken=0.1), "all sessions may have ended"
    assert not observer.look(other(), seconds=LEASE - 0.1, unbroken=0.1), "and its lease begins again"
    assert observer.look(other(), seconds=LOOK, unbroken=SETTLE)


def test_a_slow_look_proves_nothing() -> None:
    observer = Observer()
    observer.look(other())
    assert not observer.look(other(), seconds=2 * LOOK, took=LOOK * 1.1), "the node may have waited for the store, too"
    assert not observer.look(other(), seconds=2 * LOOK - 0.01)
    assert observer.look(other(), seconds=0.02)


def test_a_frozen_node_has_its_whole_lease() -> None:
    observer = Observer()
    looks = 1
    while not observer.look(other(unlisted=False)):
        looks += 1
    assert looks == pytest.approx(LEASE / LOOK + 2, abs=1)


def test_a_node_of_the_version_before_has_its_whole_lease() -> None:
    observer = Observer()
    looks = 1
    while not observer.look(row(2)):
        looks += 1
    assert looks == pytest.approx(LEASE / LOOK + 2, abs=1)


# ---- a node with a session ----


class Listing(Store):
    """A store that lists sessions, and its node; a second node is there."""

    def __init__(self) -> None:
        super().__init__()
        self.id = SESSION
        self.beats: list[str] = []
        """The sessions that the node's beats have announced."""
        self.returned = 0
        """How often the node was permitted to hand out jobs again."""
        self.others: list[NodeRow] = [row(2)]
        self.looks = 0

    def session(self) -> str:
        return self.id

    def unbroken(self) -> float:
        return 10.0 if self.id else 0.0

    async def beat(self, row: NodeRow) -> Sequence[NodeRow]:
        if not self.id:
            raise StoreUnavailableError("away")
        assert bool(row.session) == bool(row.look)
        self.beats.append(row.session)
        return [row, *self.others]

    async def rows(self) -> Sequence[NodeRow]:
        self.looks += 1
        return [row(1), *self.others]

    def session_is_back(self) -> None:
        self.returned += 1


def managed(store: Listing, **options: Any) -> LeaseManager:
    return LeaseManager(store, store, store.clock, begun, sessions=store, look=LOOK, **options)


def test_a_node_announces_its_session_and_looks_at_others() -> None:
    async def main() -> None:
        store = Listing()
        manager = managed(store)
        await manager.start(Term(1), store.clock.monotonic())
        assert store.beats == [SESSION]
        for _ in range(4):
            store.clock.advance(LOOK)
            assert await manager.step() == pytest.approx(LOOK)
        assert (store.beats, store.looks) == ([SESSION], 4)

    asyncio.run(main())


def test_a_node_that_has_lost_its_session_hands_out_nothing_until_it_has_announced_another() -> None:
    async def main() -> None:
        store = Listing()
        manager = managed(store)
        await manager.start(Term(1), store.clock.monotonic())
        assert manager.may_hand_out()
        store.id = ""
        assert not manager.may_hand_out()
        assert manager.lease_valid(), "its lease goes on: others may not have noticed anything"
        await manager.step()
        store.id = NEXT_SESSION
        assert not manager.may_hand_out(), "others see the old one"
        await manager.step()
        assert store.beats == [SESSION, NEXT_SESSION], "at once, although no beat is due"
        assert store.returned == 1
        assert manager.may_hand_out()

    asyncio.run(main())


def test_a_node_alone_hands_out_jobs_without_a_session() -> None:
    async def main() -> None:
        store = Listing()
        store.others = []
        manager = managed(store)
        await manager.start(Term(1), store.clock.monotonic())
        store.id = ""
        assert manager.may_hand_out()
        store.clock.advance(LEASE)
        assert not manager.may_hand_out(), "but not after its lease"

    asyncio.run(main())


@pytest.mark.parametrize(("look", "lease"), [(0.0, LEASE), (0.5, 2.4), (3.1, LEASE)])
def test_with_few_looks_in_a_lease_the_lease_alone_decides(look: float, lease: float) -> None:
    async def main() -> None:
        store = Listing()
        manager = LeaseManager(store, store, store.clock, begun, lease=lease, beat=lease / 3, sessions=store, look=look)
        await manager.start(Term(1), store.clock.monotonic())
        assert store.beats == [""]
        store.id = ""
        assert manager.may_hand_out()

    asyncio.run(main())


def test_the_time_of_the_own_session_counts_to_the_request() -> None:
    """A session that was opened while the answer was on its way was away when it was asked."""

    async def main() -> None:
        store = Listing()
        manager = managed(store)
        await manager.start(Term(1), store.clock.monotonic())
        store.others = [other()]
        seen: list[float] = []
        observe = manager.membership.observe

        def watched(rows: Any, asked: float, now: float, unbroken: float = 0.0) -> None:
            seen.append(unbroken)
            observe(rows, asked, now, unbroken)

        manager.membership.observe = watched  # type: ignore[method-assign] # its argument is inspected

        async def slow() -> Sequence[NodeRow]:
            store.clock.advance(9.0)
            return [msgspec.structs.replace(row(1), counter=5), other()]

        store.rows = slow  # type: ignore[method-assign] # it takes time
        store.clock.advance(LOOK)
        await manager.step()
        assert seen == [1.0]

    asyncio.run(main())
