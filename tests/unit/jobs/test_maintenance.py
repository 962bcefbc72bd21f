"""Time-driven work: due jobs, stepped clocks, records of long runs, silent workers, old jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.claiming import MIN_WINDOW
from mainspring.jobs.maintenance import FUNCTIONS_PER_STEP, TICK_INTERVAL
from mainspring.jobs.model import Options, Retry, State

from .a_node import Node, side

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def later(node: Node, seconds: float) -> int:
    return round((node.clock.wall() + seconds) * 1_000_000)


# ---- due jobs ----


def test_a_job_starts_when_it_is_due_and_not_before(node: Node) -> None:
    worker = node.stream()
    job = node.background("1", due_us=later(node, 5.0))
    assert node.state(job.id) is State.SCHEDULED
    node.wait(4.99)
    assert side(worker).pop_events() == []
    node.wait(0.02)
    assert side(worker).pop_events() == ["job 1"]


def test_a_plain_worker_is_woken_when_a_job_is_due(node: Node) -> None:
    worker = node.worker()
    assert not node.assigner.sleep(worker)
    node.background("1", due_us=later(node, 5.0))
    node.wait(5.01)
    assert side(worker).pop_events() == ["wake"]


def test_the_earlier_of_two_due_jobs_is_not_forgotten_for_the_later(node: Node) -> None:
    worker = node.stream(places=2)
    node.background("2", due_us=later(node, 5.0))
    node.background("1", due_us=later(node, 3.0))
    node.wait(3.01)
    assert side(worker).pop_events() == ["job 1"]
    node.wait(2.0)
    assert side(worker).pop_events() == ["job 2"]


def test_a_due_job_is_found_after_a_restart(node: Node) -> None:
    node.background("1", due_us=later(node, 5.0))
    restarted = node.restart()
    worker = restarted.stream()
    restarted.wait(5.01)
    assert side(worker).pop_events() == ["job 1"]


def test_a_wall_clock_that_is_set_forward_makes_jobs_due(node: Node) -> None:
    worker = node.stream()
    node.background("1", due_us=later(node, 3600.0))
    node.wait(1.0)
    node.clock.step(3600.0)
    node.wait(0.5)
    assert side(worker).pop_events() == ["job 1"]


def test_a_wall_clock_that_is_set_back_puts_jobs_off(node: Node) -> None:
    worker = node.stream()
    node.background("1", due_us=later(node, 5.0))
    node.wait(1.0)
    node.clock.step(-10.0)
    node.wait(10.0)
    assert side(worker).pop_events() == []
    node.wait(4.3)
    assert side(worker).pop_events() == ["job 1"]


def test_clocks_that_differ_a_little_delay_a_job_by_no_more(node: Node) -> None:
    worker = node.stream()
    node.background("1", due_us=later(node, 5.0))
    node.wait(1.0)
    node.clock.step(-0.01)
    node.wait(4.009)
    assert side(worker).pop_events() == []
    node.wait(0.004)
    assert side(worker).pop_events() == ["job 1"]


def test_due_jobs_are_looked_for_again_after_the_store_has_failed(node: Node) -> None:
    worker = node.stream()
    node.background("1", due_us=later(node, 5.0))
    node.life.store.full = True
    node.wait(5.5)
    node.life.store.full = False
    node.wait(1.0)
    assert side(worker).pop_events() == ["job 1"]


def test_a_job_that_waits_in_the_store_expires_there(node: Node) -> None:
    job = node.background("1", expires_us=later(node, 1.0))
    delayed = node.background("2", due_us=later(node, 60.0), expires_us=later(node, 2.0))
    clients = [node.wait_for(one.id) for one in (job, delayed)]
    node.wait(1.1)
    assert node.state(job.id) is State.EXPIRED
    node.wait(1.0)
    assert node.state(delayed.id) is State.EXPIRED
    assert [client.events for client in clients] == [["expired"], ["expired"]]
    assert (node.queue().live, node.queue().backlog) == (0, [0, 0, 0])


# ---- long runs ----


def test_what_runs_for_over_a_second_is_recorded_as_running(node: Node) -> None:
    worker = node.stream(places=2)
    job = node.background("1")
    node.wait(0.9)
    assert node.state(job.id) is State.LEASED
    short = node.background("2")
    node.wait(0.5)
    assert node.state(job.id) is State.RUNNING
    assert node.state(short.id) is State.LEASED
    node.settling.succeeded(side(worker).given[0], b"done")
    node.commit()
    assert node.state(job.id) is State.SUCCEEDED


def test_a_record_that_failed_is_made_again(node: Node) -> None:
    node.stream()
    job = node.background("1")
    node.life.store.full = True
    node.wait(1.5)
    assert node.state(job.id) is State.LEASED
    node.life.store.full = False
    node.wait(0.5)
    assert node.state(job.id) is State.RUNNING


# ---- silent workers ----


def test_a_woken_worker_that_stays_silent_does_not_keep_another_asleep(node: Node) -> None:
    silent, other = node.worker(name="silent"), node.worker(name="other")
    for worker in (silent, other):
        assert not node.assigner.sleep(worker)
    node.background("1")
    assert side(silent).pop_events() == ["wake"]
    node.wait(0.9)
    assert side(other).pop_events() == []
    node.wait(0.8)
    assert side(other).pop_events() == ["wake"]
    assert node.given(other).job.payload == b"1"
    assert node.grab(silent) is None
    assert node.queue().woken == 0


def test_a_silent_worker_that_speaks_again_is_like_any_other(node: Node) -> None:
    worker = node.worker()
    node.assigner.sleep(worker)
    node.background("1")
    node.wait(3.0)
    assert node.given(worker).job.payload == b"1"


# ---- what failed and what is old ----


def test_settlements_that_the_store_could_not_take_are_tried_again(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    client = node.wait_for(job.id)
    acknowledged: list[bool] = []
    node.settling.succeeded(node.given(worker), b"done", acknowledged.append)
    node.fail()
    assert (client.events, acknowledged) == ([], [])
    assert node.service.ends.waits
    node.wait(0.5)
    assert (client.events, acknowledged) == (["succeeded done"], [True])
    assert not node.service.ends.waits


def test_a_claim_that_failed_is_made_again(node: Node) -> None:
    node.background("1")
    worker = node.stream()
    node.fail()
    assert side(worker).pop_events() == []
    node.wait(0.5)
    assert side(worker).pop_events() == ["job 1"]


def test_ended_jobs_are_kept_for_their_time_and_dead_letters_for_theirs() -> None:
    node = Node(retention=60.0, dead_retention=120.0)
    worker = node.stream(places=2)
    good, bad = node.background("1"), node.background("2")
    for held, ends in zip(list(side(worker).given), (True, False), strict=True):
        if ends:
            node.settling.succeeded(held, b"")
        else:
            node.settling.failed(held, b'{"type":"Error","message":"x"}')
    node.commit()
    node.wait(59.0)
    assert node.state(good.id) is State.SUCCEEDED
    node.wait(20.0)
    assert node.life.store.find(good.id) is None
    assert node.state(bad.id) is State.FAILED
    node.wait(60.0)
    assert node.life.store.find(bad.id) is None
    assert node.wait_for(good.id).events == []
    client = node.wait_for(good.id)
    node.commit()
    assert client.events == ["unknown"]


def test_a_node_says_when_it_wants_to_be_asked_again(node: Node) -> None:
    now = node.clock.monotonic()
    assert now < node.service.tick() <= now + 0.25
    node.background("1", due_us=later(node, 0.1), options=Options(retry=Retry()))
    assert node.service.tick() <= now + 0.1 + 1e-6


def test_windows_follow_what_workers_get_through(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    adapted: list[float] = []
    node.queue().window = MIN_WINDOW
    monkeypatch.setattr(node.assigner.claiming, "adapt", lambda _, seconds: adapted.append(seconds))
    node.wait(1.1)
    assert 3 <= len(adapted) <= 5
    assert sum(adapted) <= 1.1


def test_functions_that_nothing_changes_are_passed_over(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.stream("idle")
    node.background("1", "waits")
    served: list[bytes] = []
    monkeypatch.setattr(node.assigner, "serve", lambda queue: served.append(queue.name))
    node.wait(1.0)
    assert served == []
    node.queue("idle").backlog[1] += 1
    node.wait(1.0)
    assert set(served) == {b"idle"}, "a claim may have failed"


def test_many_functions_are_looked_at_in_steps(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3 * FUNCTIONS_PER_STEP):
        node.queue(str(number)).window = MIN_WINDOW
    looked: list[bytes] = []
    monkeypatch.setattr(node.assigner.claiming, "adapt", lambda queue, _: looked.append(queue.name))
    node.clock.advance(TICK_INTERVAL)
    steps: list[Callable[[], None]] = []
    monkeypatch.setattr(node.service.slices, "put", steps.append)
    node.service.tick()
    assert looked == []
    while steps:
        before = len(looked)
        steps.pop()()
        assert len(looked) - before <= FUNCTIONS_PER_STEP
    assert len(looked) == 3 * FUNCTIONS_PER_STEP


def test_a_job_that_started_while_the_clock_was_ahead_is_recorded_as_running(node: Node) -> None:
    node.stream()
    node.clock.step(86_400.0)
    job = node.background("1")
    node.clock.step(-86_400.0)
    node.wait(1.5)
    assert node.state(job.id) is State.RUNNING
