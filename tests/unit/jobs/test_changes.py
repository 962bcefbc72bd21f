"""Clients change waiting jobs, delete ended ones, and retry with other arguments or later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.callbacks import CallInProgress
from mainspring.errors import ConflictError, NotFoundError
from mainspring.jobs.model import MAX_WAIT, Job, Priority, State
from mainspring.jobs.requests import JobChange
from mainspring.namespaces import key

from .a_node import side

if TYPE_CHECKING:
    from mainspring.errors import MainspringError

    from .a_node import Node


def change(node: Node, job: Job, **values: int) -> list[Job | MainspringError]:
    """Change a job and commit it; return the answer in a list."""
    answers: list[Job | MainspringError] = []
    CallInProgress(node.service.changes.reschedule(job.id, JobChange(**values)), answers.append, answers.append)
    node.commit()
    return answers


def delete(node: Node, job: Job) -> list[Job | MainspringError]:
    answers: list[Job | MainspringError] = []
    CallInProgress(node.service.changes.delete(job.id), answers.append, answers.append)
    node.commit()
    return answers


def in_us(node: Node, seconds: float) -> int:
    return round((node.clock.wall() + seconds) * 1_000_000)


def refusal(answers: list[Job | MainspringError]) -> str:
    (error,) = answers
    assert isinstance(error, ConflictError)
    return str(error)


def test_a_postponed_job_runs_at_its_new_time(node: Node) -> None:
    job = node.background("a")
    (changed,) = change(node, job, due_us=in_us(node, 10))
    assert isinstance(changed, Job)
    assert changed.state == State.SCHEDULED
    assert (node.queue().backlog[1], node.queue().away) == (0, 1)
    worker = node.stream()
    node.wait(9)
    assert side(worker).events == []
    node.wait(2)
    assert side(worker).events == ["job a"]


def test_a_scheduled_job_runs_at_once(node: Node) -> None:
    job = node.background("a", state=State.SCHEDULED, due_us=in_us(node, 10_000))
    worker = node.stream()
    change(node, job, due_us=in_us(node, 0))
    assert side(worker).events == ["job a"]
    assert node.queue().away == 0


def test_the_most_urgent_of_the_waiting_jobs_is_the_one_that_was_moved(node: Node) -> None:
    jobs = [node.background(text) for text in "abc"]
    change(node, jobs[2], priority=Priority.HIGH)
    assert list(node.queue().backlog) == [1, 2, 0]
    worker = node.stream(places=3)
    node.commit()
    assert side(worker).events == ["job c", "job a", "job b"]


def test_a_job_that_waits_in_memory_goes_back_and_is_changed(node: Node) -> None:
    first, second = node.background("a"), node.background("b")
    worker = node.worker()
    node.given(worker)
    held = node.held(second)
    assert held is not None, "it was claimed with the first one"
    assert held.worker is None
    (changed,) = change(node, second, due_us=in_us(node, 10))
    assert isinstance(changed, Job)
    assert (changed.state, node.state(second.id)) == (State.SCHEDULED, State.SCHEDULED)
    assert "only waiting jobs" in refusal(change(node, first, priority=0))
    node.wait(11)
    assert node.state(second.id) in {State.PENDING, State.LEASED}


def test_a_job_of_a_namespace_whose_end_waits_for_the_store_is_found(node: Node) -> None:
    job = node.background("a", key("team", b"f").decode())
    worker = node.stream(job.function.decode())
    node.commit()
    node.settling.succeeded(side(worker).given[0], b"")
    node.fail()
    answers: list[Job | MainspringError] = []
    change = JobChange(due_us=in_us(node, 10))
    CallInProgress(node.service.changes.reschedule(job.id, change, namespace="team"), answers.append, answers.append)
    node.commit()
    assert refusal(answers).endswith("is succeeded: only waiting jobs can be changed")


def test_a_job_in_memory_is_cancelled_in_its_own_namespace_alone(node: Node) -> None:
    function = key("team", b"f").decode()
    node.stream(function)
    job = node.background("a", function)
    answers: list[object] = []
    for namespace in ("other", "team"):
        CallInProgress(
            node.service.clients.cancel(job.id, "asked", namespace=namespace), answers.append, answers.append
        )
    node.commit()
    missing, cancelled = answers
    assert isinstance(missing, NotFoundError)
    assert cancelled == "running"


def test_a_job_expires_at_its_new_time(node: Node) -> None:
    job = node.background("a")
    change(node, job, expires_us=in_us(node, 5))
    node.wait(6)
    assert node.state(job.id) is State.EXPIRED
    assert sum(node.queue().backlog) == 0


def test_a_job_that_does_not_wait_is_not_changed(node: Node) -> None:
    running = node.background("a")
    worker = node.stream()
    node.commit()
    assert refusal(change(node, running, priority=0)).endswith("is running: only waiting jobs can be changed")
    node.settling.succeeded(side(worker).given[0], b"")
    node.commit()
    assert refusal(change(node, running, priority=0)).endswith("is succeeded: only waiting jobs can be changed")
    alone, _ = node.foreground("b", "g")
    assert "only stored jobs can be changed" in refusal(change(node, alone, priority=0))
    (unknown,) = change(node, node.job("never submitted"), priority=0)
    assert isinstance(unknown, NotFoundError)


def test_an_ended_job_is_deleted(node: Node) -> None:
    job = node.background("a")
    assert refusal(delete(node, job)).endswith("is pending: only ended jobs can be deleted; cancel it first")
    worker = node.stream()
    node.commit()
    assert "is running" in refusal(delete(node, job))
    node.settling.failed(side(worker).given[0], b'{"type":"E","message":""}', final=True)
    node.commit()
    (deleted,) = delete(node, job)
    assert isinstance(deleted, Job)
    assert deleted.state == State.FAILED
    (unknown,) = delete(node, job)
    assert isinstance(unknown, NotFoundError)


@pytest.mark.parametrize("delay", [0.0, 10.0])
def test_a_retry_may_be_later_and_with_other_arguments(node: Node, delay: float) -> None:
    job = node.background("a")
    node.cancel(job.id)
    node.commit()
    answers: list[Job | MainspringError] = []
    CallInProgress(node.service.clients.retry(job.id, payload=b"b", delay=delay), answers.append, answers.append)
    node.commit()
    (retried,) = answers
    assert isinstance(retried, Job)
    assert retried.state == (State.SCHEDULED if delay else State.PENDING)
    worker = node.stream()
    node.wait(delay + 1)
    assert side(worker).events == ["job b"]
    assert (sum(node.queue().backlog), node.queue().away) == (0, 0)


def test_a_refused_retry_names_the_live_job(node: Node) -> None:
    job = node.background("a", unique=b"u")
    node.cancel(job.id)
    node.commit()
    live = node.background("b", unique=b"u")
    answers = node.retry(job.id)
    node.commit()
    (error,) = answers
    assert isinstance(error, ConflictError)
    assert error.live_handle == node.service.handles.of(live.id).decode()


def test_the_farthest_time_is_stored(node: Node) -> None:
    job = node.background("a")
    (changed,) = change(node, job, due_us=in_us(node, MAX_WAIT))
    assert isinstance(changed, Job)
    assert changed.state == State.SCHEDULED
