"""A node's readiness and log while the store refuses groups or does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs
from tests.unit.storage.test_commit_queue import Desk

from mainspring.errors import StoreBusyError, StoreFencedError, StoreFullError
from mainspring.log_limit import CAUSE_SPAN, MAX_CAUSES
from mainspring.server.node import LOG_LOCK_AFTER, PROBE_INTERVAL, UNREADY_AFTER, StoreWatch
from mainspring.storage.engine import Probe

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping
    from typing import Any

    from mainspring.errors import StoreError


class Watched(Desk):
    """A queue whose groups end as the test decides, and its watch."""

    def __init__(self) -> None:
        super().__init__(limit=2**20)
        self.now = 1000.0
        self.broken: list[StoreError] = []
        self.watch = StoreWatch(lambda: self.now, broken=self.broken.append)

    def fail(self, error: StoreError) -> None:
        self.watch.failed(error)

    @property
    def ready(self) -> bool:
        return self.watch.ready(self.queue)

    def check(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.watch.check(self.queue)
        self.turn()

    def refuse(self, cause: str = "full") -> None:
        self.put("a")
        self.turn()
        self.answer(StoreFullError(cause))

    def probes(self) -> bool:
        """Whether a probe is under way, alone."""
        return self.group is not None and [type(operation) for operation in self.group] == [Probe]


@pytest.fixture
def desk() -> Watched:
    return Watched()


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    with capture_logs() as lines:
        yield lines


def test_a_ready_node_does_not_probe(desk: Watched) -> None:
    for _ in range(100):
        desk.check(10.0)
    desk.put("a")
    desk.turn()
    desk.answer()
    desk.check()
    assert desk.ready
    assert desk.group is None


def test_a_refused_group_makes_the_node_unready_until_a_probe_is_committed(desk: Watched) -> None:
    desk.refuse()
    assert not desk.ready
    desk.check()
    assert desk.probes(), "at once, because only this group may be affected"
    desk.answer(StoreFullError("full"))
    desk.check(PROBE_INTERVAL / 2)
    assert desk.group is None, "not more often"
    desk.put("small")
    desk.turn()
    desk.answer()
    assert not desk.ready, "another group proves nothing about those that fail"
    desk.check(PROBE_INTERVAL / 2)
    assert desk.probes()
    desk.check(PROBE_INTERVAL * 2)
    desk.answer()
    assert desk.ready
    desk.check(PROBE_INTERVAL * 2)
    assert desk.group is None


def test_a_fenced_group_makes_the_node_unready_until_the_next_term_commits(
    desk: Watched, logs: list[MutableMapping[str, Any]]
) -> None:
    desk.put("a")
    desk.turn()
    desk.answer(StoreFencedError("the term has ended"))
    assert not desk.ready
    assert logs == [], "the fleet logs the end of a term"
    desk.check()
    assert desk.probes()
    desk.answer(StoreFencedError("the term has ended"))
    assert not desk.ready
    desk.check(PROBE_INTERVAL * 2)
    desk.answer()
    assert desk.ready


def test_a_cause_has_one_line_a_minute(desk: Watched, logs: list[MutableMapping[str, Any]]) -> None:
    for _ in range(300):
        desk.refuse("full")
        desk.refuse("no right")
        desk.now += CAUSE_SPAN / 128  # no rounding
    assert [(line["error"], line["refused"]) for line in logs] == [
        (cause, number) for minute in (1, 257, 513) for cause, number in (("full", minute), ("no right", minute + 1))
    ]
    desk.check()
    desk.answer()
    assert logs[-1]["event"] == "the store commits again"
    assert logs[-1]["refused"] == 600


def test_causes_that_are_all_different_do_not_fill_the_log(desk: Watched, logs: list[MutableMapping[str, Any]]) -> None:
    for number in range(500):
        desk.refuse(f"job {number}")
    assert len(logs) == MAX_CAUSES + 1


def test_repeated_recoveries_do_not_fill_the_log(desk: Watched, logs: list[MutableMapping[str, Any]]) -> None:
    for _ in range(20):
        desk.refuse()
        desk.check(PROBE_INTERVAL)
        desk.answer()
        assert desk.ready
    assert [line["event"] for line in logs] == ["the store refused a group", "the store commits again"]


def test_a_store_that_does_not_answer_makes_the_node_unready(desk: Watched) -> None:
    desk.check(100.0)
    desk.put("a")
    desk.turn()
    desk.check(UNREADY_AFTER - 0.1)
    assert desk.ready
    desk.check(0.2)
    assert not desk.ready
    desk.answer()
    assert desk.ready, "without waiting for the next check"


def test_a_busy_store_is_ready(desk: Watched) -> None:
    for _ in range(10):
        desk.put("a")
        desk.turn()
        desk.put("b")  # so that it is never idle
        desk.check(UNREADY_AFTER - 1)
        assert desk.ready
        desk.answer()


def test_the_log_names_the_program_that_locks_the_store_once(
    desk: Watched, logs: list[MutableMapping[str, Any]]
) -> None:
    desk.put("a")
    desk.turn()
    desk.answer(StoreBusyError("another program"))
    desk.check(LOG_LOCK_AFTER / 2)
    assert logs == [], "many are done by then"
    while desk.later:
        desk.wait()
        desk.check(0.05)
        if desk.group:
            desk.answer(StoreBusyError("another program"))
    desk.refuse("another program")
    assert [line["error"] for line in logs] == ["another program"]
    assert not desk.ready


def test_refused_groups_are_counted(desk: Watched) -> None:
    desk.refuse()
    desk.refuse()
    (measure,) = desk.watch.metrics()
    assert (measure.name, measure.kind, measure.samples) == ("mainspring_commits_refused_total", "counter", [({}, 2.0)])
