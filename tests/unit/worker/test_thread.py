from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.client.payload import Signature
from mainspring.worker.current import CurrentJob
from mainspring.worker.delivery import Delivery
from mainspring.worker.executors.in_process import ThreadExecutor
from mainspring.worker.registry import Function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.worker.delivery import Finished

PLACES = 8


def delivery(call: Any) -> Delivery:
    function = Function("f", call, Signature(call, "f"), "thread")
    unused: Any = None
    return Delivery(unused, (b"", b""), function, b"", CurrentJob(b"", b"", "f", b"", unused), 0.0)


@pytest.mark.parametrize("brief", [False, True])
def test_single_jobs_start_at_once_while_there_are_places(brief: bool) -> None:
    async def main() -> int:
        begun, go_on = threading.Semaphore(0), threading.Event()
        executor = ThreadExecutor(PLACES, lambda _: None, most=PLACES)

        def wait() -> None:
            begun.release()
            go_on.wait(30)

        try:
            for number in range(PLACES):
                executor.start([delivery(wait)], brief=brief)
                if not await asyncio.to_thread(begun.acquire, timeout=5):
                    return number
        finally:
            go_on.set()
            await executor.close()
        return PLACES

    assert asyncio.run(main()) == PLACES


def test_threads_that_only_extra_places_needed_end() -> None:
    def threads() -> int:
        return sum(thread.name.startswith("mainspring-task-") for thread in threading.enumerate())

    def until_there_are(number: int) -> None:
        while threads() > number:
            time.sleep(0.001)

    async def main() -> None:
        before = threads()
        begun, go_on, ended = threading.Semaphore(0), threading.Semaphore(0), asyncio.Semaphore(0)

        def finish(batch: Sequence[Finished]) -> None:
            for _ in batch:
                ended.release()

        executor = ThreadExecutor(2, finish, most=5)

        def wait() -> None:
            begun.release()
            go_on.acquire(timeout=30)

        async def start(number: int) -> None:
            for _ in range(number):
                executor.start([delivery(wait)], brief=False)
                assert await asyncio.to_thread(begun.acquire, timeout=5)

        async def end(number: int) -> None:
            for _ in range(number):
                go_on.release()
                await ended.acquire()

        try:
            for _ in range(3):
                await start(5)
                await end(1)
                executor.shrink()  # one thread is idle, four are busy
                await asyncio.to_thread(until_there_are, before + 4)
                await start(1)
                await end(5)
                executor.shrink()
                await asyncio.to_thread(until_there_are, before + 2)
        finally:
            go_on.release(100)
            await executor.close()

    asyncio.run(main())
