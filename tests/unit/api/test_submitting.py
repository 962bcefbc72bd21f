"""Jobs that are submitted through the API, without a face."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.api.errors import Code
from mainspring.api.submitting import Ended, Run, Submit
from mainspring.errors import StoreFullError
from mainspring.jobs.failures import failure
from mainspring.jobs.model import Priority

from .a_node import Node, opened, run


def test_a_background_job_is_stored_before_the_answer() -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await node.submit(payload=b"load", unique=b"u")
            side = node.worker()
            await node.committed()
            (held,) = side.given
            assert (held.handle.decode(), held.job.payload, held.job.priority) == (handle, b"load", Priority.NORMAL)
            assert await node.submit(unique=b"u") == handle, "it joins"

    run(test())


async def begun(node: Node, request: Run) -> asyncio.Task[Ended]:
    task = asyncio.create_task(node.api.call(request))
    await asyncio.sleep(0)
    await node.committed()
    return task


def test_a_foreground_job_is_answered_with_its_end() -> None:
    async def test() -> None:
        async with opened() as node:
            side = node.worker(places=2)
            first, second = await begun(node, Run(b"f", b"1")), await begun(node, Run(b"f", b"2"))
            node.service.data(side.given[0], b"part ")
            node.service.succeeded(side.given[0], b"whole")
            node.service.failed(side.given[1], failure("E", "why"), final=True)
            handles = [held.handle.decode() for held in side.given]
            assert await first == Ended(handles[0], succeeded=True, result=b"part whole")
            assert await second == Ended(handles[1], succeeded=False)

    run(test())


def test_a_foreground_job_goes_with_the_last_who_waits() -> None:
    async def test() -> None:
        async with opened() as node:
            tasks = [await begun(node, Run(b"f", b"", b"u")) for _ in range(2)]
            for task, left in zip(tasks, (1, 0), strict=True):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert len(node.service.in_memory()) == left

    run(test())


@pytest.mark.parametrize("kind", [Submit, Run])
def test_problems_have_codes(kind: type[Submit | Run]) -> None:
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
            assert not node.service.in_memory()

    run(test())
