"""The log's lines about functions whose jobs wait and that no worker has registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs
from tests.unit.jobs.a_node import Side

from mainspring.jobs.dispatch import Dispatch
from mainspring.jobs.held import Worker
from mainspring.jobs.registered import SETTLING, Registered
from mainspring.server.unserved import MAX_LINES, NO_WORKER_GRACE, NO_WORKER_LOG_INTERVAL, Unserved
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable


class Looker:
    """Looks at some functions, at times that a test says."""

    def __init__(self, mine: Callable[[str], bool] = lambda _: True) -> None:
        self.dispatch = Dispatch()
        clock = ManualClock()
        self.registered = Registered(self.dispatch, clock)
        clock.advance(SETTLING)
        self._unserved = Unserved(self.dispatch.queues.values, self.registered, mine=mine)

    def wait(self, name: bytes, number: int = 1) -> None:
        self.dispatch.queue(name).backlog[1] = number

    def check(self, now: float) -> list[tuple[Any, ...]]:
        with capture_logs() as lines:
            self._unserved.check(now)
        assert all(line["log_level"] == "warning" for line in lines)
        return [tuple(line[key] for key in ("function", "jobs", "functions") if key in line) for line in lines]


def test_a_function_has_a_line_a_minute() -> None:
    looker = Looker()
    looker.wait(b"f", 3)
    assert looker.check(10) == []
    assert looker.check(10 + NO_WORKER_GRACE - 0.1) == []
    assert looker.check(10 + NO_WORKER_GRACE) == [("f", 3)]
    assert looker.check(10 + NO_WORKER_LOG_INTERVAL) == []
    looker.wait(b"f", 4)
    assert looker.check(10 + NO_WORKER_GRACE + NO_WORKER_LOG_INTERVAL) == [("f", 4)]


def test_no_line_where_a_worker_is_here_or_comes_in_time() -> None:
    looker = Looker()
    looker.wait(b"f")
    looker.check(10)
    worker = Worker(Side("w"))
    looker.dispatch.register(worker, b"f")
    assert looker.check(20) == []
    looker.dispatch.leave(worker)
    looker.dispatch.unregister(worker, looker.dispatch.queue(b"f"))
    assert looker.check(30) == []
    assert looker.check(30 + NO_WORKER_GRACE) == [("f", 1)]


@pytest.mark.parametrize("elsewhere", [frozenset([b"f"]), None])
def test_no_line_where_another_node_has_a_worker_or_nobody_can_know(elsewhere: frozenset[bytes] | None) -> None:
    looker = Looker()
    looker.wait(b"f")
    looker.registered.elsewhere = lambda: elsewhere
    assert looker.check(10) == looker.check(20) == []


def test_no_line_where_no_job_waits() -> None:
    looker = Looker()
    looker.wait(b"f", 0)
    assert looker.check(10) == looker.check(20) == []


def test_of_very_many_functions_most_are_counted() -> None:
    looker = Looker()
    for number in range(50):
        looker.wait(b"f%02d" % number, number + 1)
    looker.check(0)
    lines = looker.check(10)
    assert lines == [(f"f{number:02}", number + 1) for number in range(49, 49 - MAX_LINES, -1)] + [(30,)]
    looker.wait(b"g", 1000)
    assert looker.check(11) == looker.check(30) == [], "no more in this minute"
    assert looker.check(10 + NO_WORKER_LOG_INTERVAL)[:2] == [("g", 1000), ("f49", 50)]


def test_each_function_is_one_nodes_to_log() -> None:
    looker = Looker(lambda name: name == "g")
    looker.wait(b"f")
    looker.wait(b"g")
    looker.check(0)
    assert looker.check(10) == [("g", 1)]
