"""Jobs that may be what kills nodes run one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State

from .a_node import Node, side

if TYPE_CHECKING:
    from mainspring.jobs.held import Worker


def suspects(number: int, function: str = "f") -> Node:
    """A node whose two earlier lives were lost while they held these jobs."""
    node = Node()
    for at in range(number):
        node.background(str(at), function)
    for _ in range(2):
        node.stream(function, places=0)
        node.commit()
        node = node.restart()
        node.commit()
    return node


def ready(node: Node, places: int, function: str = "f") -> Worker:
    worker = node.stream(function, places=places)
    node.commit()
    return worker


def until_one_is_recorded(node: Node) -> None:
    """Let commits pass until the record of the first one is on its way."""
    while not node.window.suspects.alone:
        node.life.loop.soon.popleft()()
        if node.life.store.busy:
            node.life.store.finish()


def test_suspects_run_alone_and_are_recorded_first() -> None:
    node = suspects(3)
    worker = node.stream(places=3)
    node.life.settle()
    for at in range(3):
        assert side(worker).take() == [f"job {at}"]
        held = side(worker).given[at]
        assert node.state(held.job.id) is State.RUNNING
        assert held.job.suspects == 2
        node.settling.succeeded(held, b"")
        node.commit()


def test_nothing_is_handed_out_before_the_record_is_on_disk() -> None:
    node = suspects(1)
    worker = node.stream(places=1)
    until_one_is_recorded(node)
    assert side(worker).take() == []
    node.commit()
    assert side(worker).take() == ["job 0"]


def test_the_next_life_counts_an_attempt_of_a_recorded_suspect_only() -> None:
    node = suspects(2)
    worker = ready(node, 2)
    running = side(worker).given[0].job.id
    other = next(held.job.id for held in node.table.held.values() if held.job.id != running)
    again = node.restart()
    assert (again.stored(running).attempt, again.stored(running).suspects) == (1, 2)
    assert (again.stored(other).attempt, again.stored(other).suspects) == (0, 3)


def test_a_record_that_fails_is_made_again() -> None:
    node = suspects(1)
    worker = node.stream(places=1)
    until_one_is_recorded(node)
    node.fail()
    assert side(worker).take() == []
    node.wait(0.5)
    assert side(worker).take() == ["job 0"]


def test_a_suspect_that_is_cancelled_while_it_is_recorded_never_runs() -> None:
    node = suspects(2)
    worker = node.stream(places=2)
    until_one_is_recorded(node)
    assert node.window.suspects.alone
    job_id = node.window.suspects.alone.job.id
    assert node.cancel(job_id) == []
    node.commit()
    assert node.state(job_id) is State.CANCELLED
    assert side(worker).take() == ["job 1"]


def test_a_suspect_whose_workers_are_gone_does_not_keep_others_waiting() -> None:
    node = suspects(2)
    node.background("g", "g")
    worker = ready(node, 0)
    assert len(node.window.suspects.of(node.queue())) == 1
    node.service.gone(worker)
    node.commit()
    assert node.window.suspects.alone is None
    assert node.window.suspects.of(node.queue()) == []
    assert node.queue().backlog == [0, 2, 0]
    assert all(held.queue.workers for held in node.table.held.values())


def test_a_suspect_whose_worker_leaves_while_it_is_recorded_goes_back() -> None:
    node = suspects(2)
    worker = node.stream(places=1)
    until_one_is_recorded(node)
    node.service.gone(worker)
    node.commit()
    assert node.window.suspects.alone is None
    assert node.table.held == {}
    assert node.queue().backlog == [0, 2, 0]
