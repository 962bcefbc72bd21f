"""A node reads the interests in events again when they have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from mainspring.clock import to_us
from mainspring.event_log import types
from mainspring.event_log.interests import CurrentInterests, Interest
from mainspring.event_log.service import RELOAD_INTERVAL, EventLog
from mainspring.event_log.store import AllInterests, ShowInterests, StoredInterest
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
