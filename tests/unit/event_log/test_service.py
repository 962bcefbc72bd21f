"""A node reads the interests in events again when they have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from mainspring.callbacks import Callback, CallInProgress
from mainspring.clock import to_us
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.event_log import types
from mainspring.event_log.interests import CurrentInterests, Interest
from mainspring.event_log.service import IDLE_SWEEP_INTERVAL, RELOAD_INTERVAL, SWEEP_INTERVAL, EventLog
from mainspring.event_log.store import READER_SECONDS, AllInterests, ShowInterests, StoredInterest, SweepEvents
from mainspring.testing.passing_time import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable


class Desk:
    """A node that shares its store, whose answers come at once."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.current = CurrentInterests()
        self.stored = AllInterests(0, [])
        self.reads = 0
        port = cast("Any", self)
        self.log = EventLog(
            port, port, self.clock, self.current, lambda _: None, first=lambda _: False, retention=60.0, most=10
        )
        self.log.tick()

    def ask(self, query: object, done: Callable[[AllInterests], None], _: object) -> None:
        assert isinstance(query, ShowInterests)
        self.reads += 1
        done(self.stored)

    def wait(self, seconds: float, *, notes: bool) -> int:
        """Let time pass, with a note of the version every three seconds or not. Return the number of reads meanwhile."""
        before = self.reads
        for second in range(round(seconds)):
            if notes and second % 3 == 0:
                self.log.note_version(self.stored.version)
            self.clock.advance(1)
            self.log.tick()
        return self.reads - before

    def store(self, *interests: StoredInterest) -> None:
        self.stored = AllInterests(self.stored.version + 1, [*interests])


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_interests_are_read_when_their_version_is_another_one(desk: Desk) -> None:
    assert desk.reads == 1
    assert desk.wait(60, notes=True) == 0
    desk.store(StoredInterest("a", Interest(frozenset({types.FAILED}))))
    assert desk.wait(1, notes=True) == 1
    assert desk.current.now
    assert desk.wait(60, notes=True) == 0


def test_interests_whose_versions_nobody_notes_are_read_regularly(desk: Desk) -> None:
    desk.wait(10, notes=True)
    assert desk.wait(3 * RELOAD_INTERVAL, notes=False) >= 2


def test_an_interest_ends_without_a_read(desk: Desk) -> None:
    until_us = to_us(desk.clock.wall() + 30)
    desk.store(StoredInterest("a", Interest(frozenset({types.FAILED})), until_us))
    assert desk.wait(20, notes=True) == 1
    assert desk.current.now
    assert desk.wait(10 + RELOAD_INTERVAL, notes=True) == 0
    assert not desk.current.now


class Store:
    """A node with a store in memory, whose groups are committed at once."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine()
        self.saves = 0
        self.swept: list[SweepEvents] = []
        port = cast("Any", self)
        self.log = EventLog(
            port,
            port,
            self.clock,
            self.engine.interests,
            lambda call: call(),
            first=None,
            retention=60.0,
            most=10,
        )

    def ask(self, query: object, *_: object) -> None:
        assert isinstance(query, ShowInterests)

    async def committed(self, operation: Any) -> Any:
        self.saves += 1
        return await Callback(lambda done, _: self.put(operation, done, done))

    def put(self, operation: Any, done: Callable[[Any], None], _: object) -> None:
        if isinstance(operation, SweepEvents):
            self.swept.append(operation)
            done(operation.limit if len(self.swept) == 1 else 0)
        else:
            self.engine.commit([operation], lambda outcomes: done(cast("Any", outcomes)[0]), lambda *_: None)


def want(store: Store, *names: str) -> int:
    found: list[int] = []
    CallInProgress(store.log.want(Interest(types.types_of(names), "default")), found.append, raised)
    return found[0]


@pytest.fixture
def store() -> Store:
    return Store()


def test_a_reader_renews_its_interest_every_few_minutes(store: Store) -> None:
    begun = want(store, "job.*")
    assert store.saves == 1
    store.clock.advance(READER_SECONDS / 3)
    assert want(store, "job.*") == begun
    assert store.saves == 1
    store.clock.advance(READER_SECONDS / 3)
    assert want(store, "job.*") == begun
    assert store.saves == 2
    store.clock.advance(READER_SECONDS * 1.6)
    assert want(store, "job.*") > begun


@pytest.mark.parametrize("calls", range(1, 8))
def test_a_reader_may_be_away_for_ten_minutes_after_its_last_call(store: Store, calls: int) -> None:
    begun = want(store, "job.*")
    for _ in range(calls):
        store.clock.advance(READER_SECONDS / 5)
        want(store, "job.*")
    store.clock.advance(READER_SECONDS * 0.99)
    assert want(store, "job.*") == begun


def test_a_reader_is_complete_from_the_oldest_interest_that_includes_it(store: Store) -> None:
    narrow = want(store, "job.failed")
    wide = want(store, "*")
    assert narrow < wide
    assert want(store, "job.failed") == narrow
    assert want(store, "job.succeeded") == wide
    assert want(store, "job.failed", "job.succeeded") == wide


def test_the_log_is_swept_by_age_and_number(store: Store) -> None:
    store.clock.advance(SWEEP_INTERVAL)
    want(store, "job.*")
    store.log.tick()
    assert len(store.swept) == 2  # a full sweep is followed by another one
    assert (store.swept[0].before_us, store.swept[0].most) == (to_us(store.clock.wall() - 60.0), 10)
    store.clock.advance(1)
    store.log.tick()
    assert len(store.swept) == 2
    store.clock.advance(SWEEP_INTERVAL)
    want(store, "job.*")
    store.log.tick()
    assert len(store.swept) == 3


def test_the_log_is_swept_rarely_while_nobody_wants_events(store: Store) -> None:
    store.clock.advance(SWEEP_INTERVAL)
    store.log.tick()
    swept = len(store.swept)
    assert swept
    store.clock.advance(SWEEP_INTERVAL)
    store.log.tick()
    assert len(store.swept) == swept
    store.clock.advance(IDLE_SWEEP_INTERVAL)
    store.log.tick()
    assert len(store.swept) == swept + 1


def test_a_reader_that_waits_is_called_at_new_events_and_once_a_second(store: Store) -> None:
    called: list[int] = []

    async def wait() -> None:
        await store.log.grown(store.log.growths)
        called.append(store.log.growths)

    CallInProgress(wait(), lambda _: None, raised)
    assert store.log.is_read
    store.log.written(numbered=True)
    assert len(called) == 1
    CallInProgress(wait(), lambda _: None, raised)
    store.clock.advance(1)
    store.log.tick()
    assert len(called) == 2
    seen = store.log.growths
    store.log.written(numbered=True)
    CallInProgress(store.log.grown(seen), lambda _: called.append(seen), raised)  # it has grown since
    assert len(called) == 3


def raised(error: Exception) -> None:
    raise error
