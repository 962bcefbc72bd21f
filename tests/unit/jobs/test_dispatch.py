"""Matching, without a store: in which order jobs are handed out, and who is woken."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from mainspring.jobs.dispatch import MAX_DROPPED, Dispatch
from mainspring.jobs.held import Ability, Held, Worker
from mainspring.jobs.model import Job, Priority

from .a_node import Side, side

_ids = itertools.count(1)


def push(dispatch: Dispatch, payload: str, function: str = "f", priority: int = Priority.NORMAL, **how: Any) -> Held:
    job = Job(next(_ids), function.encode(), payload.encode(), priority=priority)
    held = Held(job, b"H:n:%d" % job.id, dispatch.queue(job.function), stored=True)
    dispatch.push(held, **how)
    return held


def worker(dispatch: Dispatch, *functions: str, asleep: bool = False, credit: int = 0) -> Worker:
    created = Worker(Side("w"))
    created.credit = credit
    created.streams = credit > 0
    for function in functions or ("f",):
        dispatch.register(created, function.encode(), Ability())
    if asleep:
        assert not dispatch.sleep(created)
    return created


def match(dispatch: Dispatch, function: str = "f") -> list[tuple[Worker, str]]:
    effects = dispatch.match(dispatch.queue(function.encode()))
    return [(who, held.job.payload.decode() if held is not None else "wake") for who, held in effects]


def grabbed(dispatch: Dispatch, who: Worker, number: int) -> list[str]:
    jobs = [dispatch.grab(who) for _ in range(number)]
    return [held.job.payload.decode() if held is not None else "none" for held in jobs]


# ---- the order of jobs ----


def test_higher_priorities_first_and_older_jobs_first_within_one() -> None:
    dispatch = Dispatch()
    for payload, priority in (("l", 2), ("n1", 1), ("h1", 0), ("n2", 1), ("h2", 0)):
        push(dispatch, payload, priority=priority)
    assert grabbed(dispatch, worker(dispatch), 6) == ["h1", "h2", "n1", "n2", "l", "none"]


def test_a_job_that_is_queued_again_is_handed_out_once() -> None:
    dispatch = Dispatch()
    held = push(dispatch, "a")
    dispatch.drop(held)
    dispatch.restore(held)
    push(dispatch, "b")
    who = worker(dispatch)
    assert grabbed(dispatch, who, 1) == ["a"]
    dispatch.push(held)
    assert grabbed(dispatch, who, 3) == ["b", "a", "none"]


def test_a_job_that_had_its_turn_comes_before_the_others() -> None:
    dispatch = Dispatch()
    push(dispatch, "second")
    push(dispatch, "first", first=True)
    assert grabbed(dispatch, worker(dispatch), 2) == ["first", "second"]


def test_functions_are_drained_in_reverse_order_of_registration() -> None:
    dispatch = Dispatch()
    for function, number in itertools.product("fgh", "12"):
        push(dispatch, function + number, function)
    assert grabbed(dispatch, worker(dispatch, "f", "g", "h"), 7) == ["h1", "h2", "g1", "g2", "f1", "f2", "none"]


def test_functions_take_turns_in_round_robin() -> None:
    dispatch = Dispatch(round_robin=True)
    for payload in ("f1", "f2", "f3", "g1", "h1", "h2"):
        push(dispatch, payload, payload[0])
    who = worker(dispatch, "f", "g", "h")
    assert grabbed(dispatch, who, 7) == ["f1", "g1", "h1", "f2", "h2", "f3", "none"]
    dispatch.unregister(who, dispatch.queue(b"h"))
    push(dispatch, "g2", "g")
    assert grabbed(dispatch, who, 2) == ["g2", "none"], "its turn is still one of its functions"


def test_no_worker_gets_a_job_of_another_function() -> None:
    dispatch = Dispatch()
    push(dispatch, "g1", "g")
    assert grabbed(dispatch, worker(dispatch, "f"), 1) == ["none"]
    assert grabbed(dispatch, Worker(Side("nothing")), 1) == ["none"]


def test_a_job_that_was_taken_out_is_passed_over() -> None:
    dispatch = Dispatch()
    first, _, third = (push(dispatch, payload) for payload in "123")
    for _ in range(2):
        dispatch.drop(first)
        dispatch.drop(third)
    assert dispatch.queue(b"f").size == 1
    assert grabbed(dispatch, worker(dispatch), 2) == ["2", "none"]
    dispatch.drop(first)
    assert dispatch.queue(b"f").size == 0


def test_jobs_that_were_taken_out_do_not_fill_the_memory() -> None:
    dispatch = Dispatch()
    kept = [push(dispatch, f"kept {number}") for number in range(10)]
    for _ in range(5 * MAX_DROPPED):
        dispatch.drop(push(dispatch, "dropped"))
    queue = dispatch.queue(b"f")
    assert queue.size == len(kept)
    assert sum(len(ready) for ready in queue.ready) <= MAX_DROPPED + len(kept) + 1
    assert queue.waiting_by_priority() == (0, len(kept), 0)
    assert grabbed(dispatch, worker(dispatch), 10) == [f"kept {number}" for number in range(10)]


# ---- who is woken ----


def test_one_sleeper_is_woken_for_each_job() -> None:
    dispatch = Dispatch()
    sleepers = [worker(dispatch, asleep=True) for _ in range(3)]
    push(dispatch, "1")
    assert match(dispatch) == [(sleepers[0], "wake")]
    assert match(dispatch) == [], "it was woken for that job"
    push(dispatch, "2")
    assert match(dispatch) == [(sleepers[1], "wake")]
    assert dispatch.queue(b"f").woken == 2


@pytest.mark.parametrize(("wakeup", "woken"), [(1, 1), (2, 2), (0, 3)])
def test_more_are_woken_where_that_is_wanted(wakeup: int, woken: int) -> None:
    dispatch = Dispatch(wakeup=wakeup)
    for _ in range(3):
        worker(dispatch, asleep=True)
    push(dispatch, "1")
    assert len(match(dispatch)) == woken


def test_a_woken_worker_sleeps_for_none_of_its_functions() -> None:
    dispatch = Dispatch()
    who = worker(dispatch, "f", "g", asleep=True)
    push(dispatch, "1")
    assert match(dispatch) == [(who, "wake")]
    push(dispatch, "2", "g")
    assert match(dispatch, "g") == []
    assert dispatch.answered(who) is dispatch.queue(b"f")
    assert dispatch.answered(who) is None
    assert dispatch.queue(b"f").woken == 0


def test_another_one_is_woken_once_a_woken_one_has_answered_without_taking_the_job() -> None:
    dispatch = Dispatch()
    first, second = (worker(dispatch, asleep=True) for _ in range(2))
    push(dispatch, "1")
    match(dispatch)
    dispatch.answered(first)
    assert match(dispatch) == [(second, "wake")]


def test_a_worker_that_goes_to_sleep_beside_a_waiting_job_is_woken_at_once() -> None:
    dispatch = Dispatch()
    push(dispatch, "1", "g")
    who, other = worker(dispatch, "f", "g"), worker(dispatch, "g")
    assert dispatch.sleep(who)
    assert not who.asleep
    assert who.woken_for is dispatch.queue(b"g")
    assert not dispatch.sleep(other), "somebody was woken for that job"
    assert dispatch.sleep(who), "and sleeps again without having taken it"
    assert dispatch.queue(b"g").woken == 1


def test_a_sleeper_is_woken_for_a_function_that_it_registers_in_its_sleep() -> None:
    dispatch = Dispatch()
    push(dispatch, "1", "g")
    who = worker(dispatch, "f", asleep=True)
    dispatch.register(who, b"g")
    assert match(dispatch, "g") == [(who, "wake")]


def test_a_departed_worker_is_not_woken() -> None:
    dispatch = Dispatch()
    first, second, third = (worker(dispatch, asleep=True) for _ in range(3))
    dispatch.leave(first)
    push(dispatch, "1")
    assert match(dispatch) == [(second, "wake")]
    dispatch.leave(second)
    assert match(dispatch) == [(third, "wake")]
    assert list(dispatch.workers) == [third]


def test_a_departed_worker_gets_no_job() -> None:
    dispatch = Dispatch()
    first, second = worker(dispatch, credit=2), worker(dispatch, credit=1)
    for who in (first, second):
        dispatch.offer(who)
    dispatch.leave(first)
    push(dispatch, "1")
    assert match(dispatch) == [(second, "1")]
    dispatch.unregister(first, dispatch.queue(b"f"))
    assert list(dispatch.queue(b"f").workers) == [second]


def test_a_worker_that_forgets_the_function_it_was_woken_for() -> None:
    dispatch = Dispatch()
    who, other = worker(dispatch, "f", "g", asleep=True), worker(dispatch, "f", asleep=True)
    push(dispatch, "1")
    match(dispatch)
    dispatch.unregister(who, dispatch.queue(b"f"))
    assert match(dispatch) == [(other, "wake")]
    assert list(who.abilities) == [dispatch.queue(b"g")]


# ---- workers that take jobs as they come ----


def test_takers_get_as_many_jobs_as_they_have_credit_for_in_turns() -> None:
    dispatch = Dispatch()
    one, two = worker(dispatch, credit=3), worker(dispatch, credit=2)
    for number in range(7):
        push(dispatch, str(number))
    assert match(dispatch) == [(one, "0"), (two, "1"), (one, "2"), (two, "3"), (one, "4")]
    assert one.credit == two.credit == 0
    assert dispatch.queue(b"f").takers == {}
    assert dispatch.queue(b"f").size == 2


def test_takers_come_before_sleepers() -> None:
    dispatch = Dispatch()
    sleeper, taker = worker(dispatch, asleep=True), worker(dispatch, "f", "g", credit=1)
    push(dispatch, "1")
    push(dispatch, "2")
    assert match(dispatch) == [(taker, "1"), (sleeper, "wake")]
    push(dispatch, "3", "g")
    assert match(dispatch, "g") == [], "its credit is used up for all functions"


def test_a_withdrawn_worker_gets_no_job() -> None:
    dispatch = Dispatch()
    who = worker(dispatch, "f", "g", credit=2)
    dispatch.withdraw(who)
    push(dispatch, "1")
    assert match(dispatch) == []
    who.credit = 1
    dispatch.offer(who)
    assert match(dispatch) == [(who, "1")]


def test_nothing_is_handed_out_by_a_node_that_ends() -> None:
    dispatch = Dispatch()
    sleeper, taker, other = worker(dispatch, asleep=True), worker(dispatch, credit=1), worker(dispatch)
    dispatch.pause()
    push(dispatch, "1")
    assert match(dispatch) == []
    assert grabbed(dispatch, other, 1) == ["none"]
    assert not dispatch.sleep(other)
    assert sleeper.asleep
    assert taker.credit == 1
    assert side(sleeper).events == []
