"""Functions are forgotten where there are very many that nobody has to do with."""

from __future__ import annotations

import gc
import tracemalloc

from mainspring.jobs import dispatch
from mainspring.jobs.dispatch import Dispatch
from mainspring.jobs.held import FunctionQueue, Worker


class Nobody:
    """The connection of a worker that must receive nothing."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"unexpected call: {name}")


def tidy(functions: Dispatch) -> None:
    for _ in functions.tidy():
        pass


def test_few_functions_are_kept() -> None:
    functions = Dispatch()
    for number in range(dispatch.MAX_IDLE_FUNCTIONS):
        functions.queue(b"%d" % number)
    tidy(functions)
    assert len(functions.queues) == dispatch.MAX_IDLE_FUNCTIONS


def test_of_many_functions_those_in_use_are_kept() -> None:
    functions = Dispatch()
    for number in range(3 * dispatch.MAX_IDLE_FUNCTIONS):
        functions.queue(b"%d" % number)
    worker = Worker(Nobody())  # type: ignore[arg-type]
    functions.register(worker, b"worked")
    functions.queue(b"foreground").foreground = 1
    functions.queue(b"claiming").claiming = True
    functions.queue(b"limited").maximum = (1, 1, 1)
    functions.queue(b"leased").leased = 1
    tidy(functions)
    assert len(functions.queues) == dispatch.MAX_IDLE_FUNCTIONS
    assert {b"worked", b"foreground", b"claiming", b"limited", b"leased"} < set(functions.queues)
    assert set(functions.order) == set(functions.queues.values())
    assert functions.complete, "nothing of the others is in the store"
    functions.leave(worker)
    functions.unregister(worker, functions.queue(b"worked"))
    for number in range(3 * dispatch.MAX_IDLE_FUNCTIONS):
        functions.queue(b"%d" % number)
    tidy(functions)
    assert b"worked" not in functions.queues


def test_a_function_whose_jobs_are_in_the_store_costs_little() -> None:
    functions = Dispatch()
    tracemalloc.start()
    try:
        for number in range(1000):
            functions.queue(b"%d" % number).backlog[1] += 1
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 1000 * 1200


def test_a_function_that_is_left_to_the_store_still_exists() -> None:
    functions = Dispatch()
    for number in range(2 * dispatch.MAX_IDLE_FUNCTIONS):
        functions.queue(b"%d" % number).backlog[1] = number % 2
    tidy(functions)
    assert not functions.complete
    assert all(functions.may_live(b"%d" % number) for number in range(1, 2 * dispatch.MAX_IDLE_FUNCTIONS, 2))
    assert 0.9 * dispatch.MAX_IDLE_FUNCTIONS / 2 < functions.rows.number <= dispatch.MAX_IDLE_FUNCTIONS / 2


def test_forgotten_functions_are_freed_step_by_step() -> None:
    functions = Dispatch()
    for number in range(4 * dispatch.FUNCTIONS_PER_STEP + dispatch.MAX_IDLE_FUNCTIONS):
        functions.queue(b"%d" % number)
    before = alive()
    left = [alive() for _ in functions.tidy()]
    assert left[1] <= before - dispatch.FUNCTIONS_PER_STEP
    assert left[-1] <= before - 3 * dispatch.FUNCTIONS_PER_STEP


def alive() -> int:
    return sum(type(one) is FunctionQueue for one in gc.get_objects())
