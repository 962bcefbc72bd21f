from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from mainspring.client.payload import Signature
from mainspring.worker.current import CurrentJob
from mainspring.worker.delivery import Delivery
from mainspring.worker.executors.thread import ThreadExecutor
from mainspring.worker.registry import Function

PLACES = 8


def delivery(call: Any) -> Delivery:
    function = Function("f", call, Signature(call, "f"), "thread")
    nobody: Any = None
    return Delivery(nobody, (b"", b""), function, b"", CurrentJob(b"", b"", "f", b"", nobody), 0.0)


@pytest.mark.parametrize("brief", [False, True])
def test_what_comes_one_by_one_runs_at_once_while_there_are_places(brief: bool) -> None:
    async def main() -> int:
        begun, go_on = threading.Semaphore(0), threading.Event()
        executor = ThreadExecutor(PLACES, lambda _: None)

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
