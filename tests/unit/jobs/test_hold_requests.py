"""Jobs of functions that use resources wait for their slots, without a worker, and give them back with each end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.memory.holds import MemoryHolds
from mainspring.jobs.held import Ability
from mainspring.jobs.hold_requests import MIN_AWAITING, REPEAT_INTERVAL
from mainspring.jobs.model import Options, Priority, Retry, State, decode_failure
from mainspring.jobs.store import Submit, Withdrawn
from mainspring.resources.hold_store import AskHolds, FindHolds, find
from mainspring.resources.holds import Line, counted, named
from mainspring.resources.rules import Limits
from mainspring.storage.engine import run_synchronously

if TYPE_CHECKING:
    from mainspring.jobs.admission import AdmissionQueue
    from mainspring.jobs.held import Held, Worker
    from mainspring.resources.hold_store import Holding

    from .a_node import Node

ONE = Limits(uses=(Line("l"),))
TWO = Limits(uses=(Line("l", 2),))


def worker(node: Node, *functions: str, total: int = 1, limits: Limits = ONE, places: int = 4) -> Worker:
    """Return a worker for functions that use a resource, which it declares."""
    found = node.stream(*functions, places=places, limits=limits, resources=(("l", counted(total)),))
    node.commit()
    return found


def shown(node: Node, name: str = "l") -> Holding:
    """Return the holds of a resource, and the requests for it."""
    assert isinstance(node.engine, MemoryEngine)
    (found,) = run_synchronously(find(MemoryHolds(node.engine.tables), FindHolds((name,), 0)))
    return found


def numbers(node: Node) -> list[int]:
    """Return the numbers of the holds of the resource."""
    return [hold.number for hold in shown(node).holds]


def running(*workers: Worker) -> list[str]:
    """Return the payloads of the jobs that workers have."""
    return [held.job.payload.decode() for one in workers for held in one.running.values()]


def held_by(one: Worker, payload: str) -> Held:
    """Return a job of a worker."""
    return next(held for held in one.running.values() if held.job.payload.decode() == payload)


def end(node: Node, one: Worker, payload: str) -> None:
    """Let a job succeed; its worker has a place again."""
    node.settling.succeeded(held_by(one, payload), b"r")
    node.service.workers.ready(one, 1)
    node.commit()


def admission(node: Node) -> AdmissionQueue[Held]:
    """Return the admission queue of the function."""
    found = node.queue().admission
    assert found is not None
    return found


def test_jobs_wait_without_a_worker_until_they_have_their_slots(node: Node) -> None:
    one = worker(node, total=2)
    for number in range(4):
        node.background(str(number))
    assert running(one) == ["0", "1"]
    assert one.credit == 2
    assert (numbers(node), len(shown(node).requests)) == ([1, 2], 2)
    end(node, one, "1")
    assert running(one) == ["0", "2"]
    assert numbers(node) == [1, 3]


def test_a_node_asks_for_few_jobs_while_slots_are_short(node: Node) -> None:
    one = worker(node, total=2, places=100)
    for number in range(50):
        node.background(str(number))
    assert (len(running(one)), len(shown(node).requests)) == (2, MIN_AWAITING)
    end(node, one, "0")
    assert (running(one), len(shown(node).requests)) == (["1", "2"], MIN_AWAITING)
    node.background("high", priority=Priority.HIGH)
    node.background("low", priority=Priority.LOW)
    assert len(shown(node).requests) == MIN_AWAITING + 1, "a higher priority does not wait for a place among them"
    other = worker(node, total=100, places=100)
    assert len(running(one, other)) == 51, "all of them, now that slots are free"


def test_questions_are_repeated_once_in_a_group(node: Node) -> None:
    one = worker(node, total=4, places=100)
    for number in range(12):
        node.background(str(number))
    groups = node.service.commits.groups
    for number in range(4):
        node.settling.succeeded(held_by(one, str(number)), b"r")
    (asked,) = [operation for operation in node.service.commits.waiting if isinstance(operation, AskHolds)]
    assert len({request.holder for request in asked.requests}) == len(asked.requests) == MIN_AWAITING
    assert len(asked.given_back) == 4
    node.commit()
    assert running(one) == ["4", "5", "6", "7"]
    assert node.service.commits.groups == groups + 1, "ends and starts are one group"


def test_an_end_repeats_the_question_that_the_store_is_answering(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    one = worker(node)
    node.background("1")
    node.submit(node.job("2"))
    finish = node.life.store.finish

    def end_before_the_answer() -> None:
        if admission(node).awaiting and running(one) == ["1"]:
            node.settling.succeeded(held_by(one, "1"), b"r")
            node.service.workers.ready(one, 1)
            (asked,) = [operation for operation in node.service.commits.waiting if isinstance(operation, AskHolds)]
            assert not asked.requests, "the same question is not asked twice at the same time"
        finish()

    monkeypatch.setattr(node.life.store, "finish", end_before_the_answer)
    node.commit()
    assert running(one) == ["2"]


def test_other_functions_use_the_places_of_workers_meanwhile(node: Node) -> None:
    one = worker(node, places=1)
    node.service.workers.register(one, b"g", Ability(requeue=False))
    node.background("1")
    node.service.workers.ready(one, 1)
    node.background("2")
    node.background("3", "g")
    assert running(one) == ["1", "3"]


def test_a_large_request_is_not_starved(node: Node) -> None:
    small = worker(node, "small", total=2)
    large = worker(node, "large", total=2, limits=TWO)
    for number in range(3):
        node.background(f"s{number}", "small")
    node.background("l", "large")
    for number in range(3, 9):
        node.background(f"s{number}", "small")
    order: list[str] = []
    while running(small, large):
        one = small if small.running else large
        order.append(running(one)[0])
        end(node, one, order[-1])
    assert order.index("l") == 3
    assert len(order) == 10


@pytest.mark.parametrize(
    "how",
    ["succeeded", "failed", "retried", "released", "snoozed", "cancelled", "lost", "timeout", "withdrawn", "gone"],
)
def test_each_end_gives_the_slots_back(node: Node, how: str) -> None:
    one = worker(node, places=1)
    options = Options(retry=Retry(3, 500.0), timeout=2.0)
    first, second = node.background("1", options=options), node.background("2")
    held, (before,) = held_by(one, "1"), numbers(node)
    match how:
        case "succeeded":
            node.settling.succeeded(held, b"")
        case "failed":
            node.settling.failed(held, b"{}", final=True)
        case "retried":
            node.settling.failed(held, b"{}")
        case "released":
            node.settling.released(held)
        case "snoozed":
            node.settling.snoozed(held, 500.0)
        case "cancelled":
            node.settling.cancelled(held, "asked")
        case "lost":
            node.settling.lost(held, "crash")
        case "timeout":
            node.wait(2.1)
        case "withdrawn":
            assert isinstance(node.engine, MemoryEngine)
            node.engine.tables.jobs.pop(first.id)
            job = held.job
            node.service.lifecycle.withdrawn([Withdrawn(job.id, job.term, job.state, job.function, job.priority)])
        case "gone":
            node.service.workers.gone(one)
    node.commit()
    assert first.payload.decode() not in running(one)
    assert (shown(node).holds, shown(node).requests) == ((), ()), "nobody has a place"
    another = worker(node, "f")
    node.commit()
    assert running(another)
    assert numbers(node) == [before + 1]
    assert node.state(second.id) is not State.SUCCEEDED


def test_a_retry_has_a_hold_of_its_own(node: Node) -> None:
    one = worker(node, places=1)
    node.background("1", options=Options(retry=Retry(3, 1.0, jitter=0.0)))
    assert numbers(node) == [1]
    node.settling.failed(held_by(one, "1"), b"{}")
    node.commit()
    assert numbers(node) == []
    node.service.workers.ready(one, 1)
    node.wait(1.5)
    assert (running(one), numbers(node)) == (["1"], [2])


def test_a_waiting_job_can_be_cancelled(node: Node) -> None:
    one = worker(node)
    node.background("1")
    second, _ = node.background("2"), node.background("3")
    node.cancel(second.id)
    node.commit()
    assert node.state(second.id) is State.CANCELLED
    assert [one.holder.id for one in shown(node).requests] != [second.id]
    end(node, one, "1")
    assert running(one) == ["3"]


def test_tokens_of_limits_are_given_back_with_a_waiting_job(node: Node) -> None:
    one = worker(node, limits=Limits(concurrency=2, uses=(Line("l"),)))
    node.background("1")
    second, _ = node.background("2"), node.background("3")
    queue = admission(node)
    assert (queue.running, len(queue.awaiting)) == (2, 1)
    node.cancel(second.id)
    node.commit()
    assert (queue.running, len(queue.awaiting)) == (2, 1), "the third job has the token of the second one"
    end(node, one, "1")
    end(node, one, "3")
    assert (queue.running, len(queue.awaiting), len(queue.equipped)) == (0, 0, 0)


def test_a_paused_function_waits_for_nothing(node: Node) -> None:
    one = worker(node)
    node.background("1")
    node.background("2")
    queue = admission(node)
    assert len(shown(node).requests) == 1
    queue.change(queue.limits, paused=True)
    node.assigner.serve(node.queue())
    node.commit()
    assert (len(queue.awaiting), shown(node).requests) == (0, ())
    queue.change(queue.limits, paused=False)
    end(node, one, "1")
    assert running(one) == ["2"]


def test_jobs_begin_once_their_function_uses_nothing_more(node: Node) -> None:
    one = worker(node)
    for number in range(3):
        node.background(str(number))
    queue = admission(node)
    queue.change(Limits(concurrency=9), paused=False)
    node.assigner.serve(node.queue())
    node.commit()
    assert running(one) == ["0", "1", "2"]
    assert shown(node).requests == ()
    assert queue.running == 3


def test_jobs_with_slots_go_back_if_their_worker_has_found_other_work(node: Node) -> None:
    one, other = worker(node, places=1), worker(node, "f", places=1)
    node.service.workers.register(other, b"g", Ability(requeue=False))
    node.background("1")
    busy, free = (one, other) if one.running else (other, one)
    node.service.workers.register(free, b"g", Ability(requeue=False))
    waiting = node.background("2")
    node.background("3", "g")
    assert (running(busy), running(free)) == (["1"], ["3"])
    node.settling.succeeded(held_by(busy, "1"), b"")
    node.commit()
    assert [hold.holder.id for hold in shown(node).holds] == [waiting.id]
    node.wait(3.0)
    assert (shown(node).holds, shown(node).requests) == ((), ())
    node.service.workers.ready(busy, 1)
    node.commit()
    assert running(busy) == ["2"]


def test_a_foreground_job_is_stored_to_hold_something(node: Node) -> None:
    one = worker(node)
    job, client = node.foreground("1")
    node.commit()
    assert running(one) == ["1"]
    assert [hold.holder.id for hold in shown(node).holds] == [job.id]
    end(node, one, "1")
    assert client.events == ["succeeded r"]
    assert shown(node).holds == ()


def count_submits(node: Node) -> list[int]:
    """Return a list that gets the id of each job that is given to the store to be stored."""
    submits: list[int] = []
    run = node.engine.commit

    def commit(group: Any, committed: Any, answer: Any) -> None:
        submits.extend(one.id for operation in group if isinstance(operation, Submit) for one in operation.jobs)
        run(group, committed, answer)

    node.engine.commit = commit  # type: ignore[method-assign] # counts
    return submits


def test_a_foreground_job_is_stored_once_by_a_slow_store(node: Node) -> None:
    one = worker(node, places=1)
    job, client = node.foreground("1")
    submits = count_submits(node)
    for _ in range(3):  # the store is busy, and the node asks each second
        node.clock.advance(1.5)
        node.service.assigner.hold_requests.tick(node.clock.monotonic())
    node.commit()
    assert running(one) == ["1"]
    assert submits == [job.id]
    end(node, one, "1")
    assert client.events == ["succeeded r"]


def test_a_foreground_job_that_is_just_being_stored_for_another_submit_is_stored_once(node: Node) -> None:
    job, client = node.foreground("1", unique=b"u")
    submits = count_submits(node)
    node.submit(node.job("1", unique=b"u"))
    (held,) = node.table.held.values()
    assert held.adopting
    kept: list[int] = []
    node.service.keep(held, lambda: kept.append(job.id))
    assert kept == []
    node.commit()
    node.service.keep(held, lambda: kept.append(job.id))
    assert kept == [job.id, job.id]
    assert submits == [job.id]
    one = worker(node)
    end(node, one, "1")
    assert client.events == ["succeeded r"]


def test_a_job_begins_once_its_resource_is_large_enough(node: Node) -> None:
    one = worker(node, limits=TWO)
    node.background("1")
    node.wait(2.0)
    assert running(one) == []
    node.service.resources.declare("l", counted(2))
    node.commit()
    assert running(one) == ["1"]


def test_waiting_jobs_survive_errors_of_the_store(node: Node) -> None:
    one = worker(node)
    node.background("1")
    node.background("2")
    node.settling.succeeded(held_by(one, "1"), b"")
    node.fail()
    node.wait(5.0)
    assert running(one) == ["2"]
    assert numbers(node) == [2]


def test_slots_that_could_not_be_given_back_are_beside_those_of_other_ends(node: Node) -> None:
    one = worker(node)
    other = node.stream("g", places=1, limits=Limits(uses=(Line("m"),)), resources=(("m", counted(1)),))
    node.commit()
    node.background("1")
    node.background("2", "g")
    node.settling.succeeded(held_by(one, "1"), b"")
    node.fail()
    assert shown(node).holds
    node.settling.succeeded(held_by(other, "2"), b"")
    node.assigner.hold_requests.tick(node.clock.monotonic() + REPEAT_INTERVAL)
    node.commit()
    assert (shown(node).holds, shown(node, "m").holds) == ((), ())


def test_the_next_life_of_a_node_holds_nothing(node: Node) -> None:
    worker(node)
    node.background("1")
    later = node.restart()
    later.commit()
    one = worker(later)
    later.wait(2.0)
    assert running(one) == ["1"]
    assert numbers(later) == [2]


def test_a_job_knows_which_items_it_has(node: Node) -> None:
    limits = Limits(uses=(Line("p", 1, ("colour",)),))
    printers = named({"p1": {"colour"}, "p2": ()})
    one = node.stream(limits=limits, resources=(("p", printers),))
    node.background("1")
    slots = held_by(one, "1").slots
    assert slots is not None
    assert slots.holds is not None
    assert [(hold.item, hold.units) for hold in slots.holds] == [("p1", 1)]


# ---- the limit of a wait ----

BRIEF = Limits(uses=(Line("l"),), uses_timeout_us=10_000_000)


def test_a_job_that_waits_too_long_fails_and_names_what_it_lacked(node: Node) -> None:
    one = worker(node, limits=BRIEF)
    node.background("1")
    first, second = node.background("2", options=Options(retry=Retry(3, 1.0))), node.background("3")
    node.wait(9.5)
    assert node.state(first.id) is not State.FAILED
    node.wait(2.0)
    stored = node.stored(first.id)
    assert (State(stored.state), stored.attempt) == (State.FAILED, 0)
    found = decode_failure(stored.error)
    assert (found.type, found.message) == ("ResourceTimeout", "the job has waited too long for slots of l")
    behind = decode_failure(node.stored(second.id).error).message
    assert behind in {found.message, f"{found.message}; before it were {node.service.handles.of(first.id).decode()}"}
    assert (running(one), shown(node).requests) == (["1"], ())


def test_a_job_that_is_late_gets_slots_that_are_free(node: Node) -> None:
    job = node.background("1")
    node.wait(20.0)
    one = worker(node, limits=BRIEF)
    assert running(one) == ["1"]
    end(node, one, "1")
    assert node.state(job.id) is State.SUCCEEDED


def test_the_limit_of_a_wait_survives_a_restart(node: Node) -> None:
    worker(node, limits=BRIEF, places=1)
    node.background("1")
    worker(node, limits=BRIEF)
    second = node.background("2")
    node.wait(6.0)
    later = node.restart()
    later.commit()
    worker(later, limits=BRIEF, places=1)
    later.commit()
    assert [hold.number for hold in shown(later).holds] == [2]
    worker(later, limits=BRIEF)
    later.wait(6.0)
    assert sorted(later.state(job) for job in (second.id,)) == [State.FAILED]


@pytest.mark.parametrize("how", ["released", "lost", "taken", "retried"])
def test_a_job_waits_anew_after_an_attempt(node: Node, how: str) -> None:
    one, other = worker(node, limits=BRIEF), worker(node, "g")
    job = node.background("1", options=Options(retry=Retry(3, 1.0, jitter=0.0)))
    node.background("2", "g")
    node.wait(30.0)
    held = held_by(one, "1")
    match how:
        case "released":
            node.settling.released(held)
        case "lost":
            node.settling.lost(held, "crash")
        case "taken":
            node.settling.without_slots(held, "needed elsewhere")
        case "retried":
            node.settling.failed(held, b"{}")
    node.background("3", "g")
    assert running(other) == ["2"]
    node.wait(9.0)
    assert node.state(job.id) is not State.FAILED
    node.wait(5.0)
    assert node.state(job.id) is State.FAILED
