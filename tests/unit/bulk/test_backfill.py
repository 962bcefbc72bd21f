"""Backfills of schedules at a node in memory."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.bulk.test_service import BulkNode
from tests.unit.jobs.a_node import side

from mainspring.access.caller import Caller, Grant, Role
from mainspring.bulk import service
from mainspring.bulk.rules import Action, BulkOperation, Outcome, Status
from mainspring.callbacks import CallInProgress
from mainspring.queries import ListFires
from mainspring.schedules.model import Every, Overlap, Schedule
from mainspring.schedules.store import Change, SaveSchedules

if TYPE_CHECKING:
    from mainspring.schedules.model import Fire

SECOND = 1_000_000
TIMES = 30


class Backfilling(BulkNode):
    """A node with a schedule that fires every minute, and has not fired yet."""

    def add(self, **fields: Any) -> None:
        schedule = Schedule(name="a", function=b"f", trigger=Every(60 * SECOND), **fields)
        self.life.commits.put(
            SaveSchedules([Change("put", "a", 0, schedule)], self.bulk.now_us()), lambda _: None, lambda _: None
        )
        self.commit()

    def backfill(self, **spec: Any) -> BulkOperation:
        """Begin a backfill of the last times."""
        now_us = self.bulk.now_us()
        first_us = (now_us // (60 * SECOND) - TIMES) * 60 * SECOND + 1
        return self.begin(Action.BACKFILL, None, schedule="a", from_us=first_us, to_us=now_us - 1, **spec)

    def fires(self) -> list[Fire]:
        found: list[Fire] = self.ask(ListFires("a", limit=1000)).items
        return found


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STEPS", service.STEPS._replace(first=2))


@pytest.fixture
def node() -> Backfilling:
    node = Backfilling()
    node.add()
    return node


def test_past_times_are_served(node: Backfilling) -> None:
    bulk = node.backfill()
    worker = node.stream(places=100)
    node.wait(5)
    shown = node.shown(bulk)
    assert (shown.status, shown.progress.counts) == (Status.DONE, {Outcome.FIRED: TIMES})
    assert sorted(held.job.id for held in side(worker).given) == sorted(row.job for row in node.fires())
    assert len(node.touched(bulk)) == TIMES


def test_a_rate_spreads_the_times(node: Backfilling) -> None:
    node.backfill(rate=2)
    node.wait(5)
    assert 8 <= len(node.fires()) <= 14


def test_the_next_time_waits_for_the_end_of_a_run() -> None:
    node = Backfilling()
    node.add(overlap=Overlap.FORBID)
    worker = node.stream()
    bulk = node.backfill()
    node.wait(10)
    (held,) = side(worker).given
    assert node.shown(bulk).revision == 1, "a step that can do nothing writes nothing"
    node.history.live.add(held.job.id)  # it knows no jobs of schedules
    node.settling.succeeded(held, b"")
    node.wait(2)
    assert len(node.fires()) == 2


@pytest.mark.parametrize("seed", range(6))
def test_crashes_at_random_moments_double_nothing(seed: int) -> None:
    chance = Random(seed)
    node = Backfilling()
    node.lose_steps(chance)
    node.add()
    bulk = node.backfill(rate=chance.choice([None, 20, 100]))
    crashes = 0
    while node.shown(bulk).status is Status.RUNNING:
        for _ in range(chance.randrange(100)):  # a crash may lose the group under way
            if node.life.loop.soon:
                node.life.loop.soon.popleft()()
            elif node.life.store.busy and chance.random() < 0.5:
                node.life.store.finish()
            else:
                node.life.commits.hurry()
                node.clock.advance(0.001)
                node.life.run_due()
                node.bulk.tick()
        if crashes < 8 and chance.random() < 0.6:
            crashes += 1
            node = Backfilling(node)
            node.lose_steps(chance)
        node.bulk.tick()
        node.wait(chance.choice([0.05, 0.1, 1.2]))
    shown = node.shown(bulk)
    assert (shown.status, shown.progress.counts) == (Status.DONE, {Outcome.FIRED: TIMES})
    touched = node.touched(bulk)
    assert len(touched) == len(set(touched)) == TIMES
    assert sorted(row.job for row in node.fires()) == sorted(touched), "each time has one job"


def test_a_caller_without_rights_stops_it(node: Backfilling) -> None:
    node.caller = Caller("ann", (Grant(Role.OPERATOR),), token="t")
    bulk = node.backfill(rate=2, caller=node.caller)
    node.wait(1.5)
    node.caller = Caller("ann", (Grant(Role.OPERATOR, functions=("g*",)),), token="t")
    node.wait(10)
    shown = node.shown(bulk)
    assert (shown.status, shown.progress.why) == (Status.STOPPED, "its caller may not run the function 'f'")
    assert 0 < len(node.fires()) < TIMES


def test_an_abort_ends_it(node: Backfilling) -> None:
    bulk = node.backfill(rate=2)
    node.wait(1.5)
    CallInProgress(node.bulk.abort("default", bulk.id, "enough"), lambda _: None, lambda _: None)
    node.wait(60)
    assert node.shown(bulk).status is Status.ABORTED
    assert 0 < len(node.fires()) < 8
