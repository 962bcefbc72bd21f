"""Jobs that are submitted through the API, without a face."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from mainspring.api.handlers.pages import rfc3339
from mainspring.api.jobs import ShowJob
from mainspring.api.request import Code
from mainspring.api.submitting import NO_OPTIONS, Ended, JobOptions, NewJob, RunJob, Submit
from mainspring.clock import to_us
from mainspring.errors import StoreFullError
from mainspring.features import Feature
from mainspring.jobs.model import FUNCTION_LIMIT, UNIQUE_LIMIT, Options, Priority, Retry, failure

from .a_node import PAYLOAD_LIMIT, Node, opened, run


def test_a_background_job_is_stored_before_the_answer() -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await node.submit(payload=b"load", unique=b"u")
            side = node.worker()
            await node.committed()
            (held,) = side.given
            assert (held.handle.decode(), held.job.payload, held.job.priority) == (handle, b"load", Priority.NORMAL)
            assert await node.submit(unique=b"u") == handle, "it joins the first one"

    run(test())


async def begun(node: Node, request: RunJob) -> asyncio.Task[Ended]:
    task = asyncio.create_task(node.api.call(request))
    await asyncio.sleep(0)
    await node.committed()
    return task


def test_the_answer_of_a_foreground_job_is_its_result() -> None:
    async def test() -> None:
        async with opened() as node:
            side = node.worker(places=2)
            first, second = await begun(node, RunJob(b"f", b"1")), await begun(node, RunJob(b"f", b"2"))
            node.service.reports.data(side.given[0], b"part ")
            node.service.settling.succeeded(side.given[0], b"whole")
            node.service.settling.failed(side.given[1], failure("E", "why"), final=True)
            handles = [held.handle.decode() for held in side.given]
            assert await first == Ended(handles[0], succeeded=True, result=b"part whole")
            assert await second == Ended(handles[1], succeeded=False)

    run(test())


def test_a_foreground_job_ends_with_its_last_waiting_client() -> None:
    async def test() -> None:
        async with opened() as node:
            tasks = [await begun(node, RunJob(b"f", b"", b"u")) for _ in range(2)]
            for task, left in zip(tasks, (1, 0), strict=True):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert len(node.service.table.held.values()) == left

    run(test())


def test_options_reach_the_job_and_its_worker() -> None:
    async def test() -> None:
        async with opened() as node:
            retry = Retry(max_attempts=3)
            options = JobOptions("high", timeout=5, heartbeat=2, expires=60, retry=retry, concurrency_key="k")
            await node.api.call(Submit(b"f", b"", b"u", options))
            side = node.worker()
            await node.committed()
            job = side.given[0].job
            assert (job.priority, job.key, job.options) == (Priority.HIGH, b"k", Options(retry, 5, 2))
            assert job.expires_us == to_us(node.clock.wall() + 60)

    run(test())


OPTIONS: dict[str, Any] = {
    "priority": "low",
    "delay": 1.0,
    "run_at": datetime(2030, 1, 31, tzinfo=UTC),
    "timeout": 1.0,
    "heartbeat": 1.0,
    "expires": 1.0,
    "start_within": 1.0,
    "deadline": 1.0,
    "retry": Retry(max_attempts=3),
    "keep_unique": 1.0,
    "concurrency_key": "k",
    "version": "2",
    "tags": ("nightly",),
    "on_conflict": "skip",
    "debounce": 1.0,
    "debounce_max": 2.0,
}


def test_each_option_of_a_job_in_json_is_kept() -> None:
    assert OPTIONS.keys() == {field.name for field in msgspec.structs.fields(JobOptions)}
    for name, value in OPTIONS.items():
        found = NewJob(function="f", **{name: value}).options()
        wanted = JobOptions(**{name: value})
        assert [getattr(found, one) for one in OPTIONS] == [getattr(wanted, one) for one in OPTIONS]
        assert found is not NO_OPTIONS
    assert NewJob(function="f", unique="u", payload=b"p").options() is NO_OPTIONS


@pytest.mark.parametrize("way", ["delay", "run_at"])
def test_a_delayed_job_is_scheduled(way: str) -> None:
    async def test() -> None:
        async with opened() as node:
            later = node.clock.wall() + 5
            options = JobOptions(delay=5) if way == "delay" else JobOptions(run_at=datetime.fromtimestamp(later, UTC))
            handle = (await node.api.call(Submit(b"f", b"", options=options))).handle
            shown = await node.api.call(ShowJob(handle))
            assert (shown.state, shown.run_at) == ("scheduled", rfc3339(to_us(later)))

    run(test())


@pytest.mark.parametrize("unit", ["function", "unique", "payload"])
@pytest.mark.parametrize("kind", [Submit, RunJob])
def test_sizes_have_the_same_limits_as_in_all_faces(kind: type[Submit | RunJob], unit: str) -> None:
    """Submit as many bytes as allowed, then one more."""

    async def test() -> None:
        async with opened() as node:
            most = {"function": FUNCTION_LIMIT, "unique": UNIQUE_LIMIT, "payload": PAYLOAD_LIMIT}[unit]
            given: dict[str, Any] = {"function": b"f", "payload": b""}
            assert await node.code(kind(**given | {unit: bytes(most + 1)})) is Code.TOO_LARGE
            assert not node.service.dispatch.queues.values()
            await node.api.call(Submit(**given | {unit: bytes(most)}))

    run(test())


@pytest.mark.parametrize(
    "options",
    [
        JobOptions(delay=-1),
        JobOptions(delay=1, run_at=datetime(2030, 1, 31, tzinfo=UTC)),
        JobOptions(timeout=0),
        JobOptions(run_at=datetime(9999, 12, 31, tzinfo=UTC)),
        JobOptions(retry=Retry(max_attempts=0)),
        JobOptions(concurrency_key="k" * 256),
    ],
)
def test_invalid_options_are_refused(options: JobOptions) -> None:
    async def test() -> None:
        async with opened() as node:
            assert await node.code(Submit(b"f", b"", options=options)) is Code.INVALID
            assert not node.service.dispatch.queues.values()

    run(test())


@pytest.mark.parametrize("kind", [Submit, RunJob])
def test_a_job_without_a_function_is_refused(kind: type[Submit | RunJob]) -> None:
    async def test() -> None:
        async with opened() as node:
            assert await node.code(kind(b"", b"")) is Code.INVALID

    run(test())


def test_a_store_without_limits_refuses_concurrency_keys() -> None:
    async def test() -> None:
        async with opened(lacks=frozenset({Feature.LIMITS})) as node:
            assert await node.code(Submit(b"f", b"", options=JobOptions(concurrency_key="k"))) is Code.UNSUPPORTED

    run(test())


@pytest.mark.parametrize("kind", [Submit, RunJob])
def test_problems_have_codes(kind: type[Submit | RunJob]) -> None:
    async def test() -> None:
        async with opened() as node:
            await node.submit()
            queue = node.service.dispatch.queues[b"f"]
            queue.maximum = (1, 1, 1)
            assert await node.code(kind(b"f", b"")) is Code.REFUSED
            queue.maximum = None
            node.service.dispatch.most = 1
            assert await node.code(kind(b"new", b"")) is Code.TOO_MANY_FUNCTIONS
            node.store.error = StoreFullError("full")
            assert await node.code(kind(b"f", b"", b"u")) is Code.UNAVAILABLE
            assert not node.service.table.held.values()

    run(test())
