"""The ages of the oldest pending jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from mainspring.errors import StoreUnavailableError
from mainspring.jobs.admission import AdmissionQueue, open_own
from mainspring.jobs.dispatch import Dispatch
from mainspring.jobs.held import Held
from mainspring.jobs.model import Job
from mainspring.server import metrics
from mainspring.server.metrics import PAUSE_FACTOR, READ_INTERVAL, Oldest
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError
    from mainspring.jobs.held import FunctionQueue
    from mainspring.queries import FirstInLine


class Asked(NamedTuple):
    """A query that waits for its answer."""

    functions: tuple[bytes, ...]
    done: Callable[[Any], None]
    failed: Callable[[StoreError], None]


class Reader:
    """An `Oldest` on a store that answers when the test lets it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.dispatch = Dispatch()
        self.asked: list[Asked] = []
        self.oldest = Oldest(self.dispatch.queues.values, self, self.clock)  # type: ignore[arg-type]

    def ask(self, query: FirstInLine, done: Callable[[Any], None], failed: Callable[[StoreError], None]) -> None:
        self.asked.append(Asked(query.functions, done, failed))

    def look(self) -> list[bytes] | None:
        """Refresh, and return the query that the store gets."""
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
    reader = Reader()
    reader.stored(b"f")
    reader.stored(b"g", 0)
    assert reader.look() == [b"f"]
    assert reader.ages() == {}, "the store has not answered yet"
    reader.asked[0].done({b"f": reader.ago(30)})
    assert reader.ages() == {b"f": 30}
    reader.clock.advance(2)
    assert reader.ages() == {b"f": 32}
    reader.stored(b"f", 0)
    assert reader.ages() == {}


@pytest.mark.parametrize("gated", [False, True])
def test_jobs_in_memory(gated: bool) -> None:
    reader = Reader()
    queue = reader.dispatch.queue(b"f")
    if gated:
        queue.admission = AdmissionQueue(reader.clock, open_own)
    gone = reader.held(queue, 50)
    reader.held(queue, 20)
    reader.held(queue, 40, priority=2, due_us=reader.ago(10))
    Dispatch.drop(gone)
    assert reader.ages() == {b"f": 20}
    assert reader.look() is None, "the store has none"
    reader.stored(b"f")
    reader.look()
    reader.asked[0].done({b"f": reader.ago(60)})
    assert reader.ages() == {b"f": 60}


def test_reads_take_a_small_part_of_the_time() -> None:
    reader = Reader()
    reader.stored(b"f")
    assert reader.look() == [b"f"]
    reader.clock.advance(100)
    assert reader.look() is None, "one is under way"
    reader.asked[0].done({})
    reader.clock.advance(PAUSE_FACTOR * 100 - 1)
    assert reader.look() is None
    reader.clock.advance(1)
    assert reader.look() == [b"f"]
    reader.asked[1].done({})
    reader.clock.advance(READ_INTERVAL - 0.1)
    assert reader.look() is None
    reader.clock.advance(0.1)
    assert reader.look() == [b"f"]


def test_a_failed_read_is_repeated() -> None:
    reader = Reader()
    reader.stored(b"f")
    reader.look()
    reader.asked[0].failed(StoreUnavailableError("away"))
    assert reader.look() is None
    reader.clock.advance(READ_INTERVAL)
    assert reader.look() == [b"f"]


def test_of_many_functions_those_with_the_most_jobs_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "OLDEST_FUNCTIONS", 2)
    reader = Reader()
    for number in range(5):
        reader.stored(b"f%d" % number, number + 1)
    assert reader.look() == [b"f4", b"f3"]
