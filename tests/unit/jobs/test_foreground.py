"""Foreground jobs on their way in, and clients that leave."""

from __future__ import annotations

import pytest
from tests.shared_memory import SharedMemoryEngine, SharedTables

from mainspring.errors import RefusedError, StoreFullError
from mainspring.testing import ManualClock

from .a_node import Client, Node, side, unexpected


def test_a_foreground_job_is_answered_before_anything_else_happens_to_it(node: Node) -> None:
    worker = node.stream()
    order: list[str] = []
    client = Client()
    node.service.foreground.submit(
        node.job("1"), client, lambda _: order.append(f"created, {side(worker).events}"), unexpected
    )
    assert order == ["created, []"]
    assert side(worker).pop_events() == ["job 1"]


def test_foreground_jobs_of_one_unique_are_one_job_and_all_clients_receive_its_outcome(node: Node) -> None:
    job, one = node.foreground("1", unique=b"u")
    _, two = node.foreground("2", unique=b"u")
    node.foreground("3", unique=b"u", client=two)
    node.foreground("4", "g", unique=b"u")
    assert node.answers[:3] == [job.id] * 3
    worker = node.stream()
    node.settling.succeeded(side(worker).given[0], b"done")
    assert one.events == ["succeeded done"]
    assert two.events == ["succeeded done"] * 2
    assert len(side(worker).given) == 1


def test_a_foreground_job_joins_a_stored_one(node: Node) -> None:
    stored = node.background("1", unique=b"u")
    _, client = node.foreground("2", unique=b"u")
    node.commit()
    assert node.answers[-1] == stored.id
    worker = node.stream()
    node.commit()
    node.settling.succeeded(side(worker).given[0], b"done")
    node.commit()
    assert client.events == ["succeeded done"]


def test_a_client_that_left_while_the_store_was_asked_leaves_no_job(node: Node) -> None:
    node.background("other")
    job, client = node.foreground("1", unique=b"u")
    node.service.waits.gone(client)
    _, second = node.foreground("2", unique=b"u")
    node.commit()
    assert node.held(job) is None
    assert list(node.table.foreground) == [(b"f", b"u")]
    worker = node.stream(places=2)
    node.commit()
    assert "job 2" in side(worker).events
    assert second.events == []


def test_a_client_that_leaves_takes_its_waiting_job_with_it(node: Node) -> None:
    job, client = node.foreground("1", unique=b"u")
    _, other = node.foreground("2", unique=b"u")
    node.service.waits.gone(client)
    assert node.held(job) is not None
    node.service.waits.gone(other)
    assert node.held(job) is None
    assert node.table.foreground == {}
    assert node.queue().size == 0


def test_the_memory_for_foreground_jobs_has_a_limit() -> None:
    node = Node(foreground_bytes=100)
    job, _ = node.foreground("x" * 60, unique=b"u")
    node.foreground("x" * 60)
    assert isinstance(node.answers.pop(), RefusedError)
    node.foreground("x" * 60, unique=b"u")
    assert node.answers.pop() == job.id, "to join costs nothing"
    node.background("x" * 1000)
    worker = node.stream(places=1)
    node.settling.succeeded(side(worker).given[0], b"")
    node.foreground("x" * 60)
    assert isinstance(node.answers[-1], int)


# ---- into a store that others share ----


@pytest.mark.parametrize("workers", [False, True])
def test_a_job_that_the_store_refuses_leaves_nothing_behind(workers: bool) -> None:
    node = Node(engine=SharedMemoryEngine(SharedTables(ManualClock().wall)))
    if workers:
        node.stream()
    job, _ = node.foreground("1", unique=b"u")
    assert node.queue().live == 1
    assert node.queue().inflight == workers
    node.fail()
    assert [type(answer) for answer in node.answers] == [StoreFullError]
    assert node.held(job) is None
    assert (node.queue().live, node.queue().inflight, node.queue().backlog) == (0, 0, [0, 0, 0])


def test_a_job_that_cannot_be_passed_on_waits_here_as_before() -> None:
    node = Node(engine=SharedMemoryEngine(SharedTables(ManualClock().wall)))
    node.worker()
    job, client = node.foreground("1")
    held = node.held(job)
    assert held is not None
    node.service.foreground.pass_on(held)
    assert node.held(job) is None
    assert node.table.on_the_way == {job.id}
    node.fail()
    assert node.held(job) is not None
    assert node.table.on_the_way == set()
    assert (node.queue().live, node.queue().foreground, node.queue().backlog) == (0, 1, [0, 0, 0])
    worker = node.stream()
    node.settling.succeeded(side(worker).given[0], b"done")
    assert client.events == ["succeeded done"]
