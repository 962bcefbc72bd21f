"""Background jobs on their way in, and what joins what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.errors import RefusedError, StoreFencedError, StoreFullError
from mainspring.ids import Term
from mainspring.jobs.model import Options, Retry, State

from .a_node import Client, Node, side, unexpected

if TYPE_CHECKING:
    from mainspring.jobs.store import Found


# ---- to the store ----


def test_a_batch_is_answered_after_the_commit_in_its_order(node: Node) -> None:
    jobs = node.submit(*[node.job(str(at)) for at in range(3)])
    node.life.loop.soon.popleft()()
    assert node.answers == []
    node.life.store.finish()
    assert node.answers == [job.id for job in jobs]
    assert all(node.state(job.id) is State.PENDING for job in jobs)


def test_a_unique_joins_the_live_job_that_has_it(node: Node) -> None:
    first = node.background("1", unique=b"u")
    found: dict[int, Found] = {}
    batch = [node.job("2"), node.job("3", unique=b"u"), node.job("4", "g", unique=b"u")]
    ids: list[int] = []

    def accepted(got: list[int], joined: dict[int, Found]) -> None:
        ids.extend(got)
        found.update(joined)

    node.service.intake.submit(batch, accepted, unexpected)
    node.commit()
    assert ids == [batch[0].id, first.id, batch[2].id]
    assert list(found) == [batch[1].id]
    assert node.queue().live == 2
    assert node.queue().backlog == [0, 2, 0]


@pytest.mark.parametrize("workers", [False, True])
def test_a_batch_that_the_store_refuses_leaves_nothing_behind(node: Node, workers: bool) -> None:
    if workers:
        node.stream(places=0)
    node.submit(node.job("1"), node.job("2", due_us=2**50), node.job("3", priority=0))
    node.fail()
    assert [type(answer) for answer in node.answers] == [StoreFullError]
    queue = node.queue()
    assert (queue.live, queue.inflight, queue.backlog, queue.size) == (0, 0, [0, 0, 0], 0)
    assert node.table.held == {}


def test_a_job_that_is_joined_leaves_nothing_behind(node: Node) -> None:
    node.stream(places=0)
    first = node.job("1", unique=b"u")
    node.submit(first, node.job("2", unique=b"u"))
    node.commit()
    assert node.answers == [first.id, first.id]
    assert (node.queue().live, node.queue().inflight, node.queue().size) == (1, 0, 1)


def test_a_job_whose_workers_left_before_it_was_stored_is_kept(node: Node) -> None:
    worker = node.stream(places=0)
    job = node.job("1")
    node.submit(job)
    node.service.workers.gone(worker)
    node.commit()
    other = node.stream()
    node.commit()
    assert side(other).pop_events() == ["job 1"]


# ---- a background submit joins a foreground job ----


def test_a_foreground_job_that_a_background_submit_joins_outlives_its_client(node: Node) -> None:
    job, client = node.foreground("1", unique=b"u")
    node.submit(node.job("2", unique=b"u"))
    node.commit()
    assert node.answers == [job.id, job.id]
    assert node.state(job.id) is State.LEASED
    node.service.waits.gone(client)
    assert node.held(job) is not None
    assert (node.queue().live, node.queue().foreground, node.table.foreground_bytes) == (1, 0, 0)
    assert node.table.foreground == {}
    worker = node.stream()
    node.settling.succeeded(side(worker).given[0], b"done")
    node.commit()
    assert node.stored(job.id).result == b"done"


def test_clients_of_the_foreground_job_still_receive_its_outcome(node: Node) -> None:
    job, client = node.foreground("1", unique=b"u")
    node.background("2", unique=b"u")
    worker = node.stream()
    node.settling.succeeded(side(worker).given[0], b"done")
    assert client.events == []
    node.commit()
    assert client.events == ["succeeded done"]
    assert node.state(job.id) is State.SUCCEEDED


def test_what_ends_while_it_is_stored_is_settled_after_it(node: Node) -> None:
    worker = node.stream()
    job, client = node.foreground("1", unique=b"u")
    node.submit(node.job("2", unique=b"u"))
    node.settling.succeeded(side(worker).given[0], b"done")
    assert node.service.ends.waits
    assert not worker.running
    assert client.events == []
    node.commit()
    assert node.answers == [job.id, job.id]
    assert node.state(job.id) is State.SUCCEEDED
    assert client.events == ["succeeded done"]
    assert node.queue().live == 0


def test_what_ends_while_it_could_not_be_stored_ends_in_memory(node: Node) -> None:
    worker = node.stream()
    _, client = node.foreground("1", unique=b"u")
    node.submit(node.job("2", unique=b"u"))
    node.settling.succeeded(side(worker).given[0], b"done")
    node.fail()
    assert isinstance(node.answers[1], StoreFullError)
    assert client.events == ["succeeded done"]
    assert node.table.held == {}
    assert (node.queue().live, node.queue().foreground) == (0, 0)


def test_a_job_that_could_not_be_stored_is_still_a_foreground_job(node: Node) -> None:
    job, client = node.foreground("1", unique=b"u")
    node.submit(node.job("2", unique=b"u", options=Options(retry=Retry())))
    node.fail()
    held = node.held(job)
    assert held is not None
    assert not held.stored
    assert job.options is None
    node.service.waits.gone(client)
    assert node.held(job) is None


def test_a_client_that_leaves_while_its_job_is_stored(node: Node) -> None:
    job, client = node.foreground("1", unique=b"u")
    node.submit(node.job("2", unique=b"u"))
    node.service.waits.gone(client)
    assert node.held(job) is not None
    node.commit()
    worker = node.stream()
    assert side(worker).pop_events() == ["job 1"]


def test_a_client_that_left_while_its_job_could_not_be_stored(node: Node) -> None:
    job, client = node.foreground("1", unique=b"u")
    node.submit(node.job("2", unique=b"u"))
    node.service.waits.gone(client)
    node.fail()
    assert node.held(job) is None
    assert node.queue().size == 0


def test_a_backoff_that_ends_while_the_job_is_stored(node: Node) -> None:
    worker = node.stream(places=2, retry=Retry(initial=1.0, jitter=0.0))
    job, client = node.foreground("1", unique=b"u")
    node.settling.failed(side(worker).given[0], b"{}")
    node.submit(node.job("2", unique=b"u"))
    node.service.waits.gone(client)
    node.life.loop.soon.popleft()()
    node.clock.advance(1.5)
    node.life.run_due()
    assert side(worker).pop_events() == ["job 1", "job 1"]
    node.commit()
    assert node.state(job.id) is State.LEASED
    assert node.held(job) is not None


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("runs", [False, True])
def test_a_job_whose_term_ends_while_it_is_stored_is_not_held(node: Node, *, runs: bool, resumed: bool) -> None:
    job, _ = node.foreground("1", unique=b"u")
    worker = node.stream() if runs else None
    node.submit(node.job("2", unique=b"u"))
    node.service.assigner.fenced()
    if resumed:
        node.service.begin(Term(2))
        node.service.resume()
    node.commit()
    assert node.answers == [job.id, job.id]
    assert (node.state(job.id), node.stored(job.id).term) == (State.LEASED, 1), (
        "the node that ended the term gives it back"
    )
    assert node.table.held == {}
    assert (node.queue().leased, node.queue().away, node.queue().foreground) == (0, 1, 0)
    if worker is None:
        assert side(node.stream()).given == []
    else:
        assert side(worker).pop_events() == ["job 1", "stop 1: lost"]
        assert not worker.running


def test_what_ends_while_it_is_stored_under_a_term_that_ends_is_not_recorded(node: Node) -> None:
    worker = node.stream()
    job, client = node.foreground("1", unique=b"u")
    node.submit(node.job("2", unique=b"u"))
    recorded: list[bool] = []
    node.settling.succeeded(side(worker).given[0], b"done", recorded.append)
    node.service.assigner.fenced()
    node.commit()
    assert recorded == [False]
    assert client.events == []
    assert node.state(job.id) is State.LEASED
    assert not node.service.ends.deferred


def test_no_job_is_stored_without_a_term(node: Node) -> None:
    job, _ = node.foreground("1", unique=b"u")
    node.service.assigner.fenced()
    node.submit(node.job("2", unique=b"u"))
    node.commit()
    assert isinstance(node.answers[1], StoreFencedError)
    assert node.life.store.find(job.id) is None
    node.service.begin(Term(2))
    node.service.resume()
    node.submit(node.job("3", unique=b"u"))
    node.commit()
    assert node.answers[2] == job.id
    assert node.stored(job.id).term == 2


def test_a_job_that_is_stored_while_the_node_drains_goes_back(node: Node) -> None:
    job, _ = node.foreground("1", unique=b"u")
    node.submit(node.job("2", unique=b"u"))
    node.service.hand_back()
    node.commit()
    assert node.answers == [job.id, job.id]
    assert node.state(job.id) is State.PENDING
    assert node.table.held == {}


def test_several_background_submits_join_while_the_job_is_stored(node: Node) -> None:
    job, _ = node.foreground("1", unique=b"u")
    for _ in range(3):
        node.submit(node.job("2", unique=b"u"))
    node.commit()
    assert node.answers == [job.id] * 4
    assert node.queue().live == 1


def test_one_that_joins_after_the_job_has_ended_is_a_new_job(node: Node) -> None:
    worker = node.stream(places=2)
    job, _ = node.foreground("1", unique=b"u")
    node.submit(node.job("2", unique=b"u"))
    node.settling.succeeded(side(worker).given[0], b"done")
    third = node.job("3", unique=b"u")
    joined: dict[int, Found] = {}
    node.service.intake.submit([third], lambda _, found: joined.update(found), unexpected)
    node.commit()
    assert node.state(job.id) is State.SUCCEEDED
    assert joined == {}
    assert side(worker).events == ["job 1", "job 3"]


def test_a_batch_in_which_a_job_joins_a_foreground_one_is_known(node: Node) -> None:
    batch = [node.job("1"), node.job("2", unique=b"u")]
    assert not node.service.intake.joins(batch)
    node.foreground("3", unique=b"u")
    assert node.service.intake.joins(batch)
    assert not node.service.intake.joins([node.job("4"), node.job("5", "g", unique=b"u")])


def test_a_kept_result_is_joined_before_a_foreground_job_is_stored(node: Node) -> None:
    worker = node.stream(places=1)
    done = node.background("1", unique=b"u", options=Options(keep_unique=60.0))
    node.settling.succeeded(side(worker).given[0], b"kept")
    node.commit()
    job, client = node.foreground("2", unique=b"u")
    node.submit(node.job("3", unique=b"u", options=Options(keep_unique=60.0)))
    node.commit()
    assert node.answers[-1] == done.id
    held = node.held(job)
    assert held is not None
    assert not held.stored
    assert node.table.foreground[b"f", b"u"] is held
    node.service.workers.ready(worker, 1)
    node.settling.succeeded(side(worker).given[-1], b"own")
    assert client.events == ["succeeded own"]
    assert (node.queue().live, node.queue().foreground) == (0, 0)


# ---- full queues ----


def join(node: Node, unique: bytes, client: Client | None) -> object:
    answers: list[object] = []
    node.service.intake.join(b"f", unique, client, answers.append, answers.append)
    node.commit()
    (answer,) = answers
    return answer


def test_a_full_queue_can_be_joined(node: Node) -> None:
    stored = node.background("1", unique=b"u")
    foreground, _ = node.foreground("2", unique=b"v")
    node.commit()
    client = Client()
    assert join(node, b"u", client) == stored.id
    assert join(node, b"u", None) == stored.id
    assert join(node, b"v", client) == foreground.id
    assert isinstance(join(node, b"w", client), RefusedError)
    assert isinstance(join(node, b"v", None), RefusedError), "it is not stored, and may not be"
    worker = node.stream(places=2)
    node.commit()
    for held in list(side(worker).given):
        node.settling.succeeded(held, held.job.payload)
    node.commit()
    assert sorted(client.events) == ["succeeded 1", "succeeded 2"]
