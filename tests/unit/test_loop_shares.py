"""Long work of one caller alternates with the requests of others, and a caller without others has the whole loop."""

from __future__ import annotations

import asyncio
import heapq
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.loop_shares import CROWD, LONGEST_REST, MOST, PIECE, REST, SHORT, LoopShares, Paced, Piece

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.loop_shares import LoopShare


class Loop:
    """A loop whose time the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.shares = LoopShares(self._at, lambda: self.now)
        self.loud, self.quiet = self.shares.of("a", "loud"), self.shares.of("b", "quiet")
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def _at(self, time: float, function: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time, next(self._numbers), function))

    def crowd(self) -> None:
        """Let both callers have requests."""
        for share in (self.loud, self.quiet):
            self.shares.enter(share, self.now)

    def work(self, share: LoopShare, seconds: float) -> None:
        piece = Piece(share)
        self.now += seconds
        piece.end()

    def run(self, seconds: float) -> None:
        """Run all functions that are due within some seconds."""
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            time, _, function = heapq.heappop(self._timers)
            self.now = max(self.now, time)
            function()
        self.now = max(self.now, end)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_caller_without_others_never_rests(loop: Loop) -> None:
    for _ in range(100):
        loop.work(loop.loud, 0.1)
        assert not loop.loud.rests(loop.now)


def test_long_work_beside_others_is_followed_by_a_rest(loop: Loop) -> None:
    loop.crowd()
    loop.work(loop.loud, 2 * PIECE)
    assert loop.loud.rests(loop.now)
    assert not loop.quiet.rests(loop.now)
    loop.now += 2 * PIECE * REST - 1e-6
    assert loop.loud.rests(loop.now)
    loop.now += 2e-6
    assert not loop.loud.rests(loop.now)


def test_work_adds_up_to_a_rest_but_short_work_does_not(loop: Loop) -> None:
    loop.crowd()
    for _ in range(100):
        loop.work(loop.loud, 0.9 * SHORT)
    assert not loop.loud.rests(loop.now)
    loop.crowd()
    for _ in range(5):
        loop.work(loop.loud, 1.1 * SHORT)
    assert loop.loud.rests(loop.now)


def test_a_rest_is_limited_and_ends_soon_after_the_others(loop: Loop) -> None:
    loop.crowd()
    loop.work(loop.loud, CROWD / 2)
    loop.now += LONGEST_REST
    assert not loop.loud.rests(loop.now)
    loop.work(loop.loud, 1.0)
    assert not loop.loud.rests(loop.now), "the others have had no request for long"


def test_those_that_wait_are_released_for_one_piece_at_a_time(loop: Loop) -> None:
    loop.crowd()
    loop.work(loop.loud, 2 * PIECE)
    begun: list[int] = []

    def long_work(number: int) -> None:
        begun.append(number)
        loop.crowd()
        loop.work(loop.loud, 2 * PIECE)

    for number in range(3):
        loop.loud.when_rested(partial(long_work, number))
    loop.run(2 * PIECE * REST + 1e-6)
    assert begun == [0]
    assert loop.loud.rests(loop.now)
    loop.run(LONGEST_REST)
    assert begun == [0, 1, 2]
    loop.crowd()
    loop.work(loop.loud, 2 * PIECE)
    short: list[int] = []
    for number in range(8):
        loop.loud.when_rested(partial(short.append, number), PIECE / 4)
    loop.run(2 * PIECE * REST + 1e-6)
    assert short == [0, 1, 2, 3]
    loop.run(1.0)
    assert short == list(range(8))


def test_a_failed_function_does_not_keep_the_others_waiting(loop: Loop) -> None:
    begun: list[int] = []

    def fail() -> None:
        raise ValueError

    loop.loud.when_rested(fail)
    loop.loud.when_rested(lambda: begun.append(1))
    with pytest.raises(ValueError):
        loop.run(1.0)
    loop.run(1.0)
    assert begun == [1]


def test_work_inside_of_other_work_is_charged_once(loop: Loop) -> None:
    outer = Piece(loop.loud)
    loop.work(loop.quiet, 0.25)
    loop.now += 0.5
    assert outer.end() == pytest.approx(0.5)
    assert loop.shares.charged == pytest.approx(0.75)


def test_shares_of_callers_that_do_not_rest_are_forgotten(loop: Loop) -> None:
    loop.crowd()
    loop.work(loop.loud, 2 * PIECE)
    for number in range(MOST):
        loop.shares.of(str(number), "")
    assert loop.shares.of("a", "loud") is loop.loud
    assert loop.shares.of("b", "quiet") is not loop.quiet


def test_the_steps_of_a_coroutine_are_charged_and_its_waits_are_not(loop: Loop) -> None:
    async def work(wrong: bool) -> str:
        loop.now += 1.0
        try:
            await asyncio.sleep(0)
            loop.now += 2.0
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except TimeoutError:
            loop.now += 4.0
        if wrong:
            raise ValueError("why")
        return "answer"

    async def test() -> None:
        shares: list[Any] = [None]
        assert await Paced(work(wrong=False), lambda: shares[0]) == "answer"
        assert loop.shares.charged == 0.0, "the caller is not known"
        shares = [loop.loud]
        with pytest.raises(ValueError, match="why"):
            await Paced(work(wrong=True), lambda: shares[0])
        assert loop.shares.charged == pytest.approx(7.0)
        ended = asyncio.ensure_future(_ended(loop))
        await asyncio.sleep(0)
        ended.cancel()
        assert await ended == "cleaned"

    asyncio.run(test())


async def _ended(loop: Loop) -> str:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "cleaned"
        return ""

    return await Paced(work(), lambda: loop.loud)


def test_a_coroutine_waits_for_the_rest_of_its_caller() -> None:
    async def test() -> None:
        loop = Loop()
        await loop.loud.rested()
        loop.crowd()
        loop.work(loop.loud, 2 * PIECE)
        waiting, gone = asyncio.ensure_future(loop.loud.rested()), asyncio.ensure_future(loop.loud.rested())
        await asyncio.sleep(0)
        assert not waiting.done()
        gone.cancel()
        loop.run(1.0)
        await waiting

    asyncio.run(test())
