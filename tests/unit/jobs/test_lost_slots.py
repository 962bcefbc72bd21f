"""Jobs that lose their slots of resources: an operator takes them away, or their rows are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.shared_memory import SharedMemoryEngine, SharedTables

from mainspring.access.audit import ListActs
from mainspring.access.caller import Act
from mainspring.callbacks import CallInProgress
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.memory.holds import MemoryHolds
from mainspring.errors import ConflictError
from mainspring.events import TakeSlots
from mainspring.jobs import lost_slots
from mainspring.jobs.model import State
from mainspring.resources.hold_store import FindHolds, find
from mainspring.storage.engine import run_synchronously
from mainspring.testing import ManualClock

from .a_node import Node, side, unexpected
from .test_hold_requests import end, held_by, numbers, running, shown, worker

if TYPE_CHECKING:
    from mainspring.resources.holds import Hold

ACT = Act("resources.take", "ann", reason="needed elsewhere")


@pytest.fixture
def node() -> Node:
    """Give a node that has its store alone."""
    return Node()


def take(node: Node, hold: Hold, *, cancel: bool = False) -> list[object]:
    """Take slots of a job away; the outcome goes to the list."""
    answers: list[object] = []
    CallInProgress(node.service.lost_slots.take(hold, ACT, cancel=cancel), answers.append, answers.append)
    return answers


def acts(node: Node) -> list[Act]:
    """Return what was recorded."""
    found: list[Act] = []
    reading = node.service.reads.read(ListActs())
    CallInProgress(reading, lambda page: found.extend(one.act for one in page.items), unexpected)
    node.commit()
    return found


def test_slots_that_are_taken_away_go_to_the_next_job_and_the_attempt_is_stopped(node: Node) -> None:
    one, other = worker(node, places=1), worker(node, "g", places=1)
    first = node.background("1")
    node.background("2", "g")
    assert (running(one), running(other), numbers(node)) == (["1"], [], [1])
    node.clock.advance(90.0)
    answers = take(node, shown(node).holds[0])
    node.commit()
    assert answers == [None]
    assert side(one).events[-1] == "stop 1: lost"
    assert (running(one), running(other), numbers(node)) == ([], ["2"], [2])
    stored = node.stored(first.id)
    assert (stored.attempt, stored.due_us) == (0, round(node.clock.wall() * 1_000_000))
    assert acts(node) == [ACT]
    node.service.workers.ready(one, 1)
    node.commit()
    assert [request.holder.id for request in shown(node).requests] == [first.id]
    end(node, other, "2")
    assert (running(one), numbers(node)) == (["1"], [3])


def test_the_job_may_be_cancelled_with_it(node: Node) -> None:
    one = worker(node, places=1)
    job, client = node.foreground("1")
    node.commit()
    assert take(node, shown(node).holds[0], cancel=True) == []
    node.commit()
    assert side(one).events[-1] == "stop 1: lost"
    assert node.state(job.id) is State.CANCELLED
    assert client.events == ["cancelled"]
    assert shown(node).holds == ()


def test_a_job_that_was_asked_to_stop_is_cancelled(node: Node) -> None:
    worker(node, places=1)
    job = node.background("1")
    node.cancel(job.id)
    take(node, shown(node).holds[0])
    node.commit()
    assert node.state(job.id) is State.CANCELLED


def test_slots_of_an_attempt_that_has_ended_are_not_taken(node: Node) -> None:
    one = worker(node, places=1)
    node.background("1")
    (hold,) = shown(node).holds
    end(node, one, "1")
    node.background("2")
    assert [str(one) for one in take(node, hold)] == [
        "the job has just ended, or its work goes on elsewhere and waits for the next worker"
    ]
    assert running(one) == ["2"]
    assert acts(node) == []


def test_nothing_is_taken_while_the_store_refuses(node: Node) -> None:
    one = worker(node, places=1)
    node.background("1")
    answers = take(node, shown(node).holds[0])
    node.fail()
    assert len(answers) == 1
    assert isinstance(answers[0], Exception)
    node.wait(3.0)
    assert running(one) == []
    assert numbers(node) == []


def test_a_job_whose_hold_is_gone_is_stopped(node: Node) -> None:
    one = worker(node, total=2)
    node.background("1")
    node.background("2")
    assert isinstance(node.engine, MemoryEngine)
    (lost,) = [hold for hold in shown(node).holds if hold.holder.id == held_by(one, "1").job.id]
    node.engine.tables.holds.discard(lost)
    node.wait(lost_slots.LOOK_INTERVAL + 1)
    assert side(one).events[-2:] == ["stop 1: lost", "job 1"]
    assert running(one) == ["2", "1"]
    assert sorted(numbers(node)) == [2, 3]


def test_a_look_stops_nothing_that_has_its_slots(node: Node) -> None:
    one = worker(node, total=2)
    node.background("1")
    node.background("2")
    node.wait(3 * lost_slots.LOOK_INTERVAL)
    assert running(one) == ["1", "2"]
    assert numbers(node) == [1, 2]


# ---- at another node ----


class Two:
    """Two nodes of a store: the first one has a job with the slot."""

    def __init__(self) -> None:
        self.content = SharedTables(ManualClock().wall)
        self.first = Node(engine=SharedMemoryEngine(self.content))
        self.second = Node(self.first, engine=SharedMemoryEngine(self.content))
        self.worker = worker(self.first, places=1)
        self.job = self.first.background("1")
        self.first.wait(0.1)
        tables = MemoryHolds(self.content.tables)
        ((self.hold,), _) = run_synchronously(find(tables, FindHolds(("l",), 0)))[0][1:]

    def pass_time(self, seconds: float) -> None:
        """Let time pass at both nodes."""
        for _ in range(round(seconds * 10)):
            self.first.wait(0.05)
            self.second.wait(0.05)


def test_the_node_that_has_the_job_takes_its_slots() -> None:
    two = Two()
    answers = take(two.second, two.hold)
    two.pass_time(2.0)
    assert answers == [None]
    assert side(two.worker).events[-1] == "stop 1: lost"
    assert [one.act for one in two.content.tables.acts] == [ACT]


def test_a_lost_request_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two()
    tell = SharedTables.tell
    lost: list[TakeSlots] = []

    def lose(self: SharedTables, term: int, message: object) -> None:
        if isinstance(message, TakeSlots) and not lost:
            lost.append(message)
        else:
            tell(self, term, message)  # type: ignore[arg-type] # as it came

    monkeypatch.setattr(SharedTables, "tell", lose)
    answers = take(two.second, two.hold)
    two.pass_time(3.0)
    assert answers == [None]
    assert len(lost) == 1


def test_a_late_request_takes_nothing_from_the_next_attempt() -> None:
    two = Two()
    first = two.first
    message = TakeSlots(two.job.id, two.hold.turn, "l", False, msgspec.msgpack.encode(ACT))
    first.settling.released(first.given(two.worker))
    first.service.workers.ready(two.worker, 1)
    first.wait(2.0)
    assert running(two.worker) == ["1"]
    first.service.lost_slots.asked(message)
    first.wait(1.0)
    assert running(two.worker) == ["1"]
    assert not two.content.tables.acts


def test_slots_that_the_next_lease_takes_over_are_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two()
    monkeypatch.setattr(SharedTables, "tell", lambda *_: None)
    answers = take(two.second, two.hold)
    rows = two.content.tables.holds
    rows.discard(two.hold)
    rows.add(two.hold._replace(turn=two.hold.turn + 1))  # as `hold_store.ask` does
    two.pass_time(1.0)
    assert len(answers) == 1
    assert isinstance(answers[0], ConflictError)
    assert "next lease" in str(answers[0])


def test_a_node_that_does_not_answer_is_named_as_the_reason() -> None:
    two = Two()
    two.content.receivers.pop(two.hold.holder.term)
    answers = take(two.second, two.hold)
    two.pass_time(lost_slots.LONGEST + 2)
    assert len(answers) == 1
    assert isinstance(answers[0], ConflictError)
    assert running(two.worker) == ["1"]
