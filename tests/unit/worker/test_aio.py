"""The executor of coroutine functions: the turns of the loop in which it reports ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mainspring.client.payload import Signature
from mainspring.worker.current import CurrentJob
from mainspring.worker.delivery import Delivery
from mainspring.worker.executors.in_process import CoroutineExecutor
from mainspring.worker.registry import Function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.worker.delivery import Finished


def delivery(call: Any) -> Delivery:
    function = Function("f", call, Signature(call, "f"), "coroutine")
    unused: Any = None
    return Delivery(unused, (b"", b""), function, b"", CurrentJob(b"", b"", "f", b"", unused), 0.0)


async def at_once() -> int:
    return 7


def test_a_lone_delivery_that_never_waits_ends_in_the_turn_that_starts_it() -> None:
    async def main() -> list[bytes]:
        results: list[bytes] = []
        executor = CoroutineExecutor(lambda batch: results.extend(one.settlement.data for one in batch))
        executor.start([delivery(at_once)], brief=True)
        return list(results)

    assert asyncio.run(main()) == [b"7"]


def test_deliveries_that_are_started_together_end_together() -> None:
    async def main() -> list[int]:
        batches: list[int] = []
        executor = CoroutineExecutor(lambda batch: batches.append(len(batch)))
        executor.start([delivery(at_once) for _ in range(3)], brief=True)
        assert not batches
        for _ in range(3):
            await asyncio.sleep(0)
        return list(batches)

    assert asyncio.run(main()) == [3]


def test_ends_that_start_others_go_no_deeper() -> None:
    async def main() -> int:
        left = 2_000
        ended = asyncio.Event()

        def end(_: Sequence[Finished]) -> None:
            nonlocal left
            left -= 1
            if left:
                executor.start([delivery(at_once)], brief=True)
            else:
                ended.set()

        executor = CoroutineExecutor(end)
        executor.start([delivery(at_once)], brief=True)
        await asyncio.wait_for(ended.wait(), 10)
        return left

    assert asyncio.run(main()) == 0
