"""The deadlines of requests on an event loop: one timer ends each at its time, whatever the order in which they were added."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.client.aio import Deadlines


@pytest.mark.parametrize("seconds", [(3600.0, 0.01), (0.01, 3600.0), (0.02, 0.01)])
def test_a_request_ends_at_its_deadline(seconds: tuple[float, float]) -> None:
    async def test() -> None:
        loop, deadlines = asyncio.get_running_loop(), Deadlines()
        requests = [loop.create_future() for _ in seconds]
        for request, limit in zip(requests, seconds, strict=True):
            deadlines.add(request, limit, loop)
        short = [request for request, limit in zip(requests, seconds, strict=True) if limit < 1]
        assert await asyncio.wait_for(asyncio.gather(*short), 30) == [False] * len(short)
        assert [request.done() for request in requests] == [limit < 1 for limit in seconds]

    asyncio.run(test())


def test_an_answered_request_does_not_end_again() -> None:
    async def test() -> None:
        loop, deadlines = asyncio.get_running_loop(), Deadlines()
        answered, removed, last = (loop.create_future() for _ in range(3))
        for request in (answered, removed, last):
            deadlines.add(request, 0.01, loop)
        answered.set_result(True)
        deadlines.remove(removed)
        assert await asyncio.wait_for(last, 30) is False
        assert answered.result() is True
        assert not removed.done()

    asyncio.run(test())
