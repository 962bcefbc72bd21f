"""Outcomes are looked up once for all who wait, within bounds, and for those alone who have room for them."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.jobs import outcomes
from mainspring.jobs.table import SHARED_RESULT_BYTES

from .a_node import Client, Node, side

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.model import Job

NOWHERE = 10**15


@pytest.fixture
def reads(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[dict[int, int]]:
    """For each look-up: the jobs that were asked for and found, and the bytes of results that were read."""
    seen: list[dict[int, int]] = []
    find = node.service.outcomes.find

    def spy(ids: list[int], found: Callable[[dict[int, Job]], None], failed: Any, room: int) -> Any:
        def look(jobs: dict[int, Job]) -> None:
            assert len(ids) == len(set(ids))
            seen.append({job_id: len(job.result) for job_id, job in jobs.items()})
            found(jobs)

        return find(ids, look, failed, room)

    monkeypatch.setattr(node.service.outcomes, "find", spy)
    return seen


def ended(node: Node, *results: bytes) -> list[int]:
    """Run jobs for which nobody waits."""
    worker = node.stream(places=len(results))
    ids = []
    for result in results:
        job = node.background("1")
        node.commit()
        node.settling.succeeded(side(worker).given.pop(), result)
        ids.append(job.id)
    node.commit()
    node.service.workers.gone(worker)
    return ids


def is_empty(node: Node) -> bool:
    return not len(node.service.outcomes) and not node.service.listeners.withheld and not len(node.service.listeners)


@pytest.mark.parametrize("size", [10, SHARED_RESULT_BYTES + 1])
def test_a_result_is_looked_up_once_for_all_who_wait_for_it(node: Node, reads: list[dict[int, int]], size: int) -> None:
    (job_id,) = ended(node, b"r" * size)
    clients = [node.wait_for(job_id) for _ in range(40)]
    node.commit()
    assert reads == [{job_id: size}]
    results = {id(job.result) for client in clients for job in client.ended_jobs}
    assert len(results) == 1, "one copy"
    assert all(client.events == ["succeeded " + "r" * size] for client in clients)
    assert is_empty(node)


def test_a_request_during_a_lookup_gets_a_lookup_of_its_own(node: Node, reads: list[dict[int, int]]) -> None:
    """The store may have answered the lookup in progress already, for an id that no job had yet."""
    (job_id,) = ended(node, b"r")
    one = node.wait_for(job_id)
    node.life.commits.hurry()
    node.life.commits.flush()
    two = node.wait_for(job_id)
    node.commit()
    assert (one.events, two.events) == (["succeeded r"], ["succeeded r"])
    assert reads[0] == {job_id: 1}
    assert is_empty(node)


def test_the_results_of_a_look_up_are_bounded_before_they_are_read(
    node: Node, reads: list[dict[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "RESULTS_BYTES", 100)
    ids = ended(node, *[b"r" * size for size in (60, 60, 40, 101, 30, 1000, 0)])
    client = Client()
    for job_id in ids:
        node.service.waits.wait(job_id, client, lambda: client.events.append("unknown"))
    node.commit()
    assert {job.id: len(job.result) for job in client.ended_jobs} == dict(
        zip(ids, (60, 60, 40, 101, 30, 1000, 0), strict=True)
    )
    assert len(client.events) == 7
    assert [read for read in reads if sum(read.values()) > 100] == [{ids[3]: 101}, {ids[5]: 1000}], "alone"
    assert sum(sum(read.values()) for read in reads) == 1291, "each once"
    assert is_empty(node)


def test_a_look_up_has_a_bound_in_jobs(
    node: Node, reads: list[dict[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "JOBS_PER_LOOKUP", 3)
    ids = ended(node, *[b"r"] * 8)
    clients = [node.wait_for(job_id) for job_id in ids]
    node.commit()
    assert [len(read) for read in reads] == [3, 3, 2]
    assert all(client.events == ["succeeded r"] for client in clients)


def test_nothing_is_looked_up_for_those_who_have_no_room(node: Node, reads: list[dict[int, int]]) -> None:
    first, second = ended(node, b"1", b"2")
    client, other = Client(), Client()
    client.room = False
    looked_up: list[int] = []
    for job_id in (first, second):
        node.service.waits.wait(job_id, client, lambda: None, lambda: looked_up.append(1))
    node.service.waits.wait(second, other, lambda: None)
    node.commit()
    assert reads == [{second: 1}]
    assert (client.events, other.events) == ([], ["succeeded 2"])
    client.room = True
    node.service.waits.has_room(client)
    node.commit()
    assert sorted(client.events) == ["succeeded 1", "succeeded 2"]
    assert reads[1:] == [{first: 1, second: 1}]
    assert len(looked_up) == 2
    assert is_empty(node)


def test_an_end_is_withheld_from_those_who_have_no_room(node: Node, reads: list[dict[int, int]]) -> None:
    """The outcome of a job reaches clients with room; for the others it is looked up when they have room."""
    worker = node.stream()
    job = node.background("1")
    node.commit()
    reader, other = node.wait_for(job.id), node.wait_for(job.id)
    other.room = False
    node.settling.succeeded(side(worker).given[0], b"done")
    node.commit()
    assert (reader.events, other.events, reads) == (["succeeded done"], [], [])
    other.room = True
    node.service.waits.has_room(other)
    node.commit()
    assert (other.events, reads) == (["succeeded done"], [{job.id: 4}])
    assert is_empty(node)


def test_the_outcome_of_a_job_in_memory_alone_is_never_withheld(node: Node) -> None:
    worker = node.stream()
    _, client = node.foreground("1")
    client.room = False
    node.settling.succeeded(side(worker).given[0], b"done")
    assert client.events == ["succeeded done"]


def test_a_result_that_is_being_sent_is_not_read_again(node: Node, reads: list[dict[int, int]]) -> None:
    (job_id,) = ended(node, b"r" * (SHARED_RESULT_BYTES + 1))
    slow = node.wait_for(job_id)
    node.commit()
    later = node.wait_for(job_id)
    assert later.ended_jobs[0].result is slow.ended_jobs[0].result
    assert len(reads) == 1
    slow.ended_jobs.clear()
    later.ended_jobs.clear()
    gc.collect()
    node.wait_for(job_id)
    node.commit()
    assert len(reads) == 2, "nobody has it any more"


def test_an_outcome_deleted_before_the_client_has_room_is_unknown(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    node.commit()
    client = node.wait_for(job.id)
    client.room = False
    node.settling.succeeded(side(worker).given[0], b"done")
    node.commit()
    node.wait(100_000)
    assert node.life.store.find(job.id) is None
    client.room = True
    node.service.waits.has_room(client)
    node.commit()
    assert client.events == ["unknown"]
    assert is_empty(node)


def test_what_was_withheld_from_a_client_that_leaves_is_forgotten(node: Node, reads: list[dict[int, int]]) -> None:
    (job_id,) = ended(node, b"r")
    looked_up: list[int] = []
    client = Client()
    client.room = False
    node.service.waits.wait(job_id, client, lambda: None, lambda: looked_up.append(1))
    node.service.waits.wait(NOWHERE, client, lambda: None, lambda: looked_up.append(1))
    node.service.waits.gone(client)
    node.commit()
    assert (reads, looked_up) == ([], [1, 1])
    assert is_empty(node)


def test_a_store_that_fails_is_asked_again_for_all(node: Node, reads: list[dict[int, int]]) -> None:
    first, second = ended(node, b"1", b"2")
    one = node.wait_for(first)
    node.fail()
    two, unknown = node.wait_for(second), node.wait_for(NOWHERE)
    node.commit()
    assert (one.events, two.events, reads) == ([], [], []), "no faster than the store can answer"
    node.wait(outcomes.LOOKUP_RETRY_DELAY)
    assert (one.events, two.events, unknown.events) == (["succeeded 1"], ["succeeded 2"], ["unknown"])
    assert is_empty(node)
