"""Tasks that wait for jobs of their own worker, run as users run them."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.system.processes import node
from tests.system.stores import on_each_store

from mainspring import App, JobFailed
from mainspring.worker.selector import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.system.processes import Node
    from tests.system.stores import Store

pytestmark = pytest.mark.system

TASKS = """
import asyncio
from mainspring import App

app = App()

@app.task
def double(n: int) -> int:
    return 2 * n

@app.task
def total(numbers: list[int]) -> int:
    return sum(job.result() for job in double.submit_many(numbers))

@app.task
async def atotal(numbers: list[int]) -> int:
    return sum([result async for result in app.aresults(await double.asubmit_many(numbers))])

@app.task
async def chord(numbers: list[int]) -> int:
    jobs = await double.asubmit_many(numbers)
    return sum(await asyncio.gather(*(job.aresult() for job in jobs)))

@app.task
async def blocks(how: str) -> object:
    calls = {"submit": lambda: double.submit(1), "result": lambda: double.job("H:n:1000000000001").result()}
    if how == "thread":
        return await asyncio.to_thread(calls["submit"]) is not None
    return calls[how]()

@app.task
def depth(n: int) -> int:
    return n and 1 + depth.submit(n - 1).result()

@app.task(executor="process")
def in_process(numbers: list[int]) -> int:
    return sum(app.results(double.submit_many(numbers)))

@app.task(executor="process")
def process_depth(n: int) -> int:
    return n and 1 + process_depth.submit(n - 1).result()
"""

LIMITED = """
@app.task(concurrency=2)
def limited(numbers: list[int]) -> int:
    return sum(app.results(double.submit_many(numbers)))
"""

TIMEOUT = 50
"""Limit in seconds for each result; no test should need that long."""


class Fleet:
    """A node with workers, and the tasks for submissions to it."""

    def __init__(self, running: Node, tasks: Any) -> None:
        self.running = running
        self.tasks = tasks

    @property
    def log(self) -> str:
        return self.running.log.read_text()


@contextlib.contextmanager
def running(directory: Path, tasks: str, *options: str) -> Iterator[Fleet]:
    file = directory / f"waiting_{directory.name.replace('-', '_')}.py"
    file.write_text(tasks)
    command = ("run", str(file), "--gearman", "127.0.0.1:0", "--grace", "1s", *options)
    with node(*command, cwd=directory) as one, pytest.MonkeyPatch.context() as patched:
        patched.setenv("MAINSPRING_SERVER", one.address)
        app = load(str(file))
        assert isinstance(app, App)
        try:
            yield Fleet(one, sys.modules[file.stem])
        finally:
            app.close()
            del sys.modules[file.stem]


@pytest.fixture
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    options: tuple[str, ...] = request.param
    with running(tmp_path, TASKS + LIMITED, *options) as fleet:
        yield fleet


def workers(*options: str) -> Callable[[Any], Any]:
    return pytest.mark.parametrize("fleet", [options], indirect=True, ids=" ".join)


@workers("--store", "memory://")
def test_sixteen_parents_run_in_sixteen_places(fleet: Fleet) -> None:
    jobs = fleet.tasks.total.submit_many([([1, 2, 3],)] * 16)
    assert [job.result(TIMEOUT) for job in jobs] == [12] * 16


@workers("--concurrency", "2")
def test_many_more_parents_than_places_run(fleet: Fleet) -> None:
    jobs = fleet.tasks.total.submit_many([([1, 2, 3],)] * 100)
    assert [job.result(TIMEOUT) for job in jobs] == [12] * 100


@workers("--concurrency", "2", "--processes", "2")
def test_parents_run_on_two_workers(fleet: Fleet) -> None:
    jobs = fleet.tasks.total.submit_many([([1, 2, 3],)] * 20) + fleet.tasks.depth.submit_many([20, 20])
    assert [job.result(TIMEOUT) for job in jobs] == [12] * 20 + [20] * 2


@workers("--concurrency", "1")
def test_coroutines_and_threads_wait_in_the_only_place(fleet: Fleet) -> None:
    numbers = list(range(20))
    tasks = fleet.tasks
    jobs = [task.submit(numbers) for task in (tasks.atotal, tasks.chord, tasks.total, tasks.limited)]
    assert [job.result(TIMEOUT) for job in jobs] == [380] * 4


@workers("--concurrency", "1", "--processes", "1")
def test_a_blocking_call_in_a_coroutine_is_refused(fleet: Fleet) -> None:
    """It would wait for a job that only its own worker can run, whose loop it has stopped."""
    for how in ("submit", "result"):
        with pytest.raises(JobFailed, match=r"UsageError: a blocking call does not work .*await f\.asubmit"):
            fleet.tasks.blocks.submit(how).result(TIMEOUT)
    assert fleet.tasks.blocks.submit("thread").result(TIMEOUT) is True


@workers("--concurrency", "3")
def test_a_limit_holds_for_parents_that_wait(fleet: Fleet) -> None:
    jobs = fleet.tasks.limited.submit_many([([1, 2],)] * 12)
    assert [job.result(TIMEOUT) for job in jobs] == [6] * 12


@workers("--concurrency", "1", "--waiting-places", "4")
def test_nested_waits_go_to_the_bound_and_not_beyond(fleet: Fleet) -> None:
    assert fleet.tasks.depth.submit(4).result(TIMEOUT) == 4
    with pytest.raises(JobFailed, match=r"WorkerFullError: job .* has not started") as failed:
        fleet.tasks.depth.submit(5).result(TIMEOUT)
    assert "1 place and 4 extra ones" in str(failed.value)
    assert fleet.tasks.total.submit([1]).result(TIMEOUT) == 2  # the worker still works


@workers("--concurrency", "2", "--waiting-places", "0")
def test_without_extra_places_the_wait_is_refused(fleet: Fleet) -> None:
    jobs = fleet.tasks.total.submit_many([([1],)] * 2)
    outcomes = []
    for job in jobs:
        try:
            outcomes.append(job.result(TIMEOUT))
        except JobFailed as error:
            outcomes.append(error.type_name)
    assert "WorkerFullError" in outcomes


@workers("--concurrency", "1")
def test_tasks_in_processes_may_wait_with_a_warning(fleet: Fleet) -> None:
    assert fleet.tasks.in_process.submit([1, 2]).result(TIMEOUT) == 6
    assert fleet.tasks.in_process.submit([1, 2]).result(TIMEOUT) == 6
    assert fleet.tasks.process_depth.submit(2).result(TIMEOUT) == 2
    warnings = [line for line in fleet.log.splitlines() if "a task in a process waits for other jobs" in line]
    assert [name for line in warnings for name in ("in_process", "process_depth") if f'"{name}"' in line] == [
        "in_process",
        "process_depth",
    ]


@on_each_store
def test_parents_and_children_run_on_two_nodes_of_one_store(store: Store, tmp_path: Path) -> None:
    """The awaited jobs may be queued in the store, held by the other node, or run there."""
    options = ("--store", store.url, "--concurrency", "2")
    file = tmp_path / "other" / "tasks.py"
    file.parent.mkdir()
    file.write_text(TASKS)
    command = ("run", str(file), "--gearman", "127.0.0.1:0", "--grace", "1s", "--name", "other", *options)
    with running(tmp_path, TASKS, *options) as fleet, node(*command, cwd=file.parent):
        tasks = fleet.tasks
        jobs = tasks.total.submit_many([([1, 2, 3],)] * 30) + tasks.atotal.submit_many([([1, 2, 3],)] * 10)
        deep = tasks.depth.submit_many([6, 6])
        assert [job.result(TIMEOUT) for job in jobs] == [12] * 40
        assert [job.result(TIMEOUT) for job in deep] == [6, 6]


@workers("--concurrency", "1", "--waiting-places", "1")
def test_at_the_bound_a_process_is_refused_too(fleet: Fleet) -> None:
    with pytest.raises(JobFailed, match=r"WorkerFullError: job .* has not started"):
        fleet.tasks.process_depth.submit(2).result(TIMEOUT)
