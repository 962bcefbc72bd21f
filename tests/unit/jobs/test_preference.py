"""Jobs that prefer a worker: who gets them, and when others do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.jobs.held import PREFERRED_WAIT

from .a_node import Node, side

if TYPE_CHECKING:
    from mainspring.jobs.held import Held, Worker


class PreferringNode(Node):
    """A node whose jobs of f prefer the worker of which the payload begins with the name."""

    def __init__(self) -> None:
        self.named: dict[str, Worker] = {}
        super().__init__(prefers=lambda name: self.preferred if name == b"f" else None)

    def preferred(self, held: Held) -> Worker | None:
        return self.named.get(held.job.payload.decode()[0])

    def taker(self, name: str, places: int) -> Worker:
        worker = self.named[name] = self.worker(name=name)
        self.service.workers.ready(worker, places)
        return worker

    @property
    def timers(self) -> int:
        return len(self.service.timers)


@pytest.fixture
def node() -> PreferringNode:
    return PreferringNode()


def given(*workers: Worker) -> list[list[str]]:
    return [[event.removeprefix("job ") for event in side(worker).pop_events()] for worker in workers]


def finish(node: Node, worker: Worker) -> None:
    """End the worker's oldest job, and give it another place."""
    held = next(iter(worker.running.values()))
    node.service.settling.succeeded(held, b"")
    node.service.workers.ready(worker, 1)
    node.commit()


def test_a_job_goes_to_the_worker_that_it_prefers(node: PreferringNode) -> None:
    a, b = node.taker("a", 5), node.taker("b", 5)
    for payload in ("b1", "b2", "a1", "b3"):
        node.background(payload)
    assert given(a, b) == [["a1"], ["b1", "b2", "b3"]]
    for payload in ("x1", "x2", "x3", "x4"):
        node.background(payload)
    assert sorted(map(len, given(a, b))) == [2, 2], "these prefer none, so that the workers take turns"
    assert node.timers == 0


def test_a_job_waits_for_its_worker_while_another_one_has_credit(node: PreferringNode) -> None:
    a, b = node.taker("a", 1), node.taker("b", 9)
    for payload in ("a1", "a2", "b1", "a3"):
        node.background(payload)
    assert given(a, b) == [["a1"], ["b1"]]
    node.wait(PREFERRED_WAIT * 0.9)
    finish(node, a)
    assert given(a, b) == [["a2"], []]
    node.wait(PREFERRED_WAIT * 0.2)
    assert given(a, b) == [[], ["a3"]]
    assert node.queue().size == 0


def test_a_job_that_has_waited_goes_to_the_first_worker_with_credit(node: PreferringNode) -> None:
    a, b = node.taker("a", 1), node.taker("b", 2)
    for payload in ("a1", "b1", "a2", "b2"):
        node.background(payload)
    assert given(a, b) == [["a1"], ["b1", "b2"]]
    assert [held.job.payload for held in node.queue().queued()] == [b"a2"]
    node.wait(2 * PREFERRED_WAIT)
    node.service.workers.ready(b, 1)
    assert given(a, b) == [[], ["a2"]]


def test_no_job_waits_aside_while_no_worker_has_credit(node: PreferringNode) -> None:
    a, b = node.taker("a", 1), node.taker("b", 1)
    for payload in ("a1", "b1", "a2", "b2"):
        node.background(payload)
    assert given(a, b) == [["a1"], ["b1"]]
    node.wait(2 * PREFERRED_WAIT)
    finish(node, b)
    assert given(a, b) == [[], ["b2"]]
    finish(node, a)
    assert given(a, b) == [["a2"], []]


def test_no_timer_is_set_for_a_taker_alone(node: PreferringNode) -> None:
    a = node.taker("a", 1)
    for number in range(5):
        node.background(f"a{number}")
    assert node.timers == 0
    for _ in range(4):
        finish(node, a)
    assert given(a) == [["a0", "a1", "a2", "a3", "a4"]]
    assert node.timers == 0


def test_nobody_waits_for_a_worker_that_has_left(node: PreferringNode) -> None:
    a, b = node.taker("a", 1), node.taker("b", 9)
    for payload in ("a1", "a2", "a3"):
        node.background(payload)
    node.service.workers.gone(a)
    node.commit()
    assert given(a, b) == [["a1"], ["a2", "a3", "a1"]]
    node.background("a4")
    assert given(b) == [["a4"]]


def test_nobody_waits_for_a_worker_that_has_left_the_function(node: PreferringNode) -> None:
    a, b = node.taker("a", 1), node.taker("b", 9)
    for payload in ("a1", "a2"):
        node.background(payload)
    node.service.workers.unregister(a, b"f")
    node.commit()
    assert given(b) == [["a2", "a1"]]


def test_a_waiting_job_can_be_cancelled(node: PreferringNode) -> None:
    a, b = node.taker("a", 1), node.taker("b", 1)
    node.background("a1")
    waiting = node.background("a2")
    assert node.queue().size == 1
    node.cancel(waiting.id)
    node.commit()
    assert node.queue().size == 0
    node.wait(2 * PREFERRED_WAIT)
    finish(node, a)
    assert given(a, b) == [["a1"], []]


def test_waiting_jobs_move_into_an_admission_queue_and_wait_no_longer(node: PreferringNode) -> None:
    a, b = node.taker("a", 1), node.taker("b", 9)
    for payload in ("a1", "a2"):
        node.background(payload)
    node.table.admission_of(node.queue())
    node.assigner.serve(node.queue())
    assert given(a, b) == [["a1"], ["a2"]]
    finish(node, a)
    for payload in ("a3", "a4", "b1"):
        node.background(payload)
    assert given(a, b) == [["a3"], ["a4", "b1"]], "a2 is handed out once"


def test_waiting_jobs_are_given_back(node: PreferringNode) -> None:
    a, b = node.taker("a", 1), node.taker("b", 1)
    node.background("a1")
    job = node.background("a2")
    for worker in (b, a):
        node.service.workers.gone(worker)
    node.commit()
    assert (node.queue().size, node.queue().leased, sum(node.queue().backlog)) == (0, 0, 2)
    assert node.table.find(job.id) is None


def test_a_worker_that_asks_gets_no_job_that_prefers_workers(node: PreferringNode) -> None:
    workers = node.worker("f"), node.worker("f", "g")
    node.background("x1")
    assert node.queue().size == 1
    for plain in workers:
        assert node.assigner.grab(plain) is None
