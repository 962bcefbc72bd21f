"""How stored jobs come into memory: leased as they are stored, or claimed; and how many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.ids import Term
from mainspring.jobs.claiming import HINT_RETRY_DELAY, MAX_WINDOW, MIN_WINDOW, WINDOW_BYTES
from mainspring.jobs.model import Job, State
from mainspring.jobs.store import Claim
from mainspring.resources.rules import Limits

from .a_node import Node, side

if TYPE_CHECKING:
    from mainspring.storage.engine import Operation

HIGH, NORMAL, LOW = 0, 1, 2


# ---- leased as it is stored ----


@pytest.mark.parametrize(
    ("backlog", "priority", "admitted"),
    [
        ((0, 0, 0), LOW, True),
        ((0, 0, 1), LOW, False),
        ((0, 0, 1), NORMAL, True),
        ((0, 1, 0), LOW, False),
        ((0, 1, 0), NORMAL, False),
        ((0, 1, 1), HIGH, True),
        ((1, 0, 0), HIGH, False),
        ((1, 0, 0), LOW, False),
    ],
)
def test_a_new_job_is_leased_at_once_unless_stored_ones_come_first(
    node: Node, backlog: tuple[int, int, int], priority: int, admitted: bool
) -> None:
    node.stream(places=0)
    queue = node.queue()
    queue.backlog = list(backlog)
    assert node.assigner.claiming.admits(queue, Job(1, b"f", b"", priority=priority)) is admitted


def test_a_new_job_is_not_leased_where_nobody_runs_its_function(node: Node) -> None:
    node.worker("g")
    job = node.background("1")
    assert node.state(job.id) is State.PENDING
    assert node.held(job) is None


def test_jobs_on_their_way_count_for_the_window(node: Node) -> None:
    node.stream(places=0)
    jobs = node.submit(*[node.job(str(number)) for number in range(MIN_WINDOW + 5)])
    assert [job.state for job in jobs].count(State.LEASED) == MIN_WINDOW
    assert node.queue().inflight == MIN_WINDOW
    node.commit()
    assert (node.queue().inflight, node.queue().size, node.queue().backlog) == (0, MIN_WINDOW, [0, 5, 0])


def test_high_priority_is_leased_past_a_full_window_but_not_without_a_limit(node: Node) -> None:
    node.stream(places=0)
    node.submit(*[node.job(str(number)) for number in range(MIN_WINDOW)])
    node.commit()
    high = node.background("high", priority=HIGH)
    assert node.state(high.id) is State.LEASED
    queue = node.queue()
    queue.inflight = 2 * MAX_WINDOW
    assert not node.assigner.claiming.admits(queue, Job(1, b"f", b"", priority=HIGH))


def test_large_payloads_make_a_window_small(node: Node) -> None:
    node.stream(places=0)
    queue = node.queue()
    queue.window = 10_000
    queue.mean_size = WINDOW_BYTES / 8
    assert node.assigner.claiming.room(queue) == 8
    queue.mean_size = 2.0 * WINDOW_BYTES
    assert node.assigner.claiming.room(queue) == 1
    queue.mean_size = 100.0
    assert node.assigner.claiming.room(queue) == 10_000


# ---- claimed from the store ----


def test_stored_jobs_are_claimed_as_places_become_free_and_run_in_order(node: Node) -> None:
    number = MIN_WINDOW * 2 + 10
    node.submit(*[node.job(str(at)) for at in range(number)])
    node.commit()
    assert node.queue().size == 0
    worker = node.worker()
    for at in range(number):
        held = node.given(worker)
        assert held.job.payload == str(at).encode()
        assert node.queue().size <= MIN_WINDOW
        node.settling.succeeded(held, b"")
        node.commit()
    assert node.grab(worker) is None
    assert node.queue().live == 0


def test_nothing_is_claimed_while_the_window_is_over_half_full_except_for_high_priority(node: Node) -> None:
    node.submit(*[node.job(str(at)) for at in range(MIN_WINDOW + 10)])
    node.commit()
    worker = node.stream(places=0)
    node.commit()
    assert (node.queue().size, node.queue().backlog) == (MIN_WINDOW, [0, 10, 0])
    node.service.workers.ready(worker, MIN_WINDOW // 2 - 1)
    node.commit()
    assert node.queue().backlog == [0, 10, 0]
    node.background("high", priority=HIGH)
    assert node.queue().ready[HIGH][0].job.payload == b"high"
    node.service.workers.ready(worker, 2)
    node.commit()
    assert node.queue().backlog == [0, 0, 0]


def test_a_stored_job_of_high_priority_is_claimed_past_a_full_window(node: Node) -> None:
    node.submit(*[node.job() for _ in range(MIN_WINDOW + 10)])
    node.commit()
    node.stream(places=0)
    due_us = round((node.clock.wall() + 5) * 1_000_000)
    node.background("high", priority=HIGH, due_us=due_us)
    node.wait(6)
    assert node.queue().ready[HIGH][0].job.payload == b"high"


def test_a_paused_node_leases_no_new_job(node: Node) -> None:
    node.stream()
    node.service.hand_back()
    (job,) = node.submit(node.job("1"))
    assert job.state == State.PENDING


def test_a_job_that_comes_back_keeps_its_place_before_younger_ones(node: Node) -> None:
    first = node.stream(places=1)
    node.background("1")
    for payload in "23":
        node.background(payload)
    node.service.workers.gone(first)
    other = node.stream(places=3)
    node.commit()
    assert [held.job.payload for held in side(other).given] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("gated", [False, True])
def test_stored_and_foreground_jobs_run_in_the_order_in_which_they_came(node: Node, gated: bool) -> None:
    if gated:
        node.service.functions.declare(b"f", Limits(concurrency=100))
    stored = []
    for number in range(0, 6, 2):
        stored.append(node.background(str(number)))
        node.foreground(str(number + 1))
    passing = node.worker()
    node.commit()
    assert all(node.held(job) is not None for job in stored)
    node.service.workers.gone(passing)  # its jobs must not count as waiting jobs
    node.commit()
    assert [node.state(job.id) for job in stored] == [State.PENDING] * 3
    worker = node.stream(places=0)
    node.commit()
    node.service.workers.ready(worker, 6)
    assert [held.job.payload for held in side(worker).given] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert (node.queue().admission is not None) == gated


def test_only_functions_of_workers_here_are_claimed(node: Node) -> None:
    node.background("1", "f")
    node.background("2", "g")
    node.stream("g", places=0)
    node.commit()
    assert (node.queue("f").size, node.queue("g").size) == (0, 1)


def test_foreground_jobs_do_not_keep_stored_ones_out(node: Node) -> None:
    job = node.background("stored")
    for number in range(2 * MIN_WINDOW):
        node.foreground(str(number))
    worker = node.stream(places=2)
    node.commit()
    assert node.held(job) is not None
    node.service.workers.ready(worker, 1)
    assert "job stored" in side(worker).events, "it is older than those that still wait"


def test_what_comes_after_the_term_has_ended_is_not_held(node: Node) -> None:
    node.background("1")
    worker = node.stream(places=1)
    assert node.queue().claiming
    node.service.assigner.fenced()
    node.commit()
    assert node.table.held == {}
    assert side(worker).given == []


def test_a_job_that_is_leased_as_it_is_stored_is_not_held_after_the_term(node: Node) -> None:
    worker = node.stream()
    (job,) = node.submit(node.job("1"))
    assert job.state == State.LEASED
    node.service.assigner.fenced()
    node.service.begin(Term(2))
    node.service.resume()
    node.commit()
    assert node.table.held == {}
    assert side(worker).given == []


def test_a_claim_that_is_never_answered_ends_with_its_term(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    job = node.background("1")
    claims: list[Any] = []
    put = node.life.commits.put

    def lose_claims(operation: Operation, *then: Any) -> None:
        if isinstance(operation, Claim):
            claims.append(then)
        else:
            put(operation, *then)

    monkeypatch.setattr(node.life.commits, "put", lose_claims)
    worker = node.worker()
    assert node.grab(worker) is None
    assert len(claims) == 1
    monkeypatch.undo()
    node.service.assigner.fenced()
    node.commit()
    assert side(worker).pop_events() == []
    node.service.begin(Term(node.service.term + 1))
    assert side(worker).pop_events() == ["no job"]
    node.service.resume()
    assert node.grab(worker) is None
    assert node.queue().claiming, "under the new term"
    ((answered, _),) = claims
    answered([[job]])
    assert node.queue().claiming, "a late answer to the last term's claim changes nothing"
    assert node.table.held == {}


def test_what_comes_to_a_node_that_drains_by_then_goes_back(node: Node) -> None:
    job = node.background("1")
    worker = node.stream()
    assert node.queue().claiming
    node.service.hand_back()
    node.commit()
    assert node.table.held == {}
    assert node.state(job.id) is State.PENDING
    node.service.resume()
    node.commit()
    assert side(worker).pop_events() == ["job 1"]


@pytest.mark.parametrize("found", [0, 1])
def test_jobs_announced_during_a_claim_are_claimed_after_it(
    node: Node, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim may have looked before that was stored, whether or not it has brought something."""
    claims: list[Claim] = []
    put = node.life.commits.put

    def spy(operation: Operation, *callbacks: Any) -> None:
        if isinstance(operation, Claim):
            claims.append(operation)
        put(operation, *callbacks)

    monkeypatch.setattr(node.life.commits, "put", spy)
    node.assigner.claiming.shared = True
    for number in range(found):
        node.background(str(number))
    node.stream(places=8)
    queue = node.queue()
    queue.backlog[NORMAL] = 1  # as far as is known here
    node.assigner.claiming.refill(queue)
    assert len(claims) == 1
    queue.hinted = True
    node.assigner.claiming.hint(queue)
    assert len(claims) == 1
    node.wait(HINT_RETRY_DELAY * 2)
    assert (len(claims), queue.hinted, queue.backlog) == (2, False, [0, 0, 0]), "and what has found nothing is the last"


# ---- the size of a window ----


def test_windows_grow_at_once_and_shrink_slowly(node: Node) -> None:
    node.stream(places=0)
    queue = node.queue()
    queue.settled = 1000
    node.assigner.claiming.adapt(node.queue(), 0.25)
    assert queue.window == 2000
    assert queue.ended == 1000
    node.assigner.claiming.adapt(node.queue(), 0.25)
    assert queue.window == 1500
    for _ in range(30):
        node.assigner.claiming.adapt(node.queue(), 0.25)
    assert queue.window == MIN_WINDOW
    queue.settled = 10**9
    node.assigner.claiming.adapt(node.queue(), 0.25)
    assert queue.window == MAX_WINDOW


def test_a_window_grows_with_each_claim_that_is_soon_used_up(node: Node) -> None:
    """A backlog of short jobs does not wait for the next adaptation: each claim measures what has ended since the last one."""
    node.submit(*[node.job(str(at)) for at in range(40 * MIN_WINDOW)])
    node.commit()
    queue = node.queue()
    worker = node.worker()
    windows = []
    for _ in range(6 * MIN_WINDOW):
        node.settling.succeeded(node.given(worker), b"")
        node.clock.advance(0.0005)
        node.commit()
        windows.append(queue.window)
    assert max(windows) == pytest.approx(1000, abs=1), "2,000 jobs a second, for half a second"
    assert windows == sorted(windows)


def test_a_window_has_places_for_all_workers(node: Node) -> None:
    for _ in range(MIN_WINDOW):
        node.worker()
    node.assigner.claiming.adapt(node.queue(), 0.25)
    assert node.queue().window == 2 * MIN_WINDOW
