"""Timeouts, heartbeats and expiry of jobs in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.jobs.model import Options, Retry, State
from mainspring.jobs.rules import WORKER_LOST

from .a_node import side

if TYPE_CHECKING:
    from .a_node import Node


def test_a_run_that_takes_longer_than_its_job_allows_has_failed(node: Node) -> None:
    worker = node.stream()
    job = node.background("1", options=Options(timeout=2.0))
    node.wait(1.9)
    assert node.held(job) is not None
    node.wait(0.2)
    assert side(worker).pop_events() == ["job 1", "stop 1: timeout"]
    assert node.state(job.id) is State.FAILED
    assert b'"Timeout"' in node.stored(job.id).error
    assert not worker.running


def test_the_time_until_an_executor_is_ready_is_no_running_time(node: Node) -> None:
    node.stream(places=2)
    jobs = [node.background(unique, options=Options(timeout=2.0)) for unique in ("1", "2")]
    first, second = (node.held(job) for job in jobs)
    assert first is not None
    assert second is not None
    begun_us = first.started_us
    node.service.assigner.prepares(first, ready=False)
    node.service.assigner.prepares(second, ready=False)
    node.wait(50.0)
    node.service.assigner.prepares(first, ready=True)
    assert first.started_us == begun_us + 50_000_000
    node.wait(1.9)
    assert node.held(jobs[0]) is first
    node.wait(0.2)
    assert node.state(jobs[0].id) is State.FAILED
    assert node.held(jobs[1]) is second
    node.wait(10.0)
    assert node.state(jobs[1].id) is State.FAILED, "nothing is prepared for longer than a minute"


def test_a_worker_cannot_extend_an_attempt_by_reports_of_preparation(node: Node) -> None:
    node.stream(places=4)
    jobs = [node.background(unique, options=Options(timeout=100.0)) for unique in "1234"]
    helds = [node.held(job) for job in jobs]
    ready, never, none, late = helds
    assert ready is not None
    assert never is not None
    assert none is not None
    assert late is not None
    begun_us = ready.started_us
    for one in (ready, never):
        node.service.assigner.prepares(one, ready=False)
    node.wait(50.0)
    node.service.assigner.prepares(ready, ready=True)
    node.service.assigner.prepares(late, ready=False)
    for _ in range(5):
        node.wait(9.0)
        node.service.assigner.prepares(none, ready=True)  # it has reported no preparation
        for one in (ready, never, late):
            node.service.assigner.prepares(one, ready=False)
        node.service.assigner.prepares(ready, ready=True)
    node.service.assigner.prepares(never, ready=True)
    assert [one and (one.started_us - begun_us) / 1e6 for one in helds] == [50.0, 60.0, 0.0, 0.0]
    node.wait(54.0)
    ended = [node.state(job.id) is State.FAILED for job in jobs]
    assert ended == [False, False, True, False], "one that is prepared late gets the rest of a minute"
    node.wait(2.0)
    assert node.state(jobs[0].id) is State.FAILED
    node.wait(10.0)
    assert [node.state(job.id) for job in jobs] == [State.FAILED] * 4


def test_a_run_that_takes_longer_than_its_plain_worker_allows_goes_to_another(node: Node) -> None:
    slow, other = node.worker(timeout=2.0), node.worker()
    job = node.background("1")
    held = node.grab(slow)
    assert held is not None
    node.wait(2.1)
    redelivered = node.given(other)
    assert redelivered.job.id == job.id
    assert redelivered.job.attempt == 1
    assert redelivered is not held


def test_a_worker_of_the_extension_fails_what_takes_longer_than_it_allows(node: Node) -> None:
    node.stream(timeout=2.0)
    job = node.background("1")
    node.wait(2.1)
    assert node.state(job.id) is State.FAILED


def test_the_jobs_own_timeout_comes_before_its_workers(node: Node) -> None:
    node.stream(timeout=1.0)
    job = node.background("1", options=Options(timeout=3.0))
    node.wait(2.0)
    assert node.held(job) is not None
    node.wait(1.1)
    assert node.state(job.id) is State.FAILED


def test_a_timeout_is_retried_where_the_policy_says_so(node: Node) -> None:
    worker = node.stream(places=2)
    job = node.background("1", options=Options(timeout=1.0, retry=Retry(max_attempts=2, initial=5.0, jitter=0.0)))
    node.wait(1.1)
    assert node.state(job.id) is State.SCHEDULED
    node.wait(5.0)
    assert side(worker).pop_events() == ["job 1", "stop 1: timeout", "job 1"]
    node.wait(1.1)
    assert node.state(job.id) is State.FAILED
    assert node.stored(job.id).attempt == 2


def test_the_timer_of_an_old_delivery_does_not_touch_the_next(node: Node) -> None:
    worker = node.stream(places=1, timeout=2.0)
    job = node.background("1")
    node.wait(1.5)
    held = node.held(job)
    assert held is not None
    node.settling.released(held)
    node.commit()
    node.service.workers.ready(worker, 1)
    node.commit()
    node.wait(1.0)
    assert side(worker).pop_events() == ["job 1", "job 1"]
    node.wait(1.1)
    assert side(worker).pop_events() == ["stop 1: timeout"]


def test_limits_leave_the_memory_with_their_job(node: Node) -> None:
    worker = node.stream(places=1)
    before = len(node.service.timers)
    for _ in range(200):
        node.background("1", options=Options(timeout=3600.0, heartbeat=60.0), expires_us=2**60)
        node.settling.succeeded(node.given(worker), b"")
        node.service.workers.ready(worker, 1)
        node.commit()
    assert len(node.service.timers) <= before + 1
    assert len(node.service.timers._heap) < 200  # noqa: SLF001 - how much is remembered shows nowhere else


@pytest.mark.parametrize("sign", ["heartbeat", "data", "warning", "status"])
def test_a_worker_that_gives_signs_of_life_keeps_its_job(node: Node, sign: str) -> None:
    worker = node.stream(heartbeat=2.0)
    job = node.background("1")
    for _ in range(5):
        node.wait(1.5)
        held = node.held(job)
        assert held is not None
        if sign == "heartbeat":
            held.beat = node.clock.monotonic()
        elif sign == "status":
            node.service.reports.status(held, b"1", b"2")
        elif sign == "data":
            node.service.reports.data(held, b"part")
        else:
            node.service.reports.warning(held, b"part")
    assert side(worker).pop_events() == ["job 1"]
    assert held is not None
    assert held.timers is not None
    assert len(held.timers) <= 2


def test_a_worker_without_signs_of_life_loses_its_job(node: Node) -> None:
    worker, other = node.stream(heartbeat=2.0), node.worker()
    job = node.background("1")
    node.wait(2.1)
    assert side(worker).pop_events() == ["job 1", "stop 1: silent"]
    held = node.given(other)
    assert held.job.id == job.id
    assert (held.job.attempt, held.job.suspects) == (0, WORKER_LOST)


def test_plain_workers_send_no_heartbeats_and_need_none(node: Node) -> None:
    worker = node.worker()
    job = node.background("1", options=Options(heartbeat=1.0))
    held = node.given(worker)
    node.wait(10.0)
    assert node.held(job) is held
    assert held.worker is worker


def later(node: Node, seconds: float) -> int:
    return round((node.clock.wall() + seconds) * 1_000_000)


def test_a_job_that_waits_in_memory_expires_there(node: Node) -> None:
    busy = node.stream(places=1)
    node.background("first")
    job = node.background("2", expires_us=later(node, 1.0))
    client = node.wait_for(job.id)
    assert node.held(job) is not None
    node.wait(1.1)
    assert node.state(job.id) is State.EXPIRED
    assert client.events == ["expired"]
    assert node.queue().size == 0
    assert side(busy).pop_events() == ["job first"]


def test_a_job_that_has_started_does_not_expire(node: Node) -> None:
    node.stream()
    job = node.background("1", expires_us=later(node, 1.0))
    node.wait(2.0)
    held = node.held(job)
    assert held is not None
    node.settling.succeeded(held, b"")
    node.commit()
    assert node.state(job.id) is State.SUCCEEDED


@pytest.mark.parametrize("kind", ["stream", "plain"])
def test_a_job_that_was_tried_before_does_not_expire_while_it_waits_again(node: Node, kind: str) -> None:
    worker = node.stream(places=1) if kind == "stream" else node.worker()
    job = node.background("1", expires_us=later(node, 1.0))
    node.given(worker)
    node.service.workers.gone(worker)
    node.commit()
    assert node.stored(job.id).attempt == (1 if kind == "plain" else 0)
    busy = node.stream(places=0)
    node.wait(2.0)
    assert node.held(job) is not None
    node.service.workers.ready(busy, 1)
    assert side(busy).pop_events() == ["job 1"]


def test_a_claimed_job_whose_time_is_over_is_not_handed_out(node: Node) -> None:
    job = node.background("1", expires_us=later(node, 1.0))
    node.clock.advance(2.0)
    worker = node.stream()
    node.commit()
    assert side(worker).pop_events() == []
    assert node.state(job.id) is State.EXPIRED
    assert (node.queue().live, node.queue().backlog) == (0, [0, 0, 0])


@pytest.mark.parametrize(("limit", "policy"), [(1, None), (None, Retry(max_attempts=1))])
def test_a_job_whose_node_was_lost_at_its_last_attempt_has_failed(
    node: Node, limit: int | None, policy: Retry | None
) -> None:
    node.stream()
    job = node.background("1", options=Options(retry=policy) if policy else None)
    node.wait(2.0)
    assert node.state(job.id) is State.RUNNING, "recorded"
    restarted = node.restart(lost_limit=limit)
    worker = restarted.stream()
    restarted.commit()
    assert side(worker).pop_events() == []
    assert restarted.state(job.id) is State.FAILED
    assert restarted.stored(job.id).attempt == 1
    assert b"node was lost" in restarted.stored(job.id).error


def test_a_wait_for_an_expiry_looks_at_a_clock_that_was_corrected(node: Node) -> None:
    """The job is read while the clock is a day behind; after the correction, it expires within a minute."""
    node.stream(places=1)
    node.background("first")
    expires_us = later(node, 86_400.0 + 30)
    job = node.background("2", expires_us=expires_us)
    node.clock.step(86_400.0)
    node.wait(61)
    assert node.state(job.id) is State.EXPIRED
