"""Log lines about functions with pending jobs that no worker has registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs
from tests.unit.jobs.a_node import Side

from mainspring.jobs.dispatch import Dispatch
from mainspring.jobs.function_index import STARTUP_GRACE, Registered
from mainspring.jobs.held import Worker
from mainspring.server.log_writer import MAX_LINES, NO_WORKER_GRACE, NO_WORKER_LOG_INTERVAL, Unserved
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable


class Checker:
    """An `Unserved` over some functions, checked at the test's times."""

    def __init__(self, mine: Callable[[str], bool] = lambda _: True) -> None:
        self.dispatch = Dispatch()
        clock = ManualClock()
        self.registered = Registered(self.dispatch, clock)
        clock.advance(STARTUP_GRACE)
        self._unserved = Unserved(self.dispatch.queues.values, self.registered, mine=mine)

    def wait(self, name: bytes, number: int = 1) -> None:
        self.dispatch.queue(name).backlog[1] = number

    def check(self, now: float) -> list[tuple[Any, ...]]:
        with capture_logs() as lines:
            self._unserved.check(now)
        assert all(line["log_level"] == "warning" for line in lines)
        return [tuple(line[key] for key in ("function", "jobs", "functions") if key in line) for line in lines]


def test_a_function_has_a_line_a_minute() -> None:
    checker = Checker()
    checker.wait(b"f", 3)
    assert checker.check(10) == []
    assert checker.check(10 + NO_WORKER_GRACE - 0.1) == []
    assert checker.check(10 + NO_WORKER_GRACE) == [("f", 3)]
    assert checker.check(10 + NO_WORKER_LOG_INTERVAL) == []
    checker.wait(b"f", 4)
    assert checker.check(10 + NO_WORKER_GRACE + NO_WORKER_LOG_INTERVAL) == [("f", 4)]


def test_no_line_if_a_worker_is_here_or_connects_in_time() -> None:
    checker = Checker()
    checker.wait(b"f")
    checker.check(10)
    worker = Worker(Side("w"))
    checker.dispatch.register(worker, b"f")
    assert checker.check(20) == []
    checker.dispatch.leave(worker)
    checker.dispatch.unregister(worker, checker.dispatch.queue(b"f"))
    assert checker.check(30) == []
    assert checker.check(30 + NO_WORKER_GRACE) == [("f", 1)]


@pytest.mark.parametrize("elsewhere", [frozenset([b"f"]), None])
def test_no_line_if_another_node_has_or_may_have_a_worker(elsewhere: frozenset[bytes] | None) -> None:
    checker = Checker()
    checker.wait(b"f")
    checker.registered.elsewhere = lambda: elsewhere
    assert checker.check(10) == checker.check(20) == []


def test_no_line_without_pending_jobs() -> None:
    checker = Checker()
    checker.wait(b"f", 0)
    assert checker.check(10) == checker.check(20) == []


def test_of_many_functions_most_are_only_counted() -> None:
    checker = Checker()
    for number in range(50):
        checker.wait(b"f%02d" % number, number + 1)
    checker.check(0)
    lines = checker.check(10)
    assert lines == [(f"f{number:02}", number + 1) for number in range(49, 49 - MAX_LINES, -1)] + [(30,)]
    checker.wait(b"g", 1000)
    assert checker.check(11) == checker.check(30) == [], "no more in this minute"
    assert checker.check(10 + NO_WORKER_LOG_INTERVAL)[:2] == [("g", 1000), ("f49", 50)]


def test_one_node_logs_each_function() -> None:
    checker = Checker(lambda name: name == "g")
    checker.wait(b"f")
    checker.wait(b"g")
    checker.check(0)
    assert checker.check(10) == [("g", 1)]
