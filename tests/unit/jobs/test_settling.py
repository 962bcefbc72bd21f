"""Settlements: the state of the job, the notified clients, and the time of the notification."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.simulation.store import History

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.errors import StoreBrokenError, StoreFencedError
from mainspring.jobs.held import Ability
from mainspring.jobs.model import UNREADABLE_OPTIONS, Options, Retry, State, failure
from mainspring.jobs.rules import WORKER_LOST
from mainspring.jobs.settlement import MAX_GATHERED, MAX_GATHERED_BYTES
from mainspring.storage.reads import RETRY_DELAY, SetAside

from .a_node import Node, side

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.jobs.held import Held
    from mainspring.jobs.rules import Settlement

ERROR = failure("Error", "x")


def test_clients_and_workers_are_notified_after_the_commit(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    client = node.wait_for(job.id)
    answers: list[bool] = []
    node.settling.succeeded(side(worker).given[0], b"done", answers.append)
    assert (client.events, answers) == ([], [])
    node.commit()
    assert (client.events, answers) == (["succeeded done"], [True])
    assert node.stored(job.id).result == b"done"
    assert node.stored(job.id).attempt == 1


def test_many_settlements_are_one_operation(node: Node) -> None:
    worker = node.stream(places=10)
    node.submit(*[node.job(str(at)) for at in range(10)])
    node.commit()
    groups, jobs = node.life.commits.groups, node.life.commits.jobs
    for held in list(side(worker).given):
        node.settling.succeeded(held, b"")
    node.commit()
    assert (node.life.commits.groups, node.life.commits.jobs) == (groups + 1, jobs + 10)


@pytest.mark.parametrize("awaited", [False, True])
def test_what_somebody_waits_for_is_in_a_hurry(node: Node, awaited: bool) -> None:
    worker = node.stream()
    job = node.background("1")
    if awaited:
        node.wait_for(job.id)
    node.settling.succeeded(side(worker).given[0], b"done")
    node.life.settle()
    assert (node.state(job.id) is State.SUCCEEDED) == awaited
    node.wait(0.01)
    assert node.state(job.id) is State.SUCCEEDED


def test_a_failure_without_a_policy_is_final(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    client = node.wait_for(job.id)
    node.settling.failed(side(worker).given[0], ERROR, exception=b"boom")
    node.commit()
    assert client.events == ["failed boom"]
    assert node.stored(job.id).error == ERROR
    assert node.queue().live == 0


def test_a_failure_is_tried_again_after_its_backoff_until_the_policy_is_used_up(node: Node) -> None:
    worker = node.stream(places=5)
    job = node.background("1", options=Options(retry=Retry(max_attempts=3, initial=2.0, factor=3.0, jitter=0.0)))
    client = node.wait_for(job.id)
    for pause in (2.0, 6.0):
        node.settling.failed(side(worker).given[-1], ERROR)
        node.commit()
        assert node.state(job.id) is State.SCHEDULED
        assert node.queue().live == 1
        number = len(side(worker).given)
        node.wait(pause - 0.1)
        assert len(side(worker).given) == number
        node.wait(0.2)
        assert len(side(worker).given) == number + 1
    assert client.events == []
    node.settling.failed(side(worker).given[-1], ERROR)
    node.commit()
    assert client.events == ["failed"]
    assert node.stored(job.id).attempt == 3


def test_a_final_failure_is_not_tried_again(node: Node) -> None:
    worker = node.stream(retry=Retry())
    job = node.background("1")
    node.settling.failed(side(worker).given[0], ERROR, final=True)
    node.commit()
    assert node.state(job.id) is State.FAILED


def test_the_policy_of_the_worker_applies_where_the_job_has_none(node: Node) -> None:
    worker = node.stream(retry=Retry(max_attempts=2), places=2)
    job, own = node.background("1"), node.background("2", options=Options(retry=Retry(max_attempts=1)))
    for held in list(side(worker).given):
        node.settling.failed(held, ERROR)
    node.commit()
    assert node.state(job.id) is State.SCHEDULED
    assert node.state(own.id) is State.FAILED


def test_a_released_job_goes_back_and_is_not_counted(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    node.settling.released(side(worker).given[0])
    node.commit()
    assert node.held(job) is not None, "a worker is here: it was claimed at once"
    node.service.workers.ready(worker, 1)
    assert side(worker).given[1].job.attempt == 0


def test_a_snoozed_job_is_due_after_its_delay_and_not_counted(node: Node) -> None:
    worker = node.stream(places=2)
    job = node.background("1")
    node.settling.snoozed(side(worker).given[0], 3.0)
    node.commit()
    assert node.state(job.id) is State.SCHEDULED
    node.wait(3.1)
    assert side(worker).given[1].job.attempt == 0


@pytest.mark.parametrize(("limit", "deliveries"), [(None, 6), (1, 1), (3, 3)])
def test_lost_workers_use_up_the_servers_limit(limit: int | None, deliveries: int) -> None:
    node = Node(lost_limit=limit)
    job = node.background("1")
    for _ in range(deliveries):
        worker = node.worker()
        node.given(worker)
        node.service.workers.gone(worker)
        node.commit()
    assert node.stored(job.id).attempt == deliveries
    assert node.state(job.id) is (State.PENDING if limit is None else State.FAILED)


def test_lost_workers_use_up_the_policys_attempts(node: Node) -> None:
    job = node.background("1")
    for _ in range(2):
        worker = node.worker(retry=Retry(max_attempts=2))
        node.given(worker)
        node.service.workers.gone(worker)
        node.commit()
    assert node.state(job.id) is State.FAILED
    assert json.loads(node.stored(job.id).error)["type"] == "WorkerLost"


def test_a_worker_that_forgets_the_function_uses_up_its_policy_too(node: Node) -> None:
    worker = node.stream(retry=Retry(max_attempts=1))
    job = node.background("1")
    node.service.workers.unregister(worker, b"f")
    node.commit()
    assert node.state(job.id) is State.FAILED


def test_jobs_of_a_lost_worker_go_to_others_in_their_order(node: Node) -> None:
    worker = node.stream(places=3)
    node.submit(*[node.job(str(at)) for at in range(4)])
    node.commit()
    node.service.workers.gone(worker)
    other = node.stream(places=4)
    node.commit()
    assert [held.job.payload for held in side(other).given] == [b"0", b"1", b"2", b"3"]


# ---- cancel asked while it runs ----


@pytest.mark.parametrize("way", ["failed", "released", "snoozed", "cancelled", "lost", "gone", "forgets", "timeout"])
def test_a_job_whose_cancel_was_asked_for_never_runs_again(node: Node, way: str) -> None:
    worker = node.stream(retry=Retry(max_attempts=5), timeout=2.0)
    job = node.background("1")
    client = node.wait_for(job.id)
    answers = node.cancel(job.id)
    node.commit()
    assert answers == ["running"]
    held = side(worker).given[0]
    ways: dict[str, Callable[[], object]] = {
        "failed": lambda: node.settling.failed(held, ERROR),
        "released": lambda: node.settling.released(held),
        "snoozed": lambda: node.settling.snoozed(held, 1.0),
        "cancelled": lambda: node.settling.cancelled(held, "x"),
        "lost": lambda: node.settling.lost(held, "silent"),
        "gone": lambda: node.service.workers.gone(worker),
        "forgets": lambda: node.service.workers.unregister(worker, b"f"),
        "timeout": lambda: node.wait(2.1),
    }
    ways[way]()
    node.commit()
    ends = State.CANCELLED
    if way == "timeout":
        ends = node.state(job.id)
        assert ends in {State.CANCELLED, State.FAILED}
    assert node.state(job.id) is ends
    assert client.events == [ends.name.lower()]
    assert node.stored(job.id).attempt == 1


@pytest.mark.parametrize("way", ["failed", "lost"])
def test_a_foreground_job_whose_cancel_was_asked_for_never_runs_again(node: Node, way: str) -> None:
    worker = node.stream(retry=Retry(max_attempts=5))
    job, client = node.foreground("1")
    node.cancel(job.id)
    held = side(worker).given[0]
    if way == "failed":
        node.settling.failed(held, ERROR)
    else:
        node.settling.lost(held, "its worker said CANT_DO")
    node.wait(60.0)
    assert client.events == ["cancelled"]


@pytest.mark.parametrize("final", [False, True])
def test_what_ended_before_it_could_be_stopped_has_ended_so(node: Node, final: bool) -> None:
    worker = node.stream()
    job = node.background("1")
    node.cancel(job.id)
    held = side(worker).given[0]
    if final:
        node.settling.failed(held, ERROR, final=True)
    else:
        node.settling.succeeded(held, b"done")
    node.commit()
    assert node.state(job.id) is (State.FAILED if final else State.SUCCEEDED)


# ---- a store that fails ----


def test_a_job_whose_settlement_failed_is_not_run_again_meanwhile(node: Node) -> None:
    worker = node.stream(places=2)
    job = node.background("1")
    node.settling.succeeded(side(worker).given[0], b"done")
    node.fail()
    assert node.state(job.id) is State.LEASED
    assert node.queue().live == 1
    node.wait(0.1)
    assert len(side(worker).given) == 1
    node.wait(0.3)
    assert node.state(job.id) is State.SUCCEEDED
    assert node.queue().live == 0


def test_settlements_of_a_fenced_node_are_not_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = node.stream()
    node.background("1")
    answers: list[bool] = []
    monkeypatch.setattr("tests.simulation.store.StoreFullError", StoreFencedError)
    node.settling.succeeded(side(worker).given[0], b"", answers.append)
    node.fail()
    assert answers == [False]
    assert worker.refused
    assert node.service.ends.is_settled()


def test_a_barrier_that_a_repeated_settlement_comes_after_waits_for_it(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    states: list[State] = []
    node.settling.succeeded(side(worker).given[0], b"")
    node.fail()
    node.service.ends.when_settled(lambda: states.append(node.state(job.id)))
    node.life.commits.flush()
    node.service.ends.retry_settlements()
    node.commit()
    assert states == [State.SUCCEEDED]


def test_settlements_of_a_broken_store_are_not_tried_again(node: Node) -> None:
    worker = node.stream()
    node.background("1")
    answers: list[bool] = []
    node.settling.succeeded(side(worker).given[0], b"done", answers.append)
    ((_, _, failed, _),) = node.life.commits._waiting  # noqa: SLF001 - the store answers as the test says
    failed(StoreBrokenError("the disk"))
    assert not node.service.ends.waits
    assert answers == []
    assert worker.refused


def test_a_stale_settlement_is_called_so_and_changes_nothing(node: Node) -> None:
    worker = node.stream()
    job = node.background("1")
    client = node.wait_for(job.id)
    answers: list[bool] = []
    node.settling.succeeded(side(worker).given[0], b"done", answers.append)
    ((_, done, _, _),) = node.life.commits._waiting  # noqa: SLF001 - the store answers as the test says
    done({job.id})
    assert answers == [False]
    assert client.events == []
    assert node.queue().live == 0, "no other node has it: a slice has deleted it"


# ---- foreground jobs ----


def test_a_foreground_job_ends_without_the_store(node: Node) -> None:
    worker = node.stream()
    _, client = node.foreground("1")
    answers: list[bool] = []
    groups = node.life.commits.groups
    node.settling.succeeded(side(worker).given[0], b"done", answers.append)
    assert (client.events, answers) == (["succeeded done"], [True])
    assert node.life.commits.groups == groups
    assert node.table.held == {}
    assert (node.queue().foreground, node.table.foreground_bytes) == (0, 0)


def test_a_foreground_job_is_retried_in_memory(node: Node) -> None:
    worker = node.stream(places=3, retry=Retry(max_attempts=2, initial=2.0, jitter=0.0))
    _, client = node.foreground("1")
    node.settling.failed(side(worker).given[0], ERROR)
    assert client.events == []
    node.wait(1.9)
    assert len(side(worker).given) == 1
    node.wait(0.2)
    node.settling.failed(side(worker).given[1], ERROR)
    assert client.events == ["failed"]


def test_a_foreground_job_of_a_lost_worker_goes_to_another_before_the_rest(node: Node) -> None:
    worker, other = node.stream(places=2), node.stream(places=0)
    for payload in "123":
        node.foreground(payload)
    node.service.workers.gone(worker)
    assert node.queue().size == 3
    node.service.workers.ready(other, 3)
    assert [held.job.payload for held in side(other).given] == [b"1", b"2", b"3"]
    assert [held.job.suspects for held in side(other).given] == [WORKER_LOST, WORKER_LOST, 0]
    assert side(other).given[0].numerator == b"0"


@pytest.mark.parametrize("kind", ["stream", "asked", "asleep"])
def test_a_lost_worker_is_not_given_back_what_it_leaves_behind(node: Node, kind: str) -> None:
    worker = node.stream(places=2) if kind == "stream" else node.worker()
    job, client = node.foreground("1")
    node.given(worker)
    if kind == "asked":
        node.background("g", "g")
        node.service.workers.register(worker, b"g", Ability())
        node.grab(worker)
    elif kind == "asleep":
        node.assigner.sleep(worker)
    node.service.workers.gone(worker)
    held = node.held(job)
    assert held is not None
    assert held.worker is None
    assert held.queued
    other = node.stream()
    node.settling.succeeded(side(other).given[-1], b"done")
    node.commit()
    assert client.events == ["succeeded done"]


def test_a_foreground_job_whose_client_left_while_it_ran_is_not_run_again(node: Node) -> None:
    worker = node.stream()
    job, client = node.foreground("1")
    node.service.waits.gone(client)
    assert node.held(job) is not None, "what runs is left alone"
    node.service.workers.gone(worker)
    assert node.held(job) is None
    assert node.queue().size == 0


def test_a_foreground_job_whose_client_left_during_its_backoff_is_dropped(node: Node) -> None:
    worker = node.stream(places=3, retry=Retry(initial=2.0))
    job, client = node.foreground("1")
    node.settling.failed(side(worker).given[0], ERROR)
    node.service.waits.gone(client)
    assert node.held(job) is None
    node.wait(5.0)
    assert len(side(worker).given) == 1


# ---- watchers ----


def test_watchers_see_every_change_after_it_is_on_disk(node: Node) -> None:
    seen: list[tuple[bytes, str]] = []
    node.service.hub.subscribe(lambda job: seen.append((job.payload, State(job.state).name)))
    worker = node.stream()
    job = node.background("1")
    node.settling.succeeded(side(worker).given[0], b"done")
    assert seen == [(b"1", "LEASED"), (b"1", "RUNNING")]
    node.commit()
    assert seen[-1] == (b"1", "SUCCEEDED")
    assert node.state(job.id) is State.SUCCEEDED


# ---- those who watch attempts ----


class Watch:
    """Notes how attempts ended."""

    def __init__(self) -> None:
        self.groups: list[list[Settlement]] = []

    def __call__(self, settlements: Sequence[Settlement]) -> None:
        self.groups.append(list(settlements))

    def pop(self) -> list[tuple[str, str, int, float]]:
        """Payload, outcome, number and seconds of what ended since this was last asked for."""
        ended = [settlement for group in self.groups for settlement in group]
        self.groups.clear()
        return [(end.job.payload.decode(), end.outcome or "none", end.counted, end.ran_us / 1_000_000) for end in ended]


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def watched(watch: Watch) -> Node:
    return Node(attempts_ended=(watch,))


def test_those_who_watch_attempts_are_called_once_for_each_group_after_its_commit(watched: Node, watch: Watch) -> None:
    worker = watched.stream(places=3)
    watched.submit(*[watched.job(str(at)) for at in range(3)])
    watched.commit()
    watched.wait(0.5)
    for held in list(side(worker).given):
        watched.settling.succeeded(held, b"")
    assert watch.groups == []
    watched.commit()
    assert len(watch.groups) == 1
    assert watch.pop() == [(str(at), "succeeded", 1, 0.5) for at in range(3)]


def test_successes_in_memory_are_reported_in_one_call(watched: Node, watch: Watch) -> None:
    worker = watched.stream(places=100)

    def succeed(payload: str = "1") -> None:
        watched.foreground(payload)
        watched.settling.succeeded(side(worker).given[-1], b"")

    succeed()
    succeed()
    assert watch.groups == []
    watched.service.tick()
    assert [len(group) for group in watch.groups] == [2]
    succeed("x" * MAX_GATHERED_BYTES)
    succeed("x" * (MAX_GATHERED_BYTES + 1))
    assert [len(group) for group in watch.groups] == [2, 2], "large ones are not kept"
    succeed()
    watched.foreground("1")
    watched.settling.failed(side(worker).given[-1], ERROR)
    assert [len(group) for group in watch.groups] == [2, 2, 2], "a failure is logged at once"
    for _ in range(MAX_GATHERED):
        succeed()
    assert [len(group) for group in watch.groups] == [2, 2, 2, MAX_GATHERED]


ENDS: dict[str, tuple[Callable[[Node, Held], None], str, int, str]] = {
    "reported": (lambda node, held: node.settling.failed(held, ERROR, reported=True), "failed", 1, "retry"),
    "final": (lambda node, held: node.settling.failed(held, ERROR, final=True), "failed", 1, "fail"),
    "lost": (lambda node, held: node.settling.lost(held, "it is gone"), "lost", 1, "lose"),
    "released": (lambda node, held: node.settling.released(held), "released", 0, "release"),
    "snoozed": (lambda node, held: node.settling.snoozed(held, 1.0), "snoozed", 0, "snooze"),
    "cancelled": (lambda node, held: node.settling.cancelled(held, "asked"), "cancelled", 1, "cancel"),
}


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("way", ENDS)
def test_each_way_in_which_an_attempt_ends_has_its_outcome(watched: Node, watch: Watch, way: str, stored: bool) -> None:
    end, outcome, counted, event = ENDS[way]
    options = Options(retry=Retry(max_attempts=2, initial=2.0, jitter=0.0))
    if stored:
        watched.background("1", options=options)
    else:
        watched.foreground("1", options=options)
    watched.wait(0.5)
    worker = watched.stream()
    watched.wait(0.25)
    end(watched, side(worker).given[0])
    watched.commit()
    (settlement,) = watch.groups[0]
    assert watch.pop() == [("1", outcome, counted, 0.25)]
    assert (settlement.event, settlement.reported) == (event, way == "reported")
    assert settlement.waited_us == 500_000, "before its first attempt"
    assert settlement.why == ("it is gone" if way == "lost" else "")


@pytest.mark.parametrize("plain", [True, False])
def test_an_attempt_whose_time_is_over_has_timed_out_whatever_becomes_of_the_job(
    watched: Node, watch: Watch, plain: bool
) -> None:
    worker = watched.worker(timeout=2.0) if plain else watched.stream(timeout=2.0)
    watched.background("1")
    watched.given(worker)
    watched.wait(2.1)
    ((payload, outcome, counted, seconds),) = watch.pop()
    assert (payload, outcome, counted) == ("1", "timed_out", 1)
    assert seconds == pytest.approx(2.0, abs=0.01)


def test_what_no_worker_had_was_no_attempt(watched: Node, watch: Watch) -> None:
    held = watched.held(watched.background("1"))
    assert held is None  # nobody here runs it
    worker = watched.worker()
    watched.wait(1)
    (held,) = watched.table.held.values()
    watched.settling.released(held)
    watched.commit()
    assert watch.pop() == [("1", "none", 0, 0.0)]
    watched.service.workers.gone(worker)


def test_a_stale_settlement_is_no_end_of_an_attempt(
    watched: Node, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(History, "note", lambda *_: None)  # it takes for granted that there is no other node
    worker = watched.stream()
    job = watched.background("1")
    held = side(worker).given[0]
    held.job.term = 99  # as if another node had the job
    watched.settling.succeeded(held, b"")
    watched.commit()
    assert watched.state(job.id) is State.LEASED
    assert watch.pop() == []


def test_a_claimed_job_that_cannot_be_read_waits_and_the_others_run() -> None:
    earlier = Node()
    before, unread, after = (earlier.background(payload) for payload in ("1", "2", "3"))
    assert isinstance(earlier.engine, MemoryEngine)
    earlier.engine.tables.jobs[unread.id].options = UNREADABLE_OPTIONS
    set_aside = SetAside(earlier.clock)
    node = earlier.restart(set_aside=set_aside)
    worker = node.worker()
    for job in (before, after):
        held = node.given(worker)
        assert held.job.id == job.id
        node.settling.succeeded(held, b"")
    node.commit()
    assert [node.state(job.id) for job in (before, unread, after)] == [
        State.SUCCEEDED,
        State.SCHEDULED,
        State.SUCCEEDED,
    ]
    (entry,) = set_aside.entries()
    assert (entry.kind, entry.name) == ("job", node.service.handles.of(unread.id).decode())
    earlier.engine.tables.jobs[unread.id].options = None
    node.wait(RETRY_DELAY + 1)
    held = node.given(worker)
    assert (held.job.id, held.job.attempt) == (unread.id, 0)
