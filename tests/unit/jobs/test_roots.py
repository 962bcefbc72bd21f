"""Root jobs and withdrawn jobs: what a node counts, and whom it notifies, after a slice's commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.ground import Do, InMemory

from mainspring.callbacks import CallInProgress
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.jobs.model import Job, Options, State
from mainspring.resources.rules import FunctionLimits, Limits

from .a_node import Node, side, unexpected

if TYPE_CHECKING:
    from mainspring.jobs.slices import RunTransaction


@pytest.fixture
def node() -> Node:
    return Node(engine=MemoryEngine(slices=[InMemory([])]))


def do(node: Node, work: Any) -> Any:
    """Run a transaction of the slice."""
    outcomes: list[Any] = []
    node.service.commits.put(Do(work), outcomes.append, unexpected)
    node.commit()
    return outcomes[0]


def begin(node: Node, *jobs: Job) -> None:
    async def work(ground: RunTransaction) -> None:
        assert await ground.begin_roots(list(jobs)) == {}
        ground.after_commit(lambda: ground.lifecycle.begun(jobs))

    do(node, work)


def end(node: Node, job: Job, state: State = State.SUCCEEDED) -> None:
    async def work(ground: RunTransaction) -> None:
        ended = await ground.end_roots([Job(job.id, b"", b"", state=state, ended_us=1, result=b"r")])
        ground.after_commit(lambda: ground.lifecycle.ended(ended))

    do(node, work)


def withdraw(node: Node, *ids: int, stop: bool = True) -> None:
    async def work(ground: RunTransaction) -> None:
        gone = await ground.withdraw(ids)
        assert len(gone) == len(ids)
        ground.after_commit(lambda: ground.lifecycle.withdrawn(gone, stop=stop))

    do(node, work)


def counts(node: Node) -> tuple[int, int, int, int]:
    queue = node.queue()
    return sum(queue.backlog), queue.leased, queue.away, queue.running


def limit(node: Node, limits: Limits) -> None:
    CallInProgress(
        node.service.functions.change(b"f", lambda stored, _: FunctionLimits(stored.function, stored.declared, limits)),
        lambda _: None,
        unexpected,
    )
    node.commit()


# ---- root jobs ----


def test_a_root_job_counts_until_its_end_which_clients_and_watchers_learn(node: Node) -> None:
    changes: list[tuple[State, int]] = []
    node.service.hub.subscribe(lambda job: changes.append((State(job.state), job.term)))
    job = node.job(unique=b"u")
    begin(node, job)
    assert counts(node) == (0, 0, 1, 0)
    assert node.service.dispatch.may_live(b"f"), "foreground jobs look for its unique"
    client = node.wait_for(job.id)
    node.commit()
    assert client.events == []
    end(node, job)
    assert client.events == ["succeeded r"]
    assert counts(node) == (0, 0, 0, 0)
    assert changes == [(State.RUNNING, -1), (State.SUCCEEDED, -1)]


def test_taken_jobs_are_no_longer_pending(node: Node) -> None:
    pending = node.background("1")
    later = node.background("2", due_us=2**60, state=int(State.SCHEDULED))
    assert counts(node) == (1, 0, 1, 0)

    async def work(ground: RunTransaction) -> None:
        taken = [*await ground.take_pending(b"f", 9, 1), *await ground.take_waiting([later.id], 1)]
        assert [job.id for job in taken] == [pending.id, later.id]
        ground.after_commit(lambda: ground.lifecycle.begun((), taken))

    do(node, work)
    assert counts(node) == (0, 0, 2, 0)
    worker = node.stream(places=5)
    node.commit()
    assert side(worker).pop_events() == []


# ---- withdrawn jobs ----


def test_a_worker_is_stopped_and_its_late_settlement_is_not_waited_for(node: Node) -> None:
    worker = node.stream(places=2)
    limit(node, Limits(concurrency=1))
    job, following = node.background("1"), node.background("2")
    assert side(worker).pop_events() == ["job 1"]
    withdraw(node, job.id)
    assert side(worker).pop_events() == ["stop 1: cancelled", "job 2"], "its place is free"
    assert node.held(job) is None
    assert counts(node) == (0, 1, 0, 1)
    node.settling.succeeded(side(worker).given[1], b"")
    node.commit()
    assert counts(node) == (0, 0, 0, 0)
    assert node.state(following.id) is State.SUCCEEDED


def test_a_worker_that_has_reported_the_end_is_not_stopped(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    side(worker).pop_events()
    withdraw(node, job.id, stop=False)
    assert side(worker).pop_events() == []
    assert worker.running == {}
    assert counts(node) == (0, 0, 0, 0)


def test_reports_of_a_plain_worker_are_ignored(node: Node) -> None:
    worker = node.worker()
    node.background("1")
    held = node.given(worker)
    withdraw(node, held.job.id)
    assert node.service.workers.pass_over(worker, held.handle)


@pytest.mark.parametrize("late", [0, 2**60])
def test_a_waiting_job_is_no_longer_counted(node: Node, late: int) -> None:
    job = node.background(due_us=late, state=int(State.SCHEDULED if late else State.PENDING))
    client = node.wait_for(job.id)
    node.commit()
    assert node.queue().live == 1
    withdraw(node, job.id)
    assert counts(node) == (0, 0, 0, 0)
    assert client.events == ["unknown"]


def test_a_job_that_waits_here_for_a_worker_is_forgotten(node: Node) -> None:
    node.worker()
    job = node.background("1")
    assert node.held(job) is not None
    withdraw(node, job.id)
    assert node.held(job) is None
    assert counts(node) == (0, 0, 0, 0)
    worker = node.stream()
    assert side(worker).pop_events() == []


def test_a_settlement_that_is_under_way_is_stale_and_counts_the_job(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    recorded: list[bool] = []

    gone = do(node, lambda ground: ground.withdraw([job.id]))
    node.history.withdrawn.add(job.id)
    node.settling.succeeded(side(worker).given[0], b"", recorded.append)
    node.service.lifecycle.withdrawn(gone)
    node.commit()
    assert recorded == [False]
    assert counts(node) == (0, 0, 0, 0)


def test_a_job_of_a_run_leaves_nothing_behind_when_it_is_dropped(node: Node) -> None:
    node.stream()
    job = node.job(options=Options(run=(1, 2), ref=3, forget=True))
    assert node.service.lifecycle.reserve(job, node.table.term)
    assert State(job.state) is State.LEASED
    node.service.lifecycle.dropped([job])
    assert (node.queue().live, node.queue().inflight) == (0, 0)
