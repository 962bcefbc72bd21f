"""The jobs service: waiting, cancelling, retrying, looking up, and the shutdown of a node."""

from __future__ import annotations

import pytest

from mainspring.errors import ConflictError, NotFoundError, StoreFullError
from mainspring.jobs.held import Ability
from mainspring.jobs.model import Job, Options, Retry, State, failure
from mainspring.jobs.service import FUNCTIONS_AT_ONCE

from .a_node import Client, Node, side, unexpected

ERROR = failure("Error", "x")
NOWHERE = 10**12 + 999_999


def fail(node: Node, job: Job) -> None:
    """Run a job to its failure."""
    worker = node.stream(job.function.decode())
    node.commit()
    held = node.held(job)
    assert held is not None
    node.settling.failed(held, ERROR)
    node.service.workers.gone(worker)
    node.commit()


# ---- start ----


def test_a_node_begins_with_what_an_earlier_life_held() -> None:
    node = Node()
    for number in range(3):
        node.background(str(number))
    node.background("later", due_us=2**60)
    node.stream(places=1)
    node.commit()
    restarted = node.restart()
    assert (restarted.queue().live, restarted.queue().backlog) == (4, [0, 3, 0])
    worker = restarted.stream(places=3)
    restarted.commit()
    assert side(worker).pop_events() == ["job 0", "job 1", "job 2"]
    assert {held.job.suspects for held in side(worker).given} == {1}


# ---- wait ----


def test_a_client_of_an_ended_job_is_notified_at_once(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    node.settling.succeeded(side(worker).given[0], b"done")
    node.commit()
    client = node.wait_for(job.id)
    assert client.events == []
    node.commit()
    assert client.events == ["succeeded done"]
    assert len(node.service.listeners) == 0


@pytest.mark.parametrize("stage", ["scheduled", "pending", "held", "settling"])
def test_a_waiting_client_is_notified_once_whenever_the_job_ends(node: Node, stage: str) -> None:
    due = round((node.clock.wall() + 1) * 1_000_000) if stage == "scheduled" else 0
    job = node.background("1", due_us=due)
    client = node.wait_for(job.id) if stage in {"scheduled", "pending"} else None
    node.commit()
    worker = node.stream()
    node.wait(1.1)
    client = client or (node.wait_for(job.id) if stage == "held" else None)
    node.settling.succeeded(side(worker).given[0], b"done")
    client = client or node.wait_for(job.id)
    node.commit()
    assert client.events == ["succeeded done"]


def test_all_clients_of_an_unknown_job_are_notified(node: Node) -> None:
    one, two = node.wait_for(NOWHERE), node.wait_for(NOWHERE)
    node.service.waits.wait(NOWHERE, two, lambda: two.events.append("unknown again"))
    node.commit()
    assert one.events == ["unknown"]
    assert two.events == ["unknown", "unknown again"]
    assert len(node.service.listeners) == 0


def test_a_job_that_cannot_be_looked_up_now_is_not_unknown(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    node.settling.succeeded(side(worker).given[0], b"done")
    node.commit()
    client = node.wait_for(job.id)
    node.fail()
    assert client.events == []
    node.wait(0.5)
    assert client.events == ["succeeded done"]


def test_no_lookup_is_retried_for_a_departed_client(node: Node) -> None:
    client = node.wait_for(NOWHERE)
    node.fail()
    node.service.waits.gone(client)
    groups = node.life.commits.groups
    node.wait(0.3)
    assert client.events == []
    assert node.life.commits.groups == groups


def test_a_waiting_client_receives_progress(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    client = node.wait_for(job.id)
    held = side(worker).given[0]
    node.service.reports.data(held, b"part")
    node.service.reports.warning(held, b"careful")
    node.service.reports.status(held, b"1", b"2")
    assert client.events == ["data part", "warning careful", "1 of 2"]
    assert (held.numerator, held.denominator) == (b"1", b"2")
    node.service.reports.text(held, b"half")
    assert node.service.reports.text_of(job.id) == b"half"


# ---- cancel ----


def test_a_job_that_waits_in_the_store_is_cancelled_there(node: Node) -> None:
    job = node.background("1")
    client = node.wait_for(job.id)
    answers = node.cancel(job.id)
    node.commit()
    assert answers == ["cancelled"]
    assert client.events == ["cancelled"]
    assert (node.queue().live, node.queue().backlog) == (0, [0, 0, 0])
    assert node.state(job.id) is State.CANCELLED
    answers = node.cancel(job.id)
    node.commit()
    assert answers == ["cancelled"]


def test_a_scheduled_job_is_cancelled(node: Node) -> None:
    job = node.background("1", due_us=2**60)
    answers = node.cancel(job.id)
    node.commit()
    assert answers == ["cancelled"]
    assert (node.queue().live, node.queue().backlog) == (0, [0, 0, 0])


def test_a_job_that_waits_in_memory_is_cancelled_and_never_handed_out(node: Node) -> None:
    worker = node.stream(places=0)
    job = node.background("1")
    answers = node.cancel(job.id)
    assert answers == [], "not before it is on disk"
    node.service.workers.ready(worker, 1)
    node.commit()
    assert answers == ["cancelled"]
    assert side(worker).pop_events() == []


def test_a_streaming_worker_is_asked_to_stop(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    answers = node.cancel(job.id)
    node.commit()
    assert answers == ["running"]
    assert side(worker).pop_events() == ["job 1", "stop 1: cancelled"]
    answers = node.cancel(job.id)
    node.commit()
    assert answers == ["running"], "asked again"


def test_reports_of_a_plain_worker_about_a_cancelled_job_are_ignored(node: Node) -> None:
    worker = node.worker()
    job = node.background("1")
    held = node.given(worker)
    answers = node.cancel(job.id)
    node.commit()
    assert answers == ["cancelled"]
    assert worker.running == {}
    assert node.service.workers.pass_over(worker, held.handle)
    assert not node.service.workers.pass_over(node.worker(), held.handle)
    assert not node.service.workers.pass_over(None, held.handle)


def test_a_foreground_job_is_cancelled(node: Node) -> None:
    job, client = node.foreground("1")
    assert node.cancel(job.id) == ["cancelled"]
    assert client.events == ["cancelled"]
    assert node.table.held == {}


def test_a_foreground_job_is_cancelled_during_its_backoff(node: Node) -> None:
    worker = node.stream(places=2, retry=Retry(initial=1.0))
    job, client = node.foreground("1")
    node.settling.failed(side(worker).given[0], ERROR)
    assert node.cancel(job.id) == ["cancelled"]
    assert client.events == ["cancelled"]
    node.wait(3.0)
    assert side(worker).pop_events() == ["job 1"]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_cancels_while_a_job_is_being_stored(node: Node, ends: bool, full: bool) -> None:
    """A foreground job on its way to the store, which may have ended meanwhile, is cancelled twice."""
    worker = node.stream()
    job, client = node.foreground("1", unique=b"u")
    node.submit(node.job("2", unique=b"u"))
    held = side(worker).given[0]
    if ends:
        node.settling.succeeded(held, b"done")
    else:
        node.settling.lost(held, "gone")
    first, second = node.cancel(job.id), node.cancel(job.id)
    if full:
        node.fail()
    node.commit()
    outcome = "succeeded done" if ends else "cancelled"
    assert client.events == [outcome]
    if full and ends:
        assert all(isinstance(answer, NotFoundError | StoreFullError) for answer in first + second)
    else:
        assert first[0] == outcome.split()[0]
    assert len(first) == len(second) == 1
    assert node.table.held == {}
    assert (node.queue().live, node.queue().foreground, node.queue().size) == (0, 0, 0)


def test_a_job_that_is_claimed_while_it_is_cancelled(node: Node) -> None:
    job = node.background("1")
    worker = node.stream(places=0)
    answers = node.cancel(job.id)
    node.commit()
    assert answers == ["cancelled"]
    assert node.state(job.id) is State.CANCELLED
    node.service.workers.ready(worker, 1)
    assert side(worker).pop_events() == []


def test_a_job_whose_settlement_waits_for_the_store_has_ended(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    node.settling.succeeded(side(worker).given[0], b"done")
    node.fail()
    groups = node.life.commits.groups
    answers = node.cancel(job.id)
    node.commit()
    assert answers == ["succeeded"]
    assert node.life.commits.groups <= groups + 3


def test_an_unknown_job_cannot_be_cancelled(node: Node) -> None:
    answers = node.cancel(NOWHERE)
    node.commit()
    assert isinstance(answers[0], NotFoundError)


def test_a_cancel_that_the_store_refuses(node: Node) -> None:
    job = node.background("1")
    answers = node.cancel(job.id)
    node.fail()
    assert isinstance(answers[0], StoreFullError)
    assert node.state(job.id) is State.PENDING


# ---- try again ----


def test_a_dead_letter_is_put_back(node: Node) -> None:
    job = node.background("1")
    fail(node, job)
    answers = node.retry(job.id)
    node.commit()
    assert isinstance(answers[0], Job)
    assert (node.queue().live, node.queue().backlog) == (1, [0, 1, 0])
    worker = node.stream()
    node.commit()
    assert side(worker).pop_events() == ["job 1"]
    assert side(worker).given[0].job.attempt == 0


def test_a_dead_letter_whose_unique_is_live_is_not_put_back(node: Node) -> None:
    job = node.background("1", unique=b"u")
    fail(node, job)
    rival = node.background("2", unique=b"u")
    answers = node.retry(job.id)
    node.commit()
    assert isinstance(answers[0], ConflictError)
    assert node.service.handles.of(rival.id).decode() in str(answers[0])
    assert node.queue().live == 1


def test_a_dead_letter_is_not_put_back_beside_a_foreground_job_of_its_unique(node: Node) -> None:
    job = node.background("1", unique=b"u")
    fail(node, job)
    rival, _ = node.foreground("2", unique=b"u")
    answers = node.retry(job.id)
    node.commit()
    assert isinstance(answers[0], ConflictError)
    assert node.service.handles.of(rival.id).decode() in str(answers[0])
    assert node.queue().live == 0
    assert node.state(job.id) is State.FAILED


def test_a_foreground_job_joins_the_dead_letter_that_is_put_back_meanwhile(node: Node) -> None:
    job = node.background("1", unique=b"u")
    fail(node, job)
    node.retry(job.id)
    node.life.loop.soon.popleft()()
    node.life.store.finish()
    _, client = node.foreground("2", unique=b"u")
    node.commit()
    assert node.answers[-1] == job.id
    assert node.table.foreground == {}
    assert client.events == []


@pytest.mark.parametrize("ended", [False, True])
def test_only_what_ended_badly_can_be_tried_again(node: Node, ended: bool) -> None:
    worker = node.stream()
    job = node.background("1")
    if ended:
        node.settling.succeeded(side(worker).given[0], b"")
        node.commit()
    answers = node.retry(job.id)
    node.commit()
    assert isinstance(answers[0], ConflictError)
    assert ("succeeded" if ended else "running") in str(answers[0])
    unknown = node.retry(NOWHERE)
    node.commit()
    assert isinstance(unknown[0], NotFoundError)


def test_a_second_try_that_the_store_refuses(node: Node) -> None:
    job = node.background("1")
    fail(node, job)
    answers = node.retry(job.id)
    node.life.loop.soon.popleft()()
    node.life.store.finish()
    node.fail()
    assert isinstance(answers[0], StoreFullError)
    assert node.queue().live == 0


# ---- looking ----


def test_a_job_is_seen_where_it_is(node: Node) -> None:
    seen: list[Job | None] = []
    job = node.background("1")

    def look() -> Job:
        node.service.clients.find(job.id, seen.append, unexpected)
        node.commit()
        found = seen.pop()
        assert found is not None
        return found

    assert look().state == State.PENDING
    worker = node.stream(places=0)
    node.commit()
    assert look().state == State.LEASED
    node.service.workers.ready(worker, 1)
    running = look()
    assert (running.state, running.attempt) == (State.RUNNING, 1)
    assert running.started_us > 0
    held = node.held(job)
    assert held is not None
    assert held.worker_name() == "w"
    node.settling.succeeded(held, b"")
    node.commit()
    assert look().state == State.SUCCEEDED


# ---- workers that leave ----


def test_waiting_jobs_are_given_back_when_the_last_worker_leaves(node: Node) -> None:
    worker, other = node.stream(places=0), node.stream("f", "g", places=0)
    node.background("1")
    foreground, _ = node.foreground("2")
    for number in range(3, 6):
        node.background(str(number))
    node.service.workers.gone(worker)
    node.commit()
    assert node.queue().size == 5, "one is left"
    node.service.workers.unregister(other, b"f")
    node.commit()
    assert node.queue().backlog == [0, 4, 0]
    assert [held.job.id for held in node.table.held.values()] == [foreground.id]
    last = node.stream(places=9)
    node.commit()
    assert sorted(side(last).pop_events()) == [f"job {number}" for number in range(1, 6)]


def test_a_function_that_is_not_registered_can_be_taken_back(node: Node) -> None:
    worker = node.worker()
    node.service.workers.unregister(worker, b"g")
    node.service.workers.unregister(worker, b"h")
    assert [queue.name for queue in worker.abilities] == [b"f"]


def test_a_job_of_another_function_stays_with_its_worker(node: Node) -> None:
    worker = node.stream("f", "g")
    node.background("1")
    node.service.workers.unregister(worker, b"g")
    assert list(worker.running.values()) == side(worker).given


def test_a_streaming_worker_that_registers_later_gets_its_jobs(node: Node) -> None:
    node.foreground("1")
    worker = node.stream("g", places=2)
    assert side(worker).pop_events() == []
    node.service.workers.register(worker, b"f", Ability())
    assert side(worker).pop_events() == ["job 1"]


def test_a_streaming_worker_that_also_grabs_is_answered_at_once(node: Node) -> None:
    node.background("1")
    worker = node.stream(places=0)
    node.grab(worker)
    assert side(worker).pop_events() == ["no job"]
    assert worker.credit == 0


# ---- the end ----


def test_a_node_that_ends_politely_leaves_nothing_under_suspicion(node: Node) -> None:
    worker = node.stream(places=1)
    node.submit(*[node.job(str(number)) for number in range(4)])
    node.commit()
    node.submit(node.job("4"))
    node.service.hand_back()
    node.commit()
    node.service.hand_back()
    node.commit()
    held = side(worker).given[0]
    assert list(node.table.held.values()) == [held], "what runs may end"
    node.service.workers.ready(worker, 5)
    assert side(worker).pop_events() == ["job 0"]
    node.submit(node.job("5"))
    node.commit()
    assert node.queue().size == 0
    node.settling.released(held)
    node.commit()
    restarted = node.restart()
    last = restarted.stream(places=9)
    restarted.commit()
    assert side(last).pop_events() == [f"job {number}" for number in range(6)]
    assert {(one.job.attempt, one.job.suspects) for one in side(last).given} == {(0, 0)}


def test_a_node_that_ends_keeps_foreground_jobs_to_its_end(node: Node) -> None:
    _, client = node.foreground("1")
    node.service.hand_back()
    worker = node.worker()
    assert node.grab(worker) is None
    assert not node.assigner.sleep(worker)
    assert side(worker).pop_events() == ["no job"]
    assert isinstance(client, Client)
    assert len(node.table.held) == 1


def test_options_of_a_job_reach_its_worker(node: Node) -> None:
    worker = node.stream()
    node.background("1", options=Options(timeout=5.0, retry=Retry(max_attempts=3)))
    held = side(worker).given[0]
    policy = node.settling.policy(held)
    assert policy is not None
    assert policy.max_attempts == 3


# ---- workers of very many functions ----


def test_a_worker_of_many_functions_leaves_them_in_steps(node: Node) -> None:
    names = [str(number) for number in range(10 * FUNCTIONS_AT_ONCE)]
    worker, other = node.worker(*names), node.stream("7")
    node.service.workers.gone(worker)
    queues = node.service.dispatch.queues.values()
    assert sum(worker in queue.workers for queue in queues) == len(names), "that comes in the next turns"
    node.foreground("1", "3")
    node.background("2", "7")
    assert side(worker).pop_events() == []
    assert side(other).pop_events() == ["job 2"]
    node.wait(1.0)
    assert not any(worker in queue.workers for queue in queues)
    assert not worker.abilities


def test_what_a_worker_of_many_functions_ran_goes_to_others_at_once(node: Node) -> None:
    worker = node.worker(*map(str, range(10 * FUNCTIONS_AT_ONCE)))
    node.background("1", "3")
    assert node.given(worker).job.payload == b"1"
    node.service.workers.gone(worker)
    other = node.stream("3")
    node.commit()
    assert side(other).pop_events() == ["job 1"]
