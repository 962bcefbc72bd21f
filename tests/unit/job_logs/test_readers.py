"""Readers of logs at several nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.events import FollowLog, Logged
from mainspring.job_logs.model import Chunk
from mainspring.job_logs.service import ASK_INTERVAL, FOLLOWED_FOR, MOST_TAPPED, WAKE_INTERVAL, LogReaders, LogService
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

JOB = 77


def chunk(job: int, number: int = 1) -> Chunk:
    return Chunk(number, job, "default", b"f", 1, 5, number, 1, 2, b"")


class Nodes:
    """Two nodes, whose messages arrive at once; ``lost``: they are lost."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lost = False
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.sent: list[FollowLog | Logged] = []
        self.nodes = {term: self._node(term) for term in (1, 2)}

    def _node(self, term: int) -> LogService:
        def later(seconds: float, function: Callable[[], None]) -> None:
            self.timers.append((self.now + seconds, function))

        readers = LogReaders(lambda: self.now, self._send)
        nothing: Any = None
        return LogService(
            nothing, nothing, ManualClock(), later, readers, lambda: term, retention=1.0, is_held=lambda _: True
        )

    def _send(self, to: int, message: FollowLog | Logged) -> None:
        self.sent.append(message)
        if not self.lost:
            self.nodes[to].readers.received(message)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [one for one in self.timers if one[0] <= self.now]
        self.timers = [one for one in self.timers if one[0] > self.now]
        for _, function in due:
            function()


def test_a_reader_is_woken_by_lines_that_are_stored_at_its_node() -> None:
    nodes, woken = Nodes(), []
    nodes.nodes[1].wait(JOB, 1, lambda: woken.append("here"))
    nodes.nodes[1].readers.written([chunk(JOB + 1)])
    assert woken == []
    nodes.nodes[1].readers.written([chunk(JOB)])
    assert woken == ["here"]
    assert nodes.sent == []
    nodes.advance(WAKE_INTERVAL)
    assert woken == ["here"], "once"


def test_a_reader_is_woken_by_lines_that_are_stored_at_another_node() -> None:
    nodes, woken = Nodes(), []
    nodes.nodes[1].wait(JOB, 2, lambda: woken.append("there"))
    nodes.nodes[2].readers.written([chunk(JOB), chunk(JOB + 1)])
    assert woken == ["there"]
    assert nodes.sent == [FollowLog(JOB, 1), Logged([JOB])]


def test_the_node_of_a_job_is_asked_once_a_second() -> None:
    nodes = Nodes()
    for _ in range(5):
        nodes.nodes[1].wait(JOB, 2, lambda: None)
    assert nodes.sent == [FollowLog(JOB, 1)]
    nodes.advance(ASK_INTERVAL)
    nodes.nodes[1].wait(JOB, 2, lambda: None)
    assert nodes.sent == [FollowLog(JOB, 1)] * 2


def test_a_reader_that_has_left_gets_no_reports_for_long() -> None:
    nodes = Nodes()
    nodes.nodes[1].wait(JOB, 2, lambda: None)
    nodes.advance(FOLLOWED_FOR)
    nodes.nodes[2].readers.written([chunk(JOB)])
    assert nodes.sent == [FollowLog(JOB, 1)]
    nodes.nodes[2].readers.tidy()
    nodes.nodes[2].readers.written([chunk(JOB)])
    assert nodes.sent == [FollowLog(JOB, 1)]


def test_a_lost_message_costs_a_second() -> None:
    nodes, woken = Nodes(), []
    nodes.lost = True
    nodes.nodes[1].wait(JOB, 2, lambda: woken.append("there"))
    nodes.nodes[2].readers.written([chunk(JOB)])
    assert woken == []
    nodes.advance(WAKE_INTERVAL)
    assert woken == ["there"]


def test_a_tap_is_whole_from_a_read_of_the_store_until_it_is_too_full() -> None:
    readers = Nodes().nodes[1].readers
    tap, end = readers.tap(JOB)
    claim = object()
    readers.written([chunk(JOB)])
    assert (tap.is_whole, tap.take()) == (False, [])
    tap.restart(claim)
    readers.written([chunk(JOB, 2), chunk(JOB + 1, 3)])
    assert not tap.is_whole, "the store has not been read"
    tap.caught_up()
    assert (tap.is_whole, tap.take(), tap.take()) == (True, [chunk(JOB, 2)], [])
    readers.written([chunk(JOB, number) for number in range(MOST_TAPPED + 1)])
    assert (tap.is_whole, tap.take()) == (False, [])
    tap.restart(claim)
    readers.written([chunk(JOB, number) for number in range(MOST_TAPPED + 1)])
    tap.caught_up()
    assert not tap.is_whole, "it was too full during the read"
    tap.restart(claim)
    tap.caught_up()
    end()
    readers.written([chunk(JOB, 9)])
    assert tap.take() == []


def test_a_tap_holds_for_one_claim_of_the_job() -> None:
    readers = Nodes().nodes[1].readers
    tap, end = readers.tap(JOB)
    claim = object()
    for later in (None, object()):
        tap.restart(claim)
        tap.caught_up()
        readers.written([chunk(JOB)])
        tap.check(claim)
        assert tap.is_whole
        tap.check(later)
        assert (tap.is_whole, tap.take()) == (False, [])
    end()
