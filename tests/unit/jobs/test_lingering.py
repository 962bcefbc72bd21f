"""A plain worker that has just ended a job: how long its next request waits for an answer."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.events.hub import Hub
from mainspring.ids import Handles, NodeId
from mainspring.jobs.held import Ability, Held, Worker
from mainspring.jobs.model import Job
from mainspring.jobs.service import JobService
from mainspring.jobs.window import LINGER, LINGER_FUNCTIONS
from mainspring.storage.commit_queue import CommitQueue
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable


class Client:
    """Waits for a job, and does not care how it ends."""

    gone = False

    def data(self, handle: bytes, data: bytes) -> None: ...
    def warning(self, handle: bytes, data: bytes) -> None: ...
    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None: ...
    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None: ...


class Side:
    """Notes what a worker is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def wake(self) -> None:
        self.heard.append("wake")

    def assign(self, held: Held) -> None:
        self.heard.append(f"job {held.job.payload.decode()}")

    def no_job(self) -> None:
        self.heard.append("no job")

    def name(self) -> str:
        return "worker"

    def stop(self, held: Held, reason: bytes) -> None: ...


class Node:
    """The jobs of a node in memory, with one worker of the function ``f``."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000.0)
        soon: deque[Callable[[], None]] = deque()
        engine = MemoryEngine()
        opened = asyncio.run(engine.open(NodeId("n"), soon.append))
        commits = CommitQueue(engine, soon.append, lambda _delay, function: soon.append(function))
        self.service = JobService(
            commits, self.clock, opened.term, Handles(opened.nodes), Hub(), earlier=lambda _: None
        )
        self.service.start(lambda _: None, lambda _: None)
        while soon:
            soon.popleft()()
        self.side = Side()
        self.worker = Worker(self.side)
        self.service.register(self.worker, b"f", Ability())
        self._ids = iter(range(1, 1000))

    def submit(self, payload: bytes) -> None:
        job = Job(opened_id(next(self._ids)), b"f", payload)
        self.service.intake.submit_foreground(job, Client(), lambda _: None, lambda error: pytest.fail(str(error)))

    def grab(self) -> Held | None:
        """Ask for a job as the Gearman face does."""
        held = self.service.window.grab(self.worker)
        if held is None and not self.service.window.looks(self.worker) and not self.service.window.lingers(self.worker):
            self.side.no_job()
        return held

    def do_one(self) -> None:
        """Run a first job to its end."""
        self.submit(b"0")
        held = self.grab()
        assert held is not None
        self.service.settling.succeeded(held, b"")

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.service.tick()


def opened_id(number: int) -> int:
    return 10**12 + number


@pytest.fixture
def node() -> Node:
    return Node()


def test_the_next_job_is_the_answer_without_going_to_sleep(node: Node) -> None:
    node.do_one()
    assert node.grab() is None
    assert node.side.heard == []
    node.submit(b"1")
    assert node.side.heard == ["job 1"]


def test_a_worker_without_a_next_job_is_told_after_a_moment(node: Node) -> None:
    node.do_one()
    node.grab()
    node.wait(LINGER * 0.9)
    assert node.side.heard == []
    node.wait(LINGER * 0.2)
    assert node.side.heard == ["no job"]
    node.submit(b"1")
    assert node.side.heard == ["no job"], "it has its answer, and nothing more is sent until it asks or sleeps"


def test_a_worker_that_has_ended_nothing_is_told_at_once(node: Node) -> None:
    node.grab()
    assert node.side.heard == ["no job"]
    node.do_one()
    node.grab()
    node.wait(LINGER * 1.1)
    node.grab()
    assert node.side.heard == ["no job"] * 3, "only the first request after a job waits"


def test_each_of_two_requests_in_one_go_is_answered(node: Node) -> None:
    node.do_one()
    node.grab()
    node.grab()
    assert node.side.heard == ["no job"]
    node.wait(LINGER * 1.1)
    assert node.side.heard == ["no job", "no job"]


def test_a_worker_that_leaves_meanwhile_is_forgotten(node: Node) -> None:
    node.do_one()
    node.grab()
    node.service.gone(node.worker)
    node.submit(b"1")
    node.wait(LINGER * 1.1)
    assert node.side.heard == []
    assert node.service.dispatch.queue(b"f").size == 1


def test_a_worker_of_many_functions_is_told_at_once(node: Node) -> None:
    for number in range(LINGER_FUNCTIONS):
        node.service.register(node.worker, b"g%d" % number, Ability())
    node.do_one()
    node.grab()
    assert node.side.heard == ["no job"]
