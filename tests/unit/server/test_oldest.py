"""For how long the oldest waiting jobs have waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from mainspring.errors import StoreUnavailableError
from mainspring.jobs.accounts import open_own
from mainspring.jobs.admission import AdmissionQueue
from mainspring.jobs.dispatch import Dispatch
from mainspring.jobs.held import Held
from mainspring.jobs.model import Job
from mainspring.server import oldest
from mainspring.server.oldest import PAUSE_FACTOR, READ_INTERVAL, Oldest
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError
    from mainspring.jobs.held import FunctionQueue
    from mainspring.queries.jobs import FirstInLine


class Asked(NamedTuple):
    """A query that waits for its answer."""

    functions: tuple[bytes, ...]
    done: Callable[[Any], None]
    failed: Callable[[StoreError], None]


class Looker:
    """Looks into a store that answers when a test says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.dispatch = Dispatch()
        self.asked: list[Asked] = []
        self.oldest = Oldest(self.dispatch.queues.values, self, self.clock)  # type: ignore[arg-type]

    def ask(self, query: FirstInLine, done: Callable[[Any], None], failed: Callable[[StoreError], None]) -> None:
        self.asked.append(Asked(query.functions, done, failed))

    def look(self) -> list[bytes] | None:
        """Return what the store is asked for now."""
        before = len(self.asked)
        self.oldest.refresh()
        return list(self.asked[-1].functions) if len(self.asked) > before else None

    def stored(self, name: bytes, number: int = 1) -> FunctionQueue:
        queue = self.dispatch.queue(name)
        queue.backlog[1] = number
        return queue

    def held(self, queue: FunctionQueue, age: float, **fields: Any) -> Held:
        job = Job(len(queue.queued()) + 1, queue.name, b"", created_us=self.ago(age), **fields)
        held = Held(job, b"H:n:%d" % job.id, queue, stored=True)
        Dispatch.push(held)
        return held

    def ago(self, seconds: float) -> int:
        return round((self.clock.wall() - seconds) * 1_000_000)

    def ages(self) -> dict[bytes, float]:
        return {name: round(age, 3) for name, age in self.oldest.ages()}


def test_jobs_in_the_store() -> None:
    looker = Looker()
    looker.stored(b"f")
    looker.stored(b"g", 0)
    assert looker.look() == [b"f"]
    assert looker.ages() == {}, "nobody has answered yet"
    looker.asked[0].done({b"f": looker.ago(30)})
    assert looker.ages() == {b"f": 30}
    looker.clock.advance(2)
    assert looker.ages() == {b"f": 32}
    looker.stored(b"f", 0)
    assert looker.ages() == {}


@pytest.mark.parametrize("gated", [False, True])
def test_jobs_in_memory(gated: bool) -> None:
    looker = Looker()
    queue = looker.dispatch.queue(b"f")
    if gated:
        queue.gate = AdmissionQueue(looker.clock, open_own)
    gone = looker.held(queue, 50)
    looker.held(queue, 20)
    looker.held(queue, 40, priority=2, due_us=looker.ago(10))
    Dispatch.drop(gone)
    assert looker.ages() == {b"f": 20}
    assert looker.look() is None, "the store has none"
    looker.stored(b"f")
    looker.look()
    looker.asked[0].done({b"f": looker.ago(60)})
    assert looker.ages() == {b"f": 60}


def test_a_look_takes_a_small_part_of_the_time() -> None:
    looker = Looker()
    looker.stored(b"f")
    assert looker.look() == [b"f"]
    looker.clock.advance(100)
    assert looker.look() is None, "one is under way"
    looker.asked[0].done({})
    looker.clock.advance(PAUSE_FACTOR * 100 - 1)
    assert looker.look() is None
    looker.clock.advance(1)
    assert looker.look() == [b"f"]
    looker.asked[1].done({})
    looker.clock.advance(READ_INTERVAL - 0.1)
    assert looker.look() is None
    looker.clock.advance(0.1)
    assert looker.look() == [b"f"]


def test_a_store_that_is_away_is_asked_again() -> None:
    looker = Looker()
    looker.stored(b"f")
    looker.look()
    looker.asked[0].failed(StoreUnavailableError("away"))
    assert looker.look() is None
    looker.clock.advance(READ_INTERVAL)
    assert looker.look() == [b"f"]


def test_of_very_many_functions_those_with_the_most_jobs_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oldest, "OLDEST_FUNCTIONS", 2)
    looker = Looker()
    for number in range(5):
        looker.stored(b"f%d" % number, number + 1)
    assert looker.look() == [b"f4", b"f3"]
