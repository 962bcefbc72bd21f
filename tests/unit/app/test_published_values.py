"""Published values, from the code of users to its readers, on a whole node in memory."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import current_job, workflow
from mainspring.client.job import ANSWER_WITHIN, ValueWait
from mainspring.errors import (
    ConnectionLostError,
    NotFoundError,
    PayloadError,
    UsageError,
    WorkflowUsageError,
)
from mainspring.testing import in_memory

from .app_of_values import app, chain, count, flow, in_a_process, on_the_loop, too_many, waits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.testing import InMemory


@pytest.fixture(scope="module", autouse=True)
def memory() -> Iterator[InMemory]:
    with in_memory(app) as memory:
        yield memory


def test_a_task_publishes_from_each_executor(memory: InMemory) -> None:
    job = count.submit(3)
    assert job.result(60) == 3
    assert (job.value("done"), job.value("last", type=dict[str, int])) == (3, {"of": 3})
    values = job.values()
    assert {name: one.value for name, one in values.items()} == {"done": 3, "last": {"of": 3}}
    assert values["last"].attempt == 1
    at = values["last"].at
    assert at is not None
    assert abs(at - datetime.fromtimestamp(memory.clock.wall(), UTC)).total_seconds() < 3600
    for task, where in ((in_a_process, "process"), (on_the_loop, "loop")):
        other = task.submit()
        other.result(60)
        assert other.value("where") == where


def test_a_value_of_another_type_is_refused() -> None:
    job = count.submit(1)
    job.result(60)
    with pytest.raises(PayloadError, match="the value 'last' cannot be read as int"):
        job.value("last", type=int)
    with pytest.raises(NotFoundError, match="has published no value 'other'"):
        job.value("other")
    with pytest.raises(UsageError, match="no name"):
        job.value("")


def test_a_run_publishes_with_its_decisions_and_its_replays_do_not() -> None:
    run = flow.submit(2)
    assert run.wait_value("stage", 60) in {"begun", "counted", "stepped"}
    refusal = run.result(60)
    assert "step runs as a local step, which publishes nothing: call workflow.publish('where', …)" in refusal
    assert [(name, one.value, one.number) for name, one in run.values().items()] == [("stage", "stepped", 2)]


def test_a_chain_keeps_its_values() -> None:
    run = chain.submit(2)
    assert run.result(60) == 0
    assert {name: one.value for name, one in run.values().items()} == {"left": 0, "seen 1": True, "seen 2": True}


def test_a_run_with_too_many_names_parks() -> None:
    run = too_many.submit()
    while run.details()["parked"] is None:
        pass
    assert "'n100' would be the 101st name" in run.details()["parked"]["message"]
    assert run.values() == {}, "the decision is not recorded"
    run.terminate()


def test_values_are_read_by_workflow_id_and_with_asyncio() -> None:
    run = waits.options(id="waits-7").submit()

    async def read() -> None:
        handle = waits.get("waits-7")
        assert await handle.await_value("stage", 60) == "waiting"
        fresh = waits.get("waits-7")
        assert (await fresh.avalues())["stage"].value == "waiting"
        assert await waits.get("waits-7").avalue("stage", type=str) == "waiting"
        run.signal("go", "on")
        with pytest.raises(NotFoundError, match="has ended without publishing a later 'stage'"):
            await handle.await_value("stage", 60, after=1)
        await app.aclose()

    asyncio.run(read())
    assert run.result(60) == "on"


def test_names_outside_of_jobs_are_refused() -> None:
    with pytest.raises(WorkflowUsageError, match=r"workflow\.publish works only inside of a workflow"):
        workflow.publish("a", 1)
    with pytest.raises(UsageError, match="there is no current job"):
        current_job().publish("a", 1)


def test_a_wait_ends_with_its_time() -> None:
    wait = ValueWait("H:n:1", "a", 0, 5.0)
    nothing: dict[str, Any] = {"items": [], "ended": False}
    assert wait.params(100.0) == {"handle": "H:n:1", "name": "a", "after": 0, "wait": 5.0}
    assert wait.take(nothing, 104.0) is None
    assert wait.params(104.0)["wait"] == 1.0
    assert wait.lost(ConnectionLostError("gone"), 104.5) > 0, "it is sent again"
    with pytest.raises(TimeoutError, match="H:n:1 has not published 'a' within 5 s"):
        wait.take(nothing, 105.0)
    with pytest.raises(TimeoutError):
        wait.lost(ConnectionLostError("gone"), 105.0)


def test_a_wait_gives_up_when_no_server_answers() -> None:
    wait = ValueWait("H:n:1", "a", 0, None)
    error = ConnectionLostError("gone")
    wait.lost(error, 100.0)
    with pytest.raises(ConnectionLostError):
        wait.lost(error, 100.0 + 24 * 3600)
    assert ANSWER_WITHIN > 1
