"""The runs that a node remembers to be in the caches of its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from mainspring.workflows.decision_intake import CachedRuns

if TYPE_CHECKING:
    from mainspring.jobs.held import Worker


class Connection:
    def __init__(self) -> None:
        self.stops: list[tuple[int, int]] = []

    def has_news(self, run: int, last: int) -> None:
        self.stops.append((run, last))


def worker() -> Worker:
    return cast("Worker", object())


def test_an_answer_after_the_end_of_the_connection_is_not_remembered() -> None:
    cached, connection, one = CachedRuns(), Connection(), worker()
    cached.connected(one, connection)
    cached.sent(7, one, 5)
    cached.appended(7, 6)
    assert connection.stops == [(7, 6)]
    cached.gone(one)
    cached.sent(7, one, 6)  # the answer to a report that was under way
    assert cached.worker_of(7) is None
    cached.appended(7, 7)
    assert connection.stops == [(7, 6)]
