"""What a node has in memory: what it leases at once, what it claims, and jobs that may be what kills nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.jobs.model import Job, State
from mainspring.jobs.window import BYTES, LARGEST, SMALLEST

from .a_node import Node, side

if TYPE_CHECKING:
    from mainspring.jobs.held import Worker

HIGH, NORMAL, LOW = 0, 1, 2


# ---- leased as it is stored ----


@pytest.mark.parametrize(
    ("backlog", "priority", "admitted"),
    [
        ((0, 0, 0), LOW, True),
        ((0, 0, 1), LOW, False),
        ((0, 0, 1), NORMAL, True),
        ((0, 1, 0), LOW, False),
        ((0, 1, 0), NORMAL, False),
        ((0, 1, 1), HIGH, True),
        ((1, 0, 0), HIGH, False),
        ((1, 0, 0), LOW, False),
    ],
)
def test_a_new_job_is_leased_at_once_unless_stored_ones_come_first(
    node: Node, backlog: tuple[int, int, int], priority: int, admitted: bool
) -> None:
    node.stream(places=0)
    queue = node.queue()
    queue.backlog = list(backlog)
    assert node.window.admits(queue, Job(1, b"f", b"", priority=priority)) is admitted


def test_a_new_job_is_not_leased_where_nobody_runs_its_function(node: Node) -> None:
    node.worker("g")
    job = node.background("1")
    assert node.state(job.id) is State.PENDING
    assert node.held(job) is None


def test_jobs_on_their_way_count_for_the_window(node: Node) -> None:
    node.stream(places=0)
    jobs = node.submit(*[node.job(str(number)) for number in range(SMALLEST + 5)])
    assert [job.state for job in jobs].count(State.LEASED) == SMALLEST
    assert node.queue().inflight == SMALLEST
    node.commit()
    assert (node.queue().inflight, node.queue().size, node.queue().backlog) == (0, SMALLEST, [0, 5, 0])


def test_high_priority_is_leased_past_a_full_window_but_not_without_a_limit(node: Node) -> None:
    node.stream(places=0)
    node.submit(*[node.job(str(number)) for number in range(SMALLEST)])
    node.commit()
    high = node.background("high", priority=HIGH)
    assert node.state(high.id) is State.LEASED
    queue = node.queue()
    queue.inflight = 2 * LARGEST
    assert not node.window.admits(queue, Job(1, b"f", b"", priority=HIGH))


def test_large_payloads_make_a_window_small(node: Node) -> None:
    node.stream(places=0)
    queue = node.queue()
    queue.window = 10_000
    queue.mean_size = BYTES / 8
    assert node.window.room(queue) == 8
    queue.mean_size = 2.0 * BYTES
    assert node.window.room(queue) == 1
    queue.mean_size = 100.0
    assert node.window.room(queue) == 10_000


# ---- claimed from the store ----


def test_stored_jobs_are_claimed_as_places_become_free_and_run_in_order(node: Node) -> None:
    number = SMALLEST * 2 + 10
    node.submit(*[node.job(str(at)) for at in range(number)])
    node.commit()
    assert node.queue().size == 0
    worker = node.worker()
    for at in range(number):
        held = node.given(worker)
        assert held.job.payload == str(at).encode()
        assert node.queue().size <= SMALLEST
        node.settling.succeeded(held, b"")
        node.commit()
    assert node.grab(worker) is None
    assert node.queue().live == 0


def test_nothing_is_claimed_while_the_window_is_over_half_full_except_for_high_priority(node: Node) -> None:
    node.submit(*[node.job(str(at)) for at in range(SMALLEST + 10)])
    node.commit()
    worker = node.stream(places=0)
    node.commit()
    assert (node.queue().size, node.queue().backlog) == (SMALLEST, [0, 10, 0])
    node.service.ready(worker, SMALLEST // 2 - 1)
    node.commit()
    assert node.queue().backlog == [0, 10, 0]
    node.background("high", priority=HIGH)
    assert node.queue().ready[HIGH][0].job.payload == b"high"
    node.service.ready(worker, 2)
    node.commit()
    assert node.queue().backlog == [0, 0, 0]


def test_a_job_that_comes_back_keeps_its_place_before_younger_ones(node: Node) -> None:
    first = node.stream(places=1)
    node.background("1")
    for payload in "23":
        node.background(payload)
    node.service.gone(first)
    other = node.stream(places=3)
    node.commit()
    assert [held.job.payload for held in side(other).given] == [b"1", b"2", b"3"]


def test_only_functions_of_workers_here_are_claimed(node: Node) -> None:
    node.background("1", "f")
    node.background("2", "g")
    node.stream("g", places=0)
    node.commit()
    assert (node.queue("f").size, node.queue("g").size) == (0, 1)


def test_the_deferred_answer_is_a_job_or_that_there_is_none(node: Node) -> None:
    node.background("1")
    workers = [node.worker(name=str(number)) for number in range(2)]
    for worker in workers:
        assert node.grab(worker) is None
        assert side(worker).heard == [], "the claim is under way"
    node.commit()
    assert sorted(side(worker).take() for worker in workers) == [["job 1"], ["no job"]]
    assert all(worker.grabbing == worker.credit == 0 for worker in workers)


def test_requests_sent_one_after_the_other_are_all_answered(node: Node) -> None:
    node.background("1")
    worker = node.worker()
    for _ in range(3):
        assert node.grab(worker) is None
    node.commit()
    assert side(worker).take() == ["job 1", "no job", "no job"]


def test_a_worker_that_asked_and_forgets_its_functions_is_answered(node: Node) -> None:
    node.background("1")
    worker = node.worker()
    node.grab(worker)
    node.service.unregister(worker, b"f")
    assert side(worker).take() == ["no job"]
    node.commit()
    assert node.queue().size == 0, "nobody is here to run it"
    assert node.queue().backlog == [0, 1, 0]


def test_a_worker_that_asked_and_is_gone_is_not_given_the_job(node: Node) -> None:
    job = node.background("1")
    worker = node.worker()
    node.grab(worker)
    node.service.gone(worker)
    node.commit()
    assert side(worker).take() == []
    assert node.state(job.id) is State.PENDING
    assert node.queue().backlog == [0, 1, 0]


def test_a_failed_claim_is_answered_too(node: Node) -> None:
    node.background("1")
    worker = node.worker()
    node.grab(worker)
    node.fail()
    assert side(worker).take() == ["no job"]
    assert not node.queue().claiming


def test_foreground_jobs_do_not_keep_stored_ones_out(node: Node) -> None:
    job = node.background("stored")
    for number in range(2 * SMALLEST):
        node.foreground(str(number))
    worker = node.stream(places=2)
    node.commit()
    assert node.held(job) is not None
    node.service.ready(worker, 1)
    assert "job stored" in side(worker).heard, "it is older than those that still wait"


# ---- the size of a window ----


def test_windows_grow_at_once_and_shrink_slowly(node: Node) -> None:
    node.stream(places=0)
    queue = node.queue()
    queue.settled = 1000
    node.window.adapt(0.25)
    assert queue.window == 2000
    assert queue.ended == 1000
    node.window.adapt(0.25)
    assert queue.window == 1500
    for _ in range(30):
        node.window.adapt(0.25)
    assert queue.window == SMALLEST
    queue.settled = 10**9
    node.window.adapt(0.25)
    assert queue.window == LARGEST


def test_a_window_has_places_for_all_workers(node: Node) -> None:
    for _ in range(SMALLEST):
        node.worker()
    node.window.adapt(0.25)
    assert node.queue().window == 2 * SMALLEST


# ---- suspects ----


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
    while not node.window._suspect:
        node.life.loop.soon.popleft()()
        if node.life.store.busy:
            node.life.store.finish()
    assert side(worker).take() == []
    node.commit()
    assert side(worker).take() == ["job 0"]


def test_the_next_life_counts_an_attempt_of_a_recorded_suspect_only() -> None:
    node = suspects(2)
    worker = ready(node, 2)
    running = side(worker).given[0].job.id
    other = next(held.job.id for held in node.window.held.values() if held.job.id != running)
    again = node.restart()
    assert (again.stored(running).attempt, again.stored(running).suspects) == (1, 2)
    assert (again.stored(other).attempt, again.stored(other).suspects) == (0, 3)


def test_a_record_that_fails_is_made_again() -> None:
    node = suspects(1)
    worker = node.stream(places=1)
    while not node.window._suspect:
        node.life.loop.soon.popleft()()
        if node.life.store.busy:
            node.life.store.finish()
    node.fail()
    assert side(worker).take() == []
    node.wait(0.5)
    assert side(worker).take() == ["job 0"]


def test_a_suspect_that_is_cancelled_while_it_is_recorded_never_runs() -> None:
    node = suspects(2)
    worker = node.stream(places=2)
    while not node.window._suspect:
        node.life.loop.soon.popleft()()
        if node.life.store.busy:
            node.life.store.finish()
    job_id = node.window._suspect.job.id
    assert node.cancel(job_id) == []
    node.commit()
    assert node.state(job_id) is State.CANCELLED
    assert side(worker).take() == ["job 1"]


def test_a_suspect_whose_workers_are_gone_does_not_keep_others_waiting() -> None:
    node = suspects(2)
    node.background("g", "g")
    worker = ready(node, 0)
    assert len(node.window.suspects(node.queue())) == 1
    node.service.gone(worker)
    node.commit()
    assert node.window._suspect is None
    assert node.window.suspects(node.queue()) == []
    assert node.queue().backlog == [0, 2, 0]
    assert all(held.queue.workers for held in node.window.held.values())
