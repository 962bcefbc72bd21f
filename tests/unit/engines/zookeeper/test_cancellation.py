"""Tasks that end together, in whichever order what ends them comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.engines.zookeeper.tree import run_loops

from .a_session import run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class Late:
    """Something that takes a while to end."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()
        self.let_go = asyncio.Event()
        self.has_ended = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ending.set()
            await self.let_go.wait()
            raise
        finally:
            self.has_ended = True


async def fails() -> None:
    raise ValueError("it has failed")


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_end_of_one_without_an_error_ends_all(*, is_cancelled: bool) -> None:
    async def check() -> None:
        late = Late()
        late.let_go.set()
        one = asyncio.Event()
        loops = asyncio.create_task(run_loops({"late": late.run(), "one": one.wait()}))  # type: ignore[dict-item]
        await asyncio.sleep(0)
        if is_cancelled:
            (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "one"]
            task.cancel()
        else:
            one.set()
        with pytest.raises(ExceptionGroup) as caught:
            await loops
        assert [str(error) for error in caught.value.exceptions] == ["one has ended"]
        assert late.has_ended

    run(check())


def test_if_one_fails_the_error_is_raised_after_the_others_have_ended() -> None:
    async def check() -> None:
        late = Late()
        late.let_go.set()
        with pytest.raises(ExceptionGroup) as caught:
            await run_loops({"late": late.run(), "fails": fails()})
        assert [str(error) for error in caught.value.exceptions] == ["it has failed"]
        assert late.has_ended

    run(check())


@pytest.mark.parametrize("other", [{"fails": fails}, {}])
@pytest.mark.parametrize("times", [1, 2])
def test_a_cancellation_is_never_forgotten(
    other: dict[str, Callable[[], Coroutine[Any, Any, None]]], times: int
) -> None:
    # Neither where the others end already because one has failed, nor where it comes twice.
    async def check() -> None:
        late = Late()
        task = asyncio.create_task(run_loops({"late": late.run(), **{name: work() for name, work in other.items()}}))
        if other:
            await late.ending.wait()
        else:
            await asyncio.sleep(0)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        await late.ending.wait()
        assert not late.has_ended
        late.let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert late.has_ended

    run(check())
