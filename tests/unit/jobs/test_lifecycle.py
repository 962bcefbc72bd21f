"""Jobs that the store makes by itself: counted as they are made, and leased where a worker of this node waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.callbacks import CallInProgress
from mainspring.jobs.model import State
from mainspring.jobs.store import Submit
from mainspring.resources.rules import FunctionLimits, Limits

from .a_node import Node, side, unexpected

if TYPE_CHECKING:
    from mainspring.jobs.model import Job


@pytest.fixture
def node() -> Node:
    return Node()


def make(node: Node, payload: str = "", *, term: int | None = None, **fields: Any) -> Job:
    """Begin a transaction that makes a job; ``term`` is that of the transaction."""
    job = node.job(payload, **fields)
    job.input_size = len(job.payload)
    assert node.service.lifecycle.reserve(job, node.table.term if term is None else term)
    return job


def commit(node: Node, *jobs: Job) -> None:
    """Commit it."""
    node.service.commits.put(Submit(list(jobs)), lambda _: node.service.lifecycle.stored(jobs))
    node.commit()


def say(node: Node, limits: Limits | None, *, paused: bool = False) -> None:
    """Say something of the function."""
    CallInProgress(
        node.service.functions.change(
            b"f", lambda stored, _: FunctionLimits(stored.function, stored.declared, limits, paused, stored.version)
        ),
        lambda _: None,
        unexpected,
    )
    node.commit()


def state(job: Job) -> State:
    return State(job.state)


def test_a_job_is_leased_in_the_transaction_that_makes_it_where_a_worker_waits(node: Node) -> None:
    worker = node.stream()
    job = make(node, "1")
    assert (state(job), job.term) == (State.LEASED, node.table.term)
    assert node.queue().inflight == 1
    commit(node, job)
    assert side(worker).pop_events() == ["job 1"]
    assert (node.queue().live, node.queue().inflight, node.queue().leased) == (1, 0, 1)


def test_a_sleeping_worker_is_woken_for_it(node: Node) -> None:
    worker = node.worker()
    assert not node.assigner.sleep(worker)
    job = make(node, "1")
    assert side(worker).pop_events() == []
    commit(node, job)
    assert side(worker).pop_events() == ["wake"]
    assert node.given(worker).job.id == job.id


def test_without_a_worker_it_is_pending(node: Node) -> None:
    job = make(node, "1")
    assert state(job) is State.PENDING
    commit(node, job)
    assert node.queue().backlog == [0, 1, 0]


def test_what_is_not_due_is_leased_to_nobody(node: Node) -> None:
    node.stream()
    job = make(node, due_us=2**50, state=int(State.SCHEDULED))
    assert state(job) is State.SCHEDULED
    assert node.queue().away == 1


@pytest.mark.parametrize("term", [0, 99])
def test_a_transaction_of_another_term_leases_nothing(node: Node, term: int) -> None:
    node.stream()
    job = make(node, term=term)
    assert (state(job), job.term) == (State.PENDING, 0)


def test_a_node_without_a_term_leases_nothing(node: Node) -> None:
    node.stream()
    node.service.assigner.fenced()
    assert state(make(node)) is State.PENDING


def test_a_node_that_drains_leases_nothing(node: Node) -> None:
    node.stream()
    node.service.hand_back()
    assert state(make(node)) is State.PENDING


def test_a_job_that_is_leased_to_a_node_that_drains_before_its_commit_goes_back(node: Node) -> None:
    worker = node.stream()
    job = make(node, "1")
    node.service.hand_back()
    commit(node, job)
    assert node.table.held == {}
    assert node.state(job.id) is State.PENDING
    node.service.resume()
    node.commit()
    assert side(worker).pop_events() == ["job 1"]


def test_a_paused_function_is_leased_to_nobody(node: Node) -> None:
    node.stream()
    say(node, None, paused=True)
    assert state(make(node)) is State.PENDING


def test_jobs_that_are_leased_as_they_are_made_keep_to_the_limit(node: Node) -> None:
    worker = node.stream(places=5)
    say(node, Limits(concurrency=1))
    jobs = [make(node, "1"), make(node, "2")]
    commit(node, *jobs)
    assert side(worker).pop_events() == ["job 1"]
    node.settling.succeeded(side(worker).given[0], b"")
    node.commit()
    assert side(worker).pop_events() == ["job 2"]


def test_older_jobs_of_the_store_come_first(node: Node) -> None:
    node.background("old")
    worker = node.worker()
    job = make(node, "new")
    assert state(job) is State.PENDING
    commit(node, job)
    assert node.given(worker).job.payload == b"old"


def test_no_more_are_leased_than_the_workers_have_room_for(node: Node) -> None:
    node.stream(places=0)
    jobs = [make(node) for _ in range(1000)]
    leased = sum(state(job) is State.LEASED for job in jobs)
    assert leased == node.assigner.claiming.room(node.queue())
    assert node.queue().backlog == [0, 1000 - leased, 0]


def test_what_was_not_written_leaves_nothing_behind(node: Node) -> None:
    node.stream()
    say(node, Limits(concurrency=1))
    jobs = [make(node), make(node, due_us=2**50, state=int(State.SCHEDULED))]
    node.service.lifecycle.dropped(jobs)
    queue = node.queue()
    assert (queue.live, queue.inflight) == (0, 0)
    assert queue.admission is not None
    assert not any(line.in_flight for line in queue.admission.key_queues.values())


def test_a_job_is_not_made_beside_a_foreground_job_with_its_unique(node: Node) -> None:
    node.stream(places=0)
    node.foreground("1", unique=b"u")
    assert not node.service.lifecycle.reserve(node.job(unique=b"u"), node.table.term)
    assert node.queue().live == 0


def test_a_job_whose_term_ends_before_its_commit_is_another_nodes(node: Node) -> None:
    worker = node.stream()
    job = make(node, "1")
    node.service.assigner.fenced()
    node.service.lifecycle.stored([job])
    assert side(worker).pop_events() == []
    assert node.table.held == {}
    assert (node.queue().inflight, node.queue().away) == (0, 1)
