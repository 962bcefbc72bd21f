"""Jobs that may be what kills nodes run one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State
from mainspring.jobs.suspects import ALONE_FOR, MAX_RUNNING, WORKER_WAIT

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
    while not node.assigner.suspects.alone:
        node.life.loop.soon.popleft()()
        if node.life.store.busy:
            node.life.store.finish()


def test_suspects_run_alone_and_are_recorded_first() -> None:
    node = suspects(3)
    worker = node.stream(places=3)
    node.life.settle()
    for at in range(3):
        assert side(worker).pop_events() == [f"job {at}"]
        held = side(worker).given[at]
        assert node.state(held.job.id) is State.RUNNING
        assert held.job.suspects == 2
        node.settling.succeeded(held, b"")
        node.commit()


def test_nothing_is_handed_out_before_the_record_is_on_disk() -> None:
    node = suspects(1)
    worker = node.stream(places=1)
    until_one_is_recorded(node)
    assert side(worker).pop_events() == []
    node.commit()
    assert side(worker).pop_events() == ["job 0"]


def test_the_next_life_counts_an_attempt_of_a_recorded_suspect_only() -> None:
    node = suspects(2)
    worker = ready(node, 2)
    running = side(worker).given[0].job.id
    other = next(held.job.id for held in node.table.held.values() if held.job.id != running)
    restarted = node.restart()
    assert (restarted.stored(running).attempt, restarted.stored(running).suspects) == (1, 2)
    assert (restarted.stored(other).attempt, restarted.stored(other).suspects) == (0, 3)


def test_a_record_that_fails_is_made_again() -> None:
    node = suspects(1)
    worker = node.stream(places=1)
    until_one_is_recorded(node)
    node.fail()
    assert side(worker).pop_events() == []
    node.wait(0.5)
    assert side(worker).pop_events() == ["job 0"]


def test_a_suspect_that_is_cancelled_while_it_is_recorded_never_runs() -> None:
    node = suspects(2)
    worker = node.stream(places=2)
    until_one_is_recorded(node)
    assert node.assigner.suspects.alone
    job_id = node.assigner.suspects.alone.job.id
    assert node.cancel(job_id) == []
    node.commit()
    assert node.state(job_id) is State.CANCELLED
    assert side(worker).pop_events() == ["job 1"]


def test_a_suspect_whose_workers_are_gone_does_not_keep_others_waiting() -> None:
    node = suspects(2)
    node.background("g", "g")
    worker = ready(node, 0)
    assert len(node.assigner.suspects.of(node.queue())) == 1
    node.service.workers.gone(worker)
    node.commit()
    assert node.assigner.suspects.alone is None
    assert node.assigner.suspects.of(node.queue()) == []
    assert node.queue().backlog == [0, 2, 0]
    assert all(held.queue.workers for held in node.table.held.values())


def test_a_suspect_whose_worker_leaves_while_it_is_recorded_goes_back() -> None:
    node = suspects(2)
    worker = node.stream(places=1)
    until_one_is_recorded(node)
    node.service.workers.gone(worker)
    node.commit()
    assert node.assigner.suspects.alone is None
    assert node.table.held == {}
    assert node.queue().backlog == [0, 2, 0]


def handed_out(worker: Worker) -> list[str]:
    return [held.job.payload.decode() for held in side(worker).given]


def test_a_suspect_that_runs_for_long_does_not_hold_up_the_others() -> None:
    node = suspects(3)
    worker = ready(node, 3)
    node.wait(ALONE_FOR - WORKER_WAIT - 0.1)
    assert handed_out(worker) == ["0"], "what kills a node mostly does so at once"
    node.wait(WORKER_WAIT + 0.2)
    assert handed_out(worker) == ["0", "1"]
    node.settling.succeeded(side(worker).given[1], b"")
    node.commit()
    assert handed_out(worker) == ["0", "1", "2"], "which runs on keeps nobody waiting"
    node.wait(3600)
    assert sorted(held.job.payload for held in worker.running.values()) == [b"0", b"2"]


def test_no_more_than_a_few_suspects_run_at_a_time() -> None:
    node = suspects(MAX_RUNNING + 2)
    worker = ready(node, MAX_RUNNING + 2)
    node.wait((MAX_RUNNING + 2) * (ALONE_FOR + 1))
    assert len(handed_out(worker)) == MAX_RUNNING
    node.settling.succeeded(side(worker).given[3], b"")
    node.commit()
    assert len(handed_out(worker)) == MAX_RUNNING + 1


def two_functions() -> tuple[Node, Worker, Worker]:
    """Suspects of two functions, and their workers, which are busy."""
    node = Node()
    for at in range(3):
        node.background(f"f{at}", "f")
    node.background("g0", "g")
    for _ in range(2):
        node.stream("f", places=0)
        node.stream("g", places=0)
        node.commit()
        node = node.restart()
        node.commit()
    workers = node.stream("f", places=0), node.stream("g", places=0)
    node.wait(WORKER_WAIT / 2)
    return node, *workers


def test_functions_take_turns() -> None:
    node, f, g = two_functions()
    for worker in (f, g):
        node.service.workers.ready(worker, 4)
    order = []
    for _ in range(4):
        node.wait(WORKER_WAIT)
        (held,) = [held for worker in (f, g) for held in worker.running.values()]
        order.append(held.job.payload.decode())
        node.settling.succeeded(held, b"")
    assert order == ["f0", "f1", "g0", "f2"], "that of g came after the first of f had its turn"


def test_a_suspect_without_a_free_worker_lets_those_of_another_function_begin() -> None:
    node, f, g = two_functions()
    node.service.workers.ready(g, 1)
    node.wait(WORKER_WAIT)
    assert handed_out(g) == ["g0"]
    node.settling.succeeded(side(g).given[0], b"")
    node.service.workers.ready(f, 2)
    node.wait(WORKER_WAIT)
    assert handed_out(f) == ["f0"], "they begin one after the other"


def test_a_suspect_that_has_let_others_begin_can_be_cancelled() -> None:
    node, f, _ = two_functions()
    node.wait(WORKER_WAIT)
    held = next(held for held in node.table.held.values() if held.recorded and not held.queued)
    assert held.queue.name == b"f"
    node.cancel(held.job.id)
    node.commit()
    assert node.state(held.job.id) is State.CANCELLED
    node.service.workers.ready(f, 1)
    node.wait(2 * WORKER_WAIT)
    assert handed_out(f) == ["f1"]


def test_suspects_go_back_with_the_last_worker_of_their_function() -> None:
    node, f, g = two_functions()
    node.wait(2.5 * WORKER_WAIT)
    node.service.workers.gone(f)
    node.commit()
    assert [held.queue.name for held in node.table.held.values()] == [b"g"]
    node.service.workers.ready(g, 1)
    node.wait(WORKER_WAIT)
    assert handed_out(g) == ["g0"]


def test_a_node_that_pauses_gives_its_suspects_back_without_recording_them() -> None:
    node = suspects(5)
    ready(node, 0)
    groups = node.life.commits.jobs
    node.service.hand_back()
    node.commit()
    assert node.table.held == {}
    assert node.life.commits.jobs == groups + 5, "one settlement each"
