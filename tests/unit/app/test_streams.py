"""Streams, from the code of users to their readers, on a whole node in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import current_job, workflow
from mainspring.errors import JobFailed, NotFoundError, UsageError, WorkflowUsageError
from mainspring.testing import in_memory

from .app_of_streams import (
    app,
    chain,
    count,
    fails_once,
    flow,
    flushed,
    flushes,
    gate,
    in_a_process,
    on_the_loop,
    too_large,
    too_many,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.client.job import Job
    from mainspring.testing import InMemory


@pytest.fixture(scope="module", autouse=True)
def memory() -> Iterator[InMemory]:
    with in_memory(app) as memory:
        yield memory


def values(job: Job[Any], name: str = "a", offset: int = 0) -> list[object]:
    """Return the values of a stream until its job has ended."""
    return [item.value for item in job.read_stream(name, offset)]


def test_a_task_writes_in_order() -> None:
    job = count.submit(1000)
    assert values(job, "numbers") == list(range(1000))
    assert [item.offset for item in job.read_stream("numbers", 997)] == [997, 998, 999]
    (text,) = job.read_stream("texts")
    assert (text.value, text.attempt, text.part) == ("<b>bold</b>\n", 1, 1)
    assert text.at is not None
    assert values(job, "numbers", 1000) == values(job, "other") == []


def test_what_is_flushed_can_be_read_while_the_job_runs() -> None:
    job = flushes.submit()
    assert flushed.wait(60)
    assert [item.value for item in job.read_stream("numbers", follow=False)] == [{"first": True}]
    items = iter(job.read_stream("numbers"))
    assert next(items).value == {"first": True}
    gate.set()
    assert [item.value for item in items] == ["last"]


@pytest.mark.parametrize("task", [in_a_process, on_the_loop])
def test_each_executor_writes(task: object) -> None:
    job = task.submit()  # type: ignore[attr-defined]
    assert values(job) == [1, 2]
    if task is on_the_loop:
        assert "aflush()" in job.result(60)


def test_a_reader_sees_where_an_attempt_was_given_up(memory: InMemory) -> None:
    job = fails_once.submit()
    memory.result(job)
    assert [(item.value, item.attempt, item.part) for item in job.read_stream("a")] == [(1, 1, 1), (2, 2, 2)]


def test_a_full_stream_is_refused_at_the_caller() -> None:
    job = too_large.submit()
    with pytest.raises(JobFailed, match="has no room for this item"):
        job.result(60)


def test_a_run_writes_with_its_decisions_and_its_replays_do_not() -> None:
    run = flow.submit(2)
    assert values(run, "stages") == ["begun", "counted", "stepped", "complete"]
    assert "step runs as a local step, which writes to no stream: call workflow.stream('a')" in run.result(60)


def test_a_chain_keeps_its_streams() -> None:
    run = chain.submit(2)
    assert values(run, "left") == [2, 1, 0]


def test_a_run_with_too_many_streams_parks() -> None:
    run = too_many.submit()
    while run.details()["parked"] is None:
        pass
    assert "'n20' would be the 21st stream" in run.details()["parked"]["message"]
    assert [item.value for item in run.read_stream("n0", follow=False)] == [], "the decision is not recorded"
    run.terminate()


def test_streams_are_read_by_workflow_id_and_with_asyncio() -> None:
    flow.options(id="flow-7").submit(1)

    async def read() -> None:
        found = [item.value async for item in flow.get("flow-7").read_stream("stages", 2)]
        assert found == ["stepped", "complete"]
        await app.aclose()

    asyncio.run(read())


def test_what_cannot_be_read_or_written_is_refused() -> None:
    job = count.submit(1)
    for name, offset in (("", 0), ("a", -1), ("a", True)):
        with pytest.raises(UsageError):
            job.read_stream(name, offset)
    with pytest.raises(NotFoundError):
        list(app.job("H:nowhere:99999999").read_stream("a"))
    with pytest.raises(WorkflowUsageError, match=r"workflow\.stream works only inside of a workflow"):
        workflow.stream("a").write(1)
    with pytest.raises(UsageError, match="there is no current job"):
        current_job().stream("a")
