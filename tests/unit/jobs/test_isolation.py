"""Jobs that may be what workers of the extension are lost by."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from mainspring.jobs import rules
from mainspring.jobs import suspects as suspects_module
from mainspring.jobs.model import Options, Retry, State
from mainspring.jobs.rules import LOST_DELIVERIES, WORKER_LOST

from .a_node import Node, side

if TYPE_CHECKING:
    from mainspring.jobs.held import Held, Worker
    from mainspring.jobs.model import Job


@pytest.fixture
def node() -> Node:
    return Node()


def lose(node: Node, worker: Worker) -> None:
    node.service.workers.gone(worker)
    node.commit()


def taker(node: Node, places: int = 10, function: str = "f", *, isolates: bool = True) -> Worker:
    """A worker of the extension that takes what there is."""
    worker = node.stream(function, places=0)
    worker.isolates = isolates
    node.service.workers.ready(worker, places)
    node.commit()
    return worker


def suspects(node: Node, number: int, function: str = "f") -> list[Job]:
    """Jobs that were running in two workers which were lost."""
    jobs = [node.background(str(at), function) for at in range(number)]
    for _ in range(2):
        lose(node, taker(node, number, function))
    return jobs


def names(worker: Worker) -> list[str]:
    return [held.job.payload.decode() for held in side(worker).given]


def stored(node: Node, job: Job) -> tuple[int, int, State]:
    found = node.stored(job.id)
    return found.attempt, found.suspects // WORKER_LOST, State(found.state)


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_all_that_ran_in_a_lost_worker_is_suspected_however_long_it_ran(node: Node, seconds: float) -> None:
    jobs = [node.background(str(at), options=Options(retry=Retry(max_attempts=1))) for at in range(3)]
    worker = taker(node)
    node.wait(seconds)
    lose(node, worker)
    assert [stored(node, job) for job in jobs] == [(0, 1, State.PENDING)] * 3
    other = taker(node)
    assert names(other) == ["0", "1", "2"]
    assert not any(rules.may_kill_workers(held.job) for held in side(other).given)


def test_a_silent_worker_is_a_lost_one(node: Node) -> None:
    job = node.background("1", options=Options(heartbeat=2.0))
    taker(node)
    node.wait(2.1)
    assert stored(node, job)[:2] == (0, 1)


def test_suspects_of_two_losses_are_alone_and_few_for_each_worker_that_can_isolate_them(node: Node) -> None:
    suspects(node, suspects_module.JOBS_PER_WORKER + 2)
    node.background("new")
    one, two = taker(node), taker(node, isolates=False)
    given = side(one).given + side(two).given
    alone = [held for held in given if rules.may_kill_workers(held.job)]
    assert len(alone) == suspects_module.JOBS_PER_WORKER
    assert [held.job.payload for held in given if held not in alone] == [b"new"]
    node.settling.succeeded(alone[0], b"")
    node.service.workers.ready(alone[0].worker or one, 1)
    assert len(side(one).given + side(two).given) == suspects_module.JOBS_PER_WORKER + 2


def test_where_no_worker_can_isolate_them_there_is_one_of_all_functions_at_a_time(node: Node) -> None:
    suspects(node, 2, "f")
    suspects(node, 2, "g")
    f, g = taker(node, function="f", isolates=False), taker(node, function="g", isolates=False)
    for _ in range(4):
        (held,) = [held for held in node.table.held.values() if held.worker is not None]
        node.settling.succeeded(held, b"")
        node.commit()
    assert sorted(names(f) + names(g)) == ["0", "0", "1", "1"]


def test_a_sleeping_worker_is_woken_when_the_suspect_of_another_function_ends(node: Node) -> None:
    suspects(node, 1, "f")
    suspects(node, 1, "g")
    f = taker(node, function="f", isolates=False)
    g = node.worker("g")
    assert not node.assigner.sleep(g)
    node.commit()
    assert side(g).pop_events() == []
    node.settling.succeeded(side(f).given[0], b"")
    assert side(g).pop_events() == ["wake"]
    assert node.given(g).job.function == b"g"


def test_a_suspect_that_is_lost_with_other_suspects_alone_counts_an_attempt(node: Node) -> None:
    policy = Options(retry=Retry(max_attempts=1))
    jobs = [node.background(str(at), options=policy) for at in range(2)]
    for _ in range(3):
        lose(node, taker(node))
    assert [stored(node, job) for job in jobs] == [(1, 3, State.FAILED)] * 2
    assert json.loads(node.stored(jobs[0].id).error) == {
        "type": "WorkerLost",
        "message": "its worker's connection ended; attempt 1 was the last",
    }


def test_a_suspect_that_is_lost_beside_others_counts_none(node: Node) -> None:
    (job,) = suspects(node, 1)
    new = node.background("new")
    lose(node, taker(node))
    assert stored(node, job) == (0, 3, State.PENDING)
    assert stored(node, new) == (0, 1, State.PENDING)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("policy", [None, Retry(max_attempts=100)])
def test_a_job_that_loses_too_many_workers_is_a_dead_letter(node: Node, policy: Retry | None, beside: bool) -> None:
    job = node.background("1", options=Options(retry=policy) if policy else None)
    for number in range(LOST_DELIVERIES):
        assert stored(node, job)[1:] == (number, State.PENDING)
        if beside:
            node.background("beside", "f")
        lose(node, taker(node))
    assert stored(node, job)[1:] == (5, State.FAILED)
    message = json.loads(node.stored(job.id).error)["message"]
    assert message == "its worker's connection ended; the job lost 5 deliveries with workers, the most that it may"


@pytest.mark.parametrize(("limit", "losses"), [(1, 1), (3, 3), (0, 1)])
def test_job_retries_takes_the_place_of_the_usual_bound_where_there_is_no_policy(limit: int, losses: int) -> None:
    node = Node(lost_limit=limit)
    job, other = node.background("1"), node.background("2", options=Options(retry=Retry()))
    for _ in range(losses):
        assert node.state(job.id) is State.PENDING
        lose(node, taker(node))
    assert stored(node, job)[1:] == (losses, State.FAILED)
    assert stored(node, other)[1:] == (losses, State.PENDING)


def test_a_plain_worker_has_no_bound_and_loses_attempts(node: Node) -> None:
    job = node.background("1")
    for _ in range(LOST_DELIVERIES + 2):
        worker = node.worker()
        node.given(worker)
        lose(node, worker)
    assert stored(node, job) == (LOST_DELIVERIES + 2, 0, State.PENDING)


def test_a_plain_worker_gets_suspects_too(node: Node) -> None:
    (job,) = suspects(node, 1)
    assert node.given(node.worker()).job.id == job.id


def test_polite_stops_and_lost_nodes_are_no_losses_of_workers(node: Node) -> None:
    job = node.background("1")
    for _ in range(3):
        worker = taker(node)
        node.settling.released(side(worker).given[0])
        node.service.workers.gone(worker)
        node.commit()
    assert stored(node, job) == (0, 0, State.PENDING)
    lose(node, taker(node))
    for _ in range(2):
        taker(node)
        node = node.restart()
        node.commit()
    assert node.stored(job.id).suspects == WORKER_LOST + 2
    for _ in range(LOST_DELIVERIES - 1):
        assert node.state(job.id) is not State.FAILED
        lose(node, taker(node))
    assert node.state(job.id) is State.FAILED


def test_a_suspect_goes_back_with_the_last_worker_of_its_function(node: Node) -> None:
    suspects(node, suspects_module.JOBS_PER_WORKER + 2)
    lose(node, taker(node, 1))
    assert node.table.held == {}
    assert not node.assigner.isolation.waiting
    assert len(names(taker(node))) == suspects_module.JOBS_PER_WORKER


def test_a_suspect_is_cancelled_before_and_during_its_turn(node: Node) -> None:
    suspects(node, suspects_module.JOBS_PER_WORKER + 2)
    worker = taker(node, 0)
    waiting = node.assigner.isolation.of(node.queue())
    out = next(held for held in node.table.held.values() if held not in waiting)
    for held in (waiting[0], out):
        node.cancel(held.job.id)
        node.commit()
        assert node.state(held.job.id) is State.CANCELLED
    node.service.workers.ready(worker, 10)
    assert len(names(worker)) == suspects_module.JOBS_PER_WORKER


def test_no_more_are_claimed_than_memory_is_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects_module, "MAX_ISOLATED", 3)
    suspects(node, 200)
    taker(node, 0)
    node.wait(1.0)
    assert len(node.table.held) <= 2 * 64, "one claim at most that came before"


def test_a_foreground_suspect_is_alone_too_and_again_after_a_failure(node: Node) -> None:
    node.foreground("1", options=Options(retry=Retry(max_attempts=2, initial=1.0)))
    for _ in range(3):
        lose(node, taker(node, isolates=False))
    worker = taker(node, isolates=False)
    held: Held = side(worker).given[0]
    assert rules.may_kill_workers(held.job)
    node.settling.failed(held, b"{}")
    assert node.table.held == {}, "it has failed twice"
    node.foreground("2")
    node.service.workers.ready(worker, 1)
    assert names(worker) == ["1", "2"]


def test_a_foreground_suspect_that_waits_for_its_backoff_keeps_no_other_one_waiting(node: Node) -> None:
    node.foreground("1", options=Options(retry=Retry(max_attempts=2, initial=60.0)))
    node.foreground("2")
    for _ in range(2):
        lose(node, taker(node))
    worker = taker(node, isolates=False)
    node.settling.failed(side(worker).given[0], b"{}")
    assert names(worker) == ["1", "2"]
