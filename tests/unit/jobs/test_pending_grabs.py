"""Plain workers that asked for a job where none is in memory: how long they wait for the answer, and what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.assignment import GRAB_WAIT, GRAB_WAIT_FUNCTIONS
from mainspring.jobs.model import State

from .a_node import side

if TYPE_CHECKING:
    from mainspring.jobs.held import Worker

    from .a_node import Node


# ---- while the store is looked at ----


def test_the_deferred_answer_is_a_job_or_that_there_is_none(node: Node) -> None:
    node.background("1")
    workers = [node.worker(name=str(number)) for number in range(2)]
    for worker in workers:
        assert node.grab(worker) is None
        assert side(worker).events == [], "the claim is under way"
    node.commit()
    assert sorted(side(worker).pop_events() for worker in workers) == [["job 1"], ["no job"]], (
        "and who asked again waits for a moment from then on"
    )
    assert all(worker.grabbing == worker.credit == 0 for worker in workers)


def test_requests_sent_one_after_the_other_are_all_answered(node: Node) -> None:
    node.background("1")
    worker = node.worker()
    for _ in range(3):
        assert node.grab(worker) is None
    node.commit()
    assert side(worker).pop_events() == ["job 1", "no job", "no job"]


def test_a_worker_that_asked_and_forgets_its_functions_is_answered(node: Node) -> None:
    node.background("1")
    worker = node.worker()
    node.grab(worker)
    node.service.workers.unregister(worker, b"f")
    assert side(worker).pop_events() == ["no job"]
    node.commit()
    assert node.queue().size == 0, "nobody is here to run it"
    assert node.queue().backlog == [0, 1, 0]


def test_a_worker_that_asked_and_is_gone_is_not_given_the_job(node: Node) -> None:
    job = node.background("1")
    worker = node.worker()
    node.grab(worker)
    node.service.workers.gone(worker)
    node.commit()
    assert side(worker).pop_events() == []
    assert node.state(job.id) is State.PENDING
    assert node.queue().backlog == [0, 1, 0]


def test_who_asked_for_jobs_of_two_functions_waits_for_both(node: Node) -> None:
    gone = node.background("1")
    node.background("2", "g")
    worker = node.worker("f", "g")
    node.cancel(gone.id)
    node.grab(worker)
    node.commit()
    assert side(worker).pop_events() == ["job 2"]


def test_a_failed_claim_is_answered_too(node: Node) -> None:
    node.background("1")
    worker = node.worker()
    node.grab(worker)
    node.fail()
    assert side(worker).pop_events() == ["no job"]
    assert not node.queue().claiming


# ---- for a moment ----


def linger(node: Node, worker: Worker) -> None:
    """Ask for a job where there is none, as the Gearman face does."""
    assert node.assigner.grab(worker) is None
    pending_grabs = node.assigner.pending_grabs
    if not pending_grabs.for_the_store(worker) and not pending_grabs.for_a_moment(worker):
        side(worker).no_job()


def end_one(node: Node, worker: Worker) -> None:
    """Let a worker run a job to its end."""
    node.foreground("0")
    node.settling.succeeded(node.given(worker), b"")


def test_the_next_job_is_the_answer_without_going_to_sleep(node: Node) -> None:
    worker = node.worker()
    end_one(node, worker)
    linger(node, worker)
    assert side(worker).events == []
    node.foreground("1")
    assert side(worker).events == ["job 1"]


def test_a_worker_without_a_next_job_gets_no_job_after_a_moment(node: Node) -> None:
    worker = node.worker()
    end_one(node, worker)
    linger(node, worker)
    node.wait(GRAB_WAIT * 0.9)
    assert side(worker).events == []
    node.wait(GRAB_WAIT * 0.2)
    assert side(worker).events == ["no job"]
    node.foreground("1")
    assert side(worker).events == ["no job"], "it has its answer, and nothing more is sent until it asks or sleeps"


def test_a_worker_that_has_ended_nothing_gets_no_job_at_once(node: Node) -> None:
    worker = node.worker()
    linger(node, worker)
    assert side(worker).events == ["no job"]
    end_one(node, worker)
    linger(node, worker)
    node.wait(GRAB_WAIT * 1.1)
    linger(node, worker)
    assert side(worker).events == ["no job"] * 3, "only the first request after a job waits"


def test_each_of_two_requests_in_one_go_is_answered(node: Node) -> None:
    worker = node.worker()
    end_one(node, worker)
    linger(node, worker)
    linger(node, worker)
    assert side(worker).events == ["no job"]
    node.wait(GRAB_WAIT * 1.1)
    assert side(worker).events == ["no job", "no job"]


def test_a_moment_that_begins_anew_keeps_nobody_else_waiting(node: Node) -> None:
    workers = [node.worker(name=str(number)) for number in range(2)]
    for worker in workers:
        end_one(node, worker)
    for worker in workers:
        linger(node, worker)
        node.wait(GRAB_WAIT * 0.4)
    node.foreground("1")
    node.settling.succeeded(side(workers[0]).given[-1], b"")
    linger(node, workers[0])
    node.wait(GRAB_WAIT * 0.7)
    assert [side(worker).events for worker in workers] == [["job 1"], ["no job"]], (
        "and who asked again waits for a moment from then on"
    )


def test_a_worker_that_leaves_meanwhile_is_forgotten(node: Node) -> None:
    worker = node.worker()
    end_one(node, worker)
    linger(node, worker)
    node.service.workers.gone(worker)
    node.foreground("1")
    node.wait(GRAB_WAIT * 1.1)
    assert side(worker).events == []
    assert node.queue().size == 1


def test_a_worker_of_many_functions_gets_no_job_at_once(node: Node) -> None:
    worker = node.worker("f", *[f"g{number}" for number in range(GRAB_WAIT_FUNCTIONS)])
    end_one(node, worker)
    linger(node, worker)
    assert side(worker).events == ["no job"]
