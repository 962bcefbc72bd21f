"""Requests to cancel jobs that a worker runs: they are stored, and survive the crash of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.conformance.ground import Do, InMemory

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.errors import StoreError
from mainspring.features import Feature
from mainspring.jobs.model import Options, Retry, State, StopRequest
from mainspring.jobs.store import Assign

from .a_node import Node, side, unexpected

if TYPE_CHECKING:
    from mainspring.jobs.slices import RunTransaction


@pytest.fixture
def node() -> Node:
    return Node(engine=MemoryEngine(slices=[InMemory([])]))


def live(node: Node) -> tuple[int, int, int]:
    queue = node.queue()
    return sum(queue.backlog), queue.leased, queue.away


@pytest.mark.parametrize("recorded", [False, True])
def test_a_cancelled_job_does_not_run_again_after_a_crash(node: Node, *, recorded: bool) -> None:
    worker = node.stream()
    job = node.background("1", options=Options(retry=Retry(max_attempts=9)))
    if recorded:
        node.service.commits.put(Assign([job]), lambda _: None, unexpected)
    answers = node.cancel(job.id)
    assert side(worker).pop_events() == ["job 1", "stop 1: cancelled"]
    assert answers == [], "the answer follows the commit"
    node.commit()
    assert answers == ["running"]
    assert node.state(job.id) in {State.LEASED, State.RUNNING}
    restarted = node.restart()
    client = restarted.wait_for(job.id)
    restarted.stream()
    restarted.commit()
    assert restarted.state(job.id) is State.CANCELLED
    assert b"asked" in restarted.stored(job.id).error
    assert client.events == ["cancelled"]
    assert live(restarted) == (0, 0, 0)


def test_a_request_that_cannot_be_stored_is_refused(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    answers = node.cancel(job.id)
    node.fail()
    assert side(worker).pop_events() == ["job 1", "stop 1: cancelled"]
    (error,) = answers
    assert isinstance(error, StoreError)


def test_a_store_without_requests_is_not_asked(node: Node) -> None:
    without = Node(engine=MemoryEngine(), lacks=frozenset({Feature.WORKFLOWS}))
    without.stream()
    job = without.background("1")
    assert without.cancel(job.id) == ["running"]


def test_a_slice_asks_a_worker_to_stop(node: Node) -> None:
    worker, plain = node.stream("f", places=2), node.worker("g")
    job = node.background("1")
    other = node.background("2", "g")
    assert node.given(plain).job.id == other.id

    async def work(ground: RunTransaction) -> None:
        request = StopRequest(5, b"{}")
        both = [(job.id, node.table.term), (other.id, None)]
        assert await ground.request_stop([*both, (1, None)], request) == {job.id, other.id}
        ground.after_commit(lambda: ground.lifecycle.stop([job.id, other.id, 1], "by the run"))

    node.service.commits.put(Do(work), lambda _: None, unexpected)
    node.commit()
    assert side(worker).pop_events() == ["job 1", "stop 1: cancelled"]
    assert node.state(other.id) is State.CANCELLED, "a plain worker cannot be stopped"
    node.settling.released(side(worker).given[0])
    node.commit()
    assert node.state(job.id) is State.CANCELLED


def test_a_release_that_overtakes_the_request_ends_the_job_too(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    client = node.wait_for(job.id)

    async def work(ground: RunTransaction) -> None:
        await ground.request_stop([(job.id, None)], StopRequest(5, b"{}"))

    node.service.commits.put(Do(work), lambda _: None, unexpected)
    node.commit()
    node.settling.released(side(worker).given[0])  # this node has not been notified of the request yet
    node.commit()
    assert node.state(job.id) is State.CANCELLED
    assert client.events == ["cancelled"]
    assert live(node) == (0, 0, 0)
