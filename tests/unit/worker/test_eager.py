"""Coroutines that begin at once: tasks of them behave as tasks that begin later."""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.worker.executors.in_process import Execution

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

variable: ContextVar[int] = ContextVar("variable")


def execute(coroutine: Coroutine[Any, Any, Any], context: Context | None = None) -> Execution:
    return Execution(coroutine, asyncio.get_running_loop(), Context() if context is None else context)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_a_coroutine_that_never_waits_ends_at_once_without_a_task() -> None:
    async def number() -> int:
        return 7

    async def test() -> None:
        execution = execute(number())
        assert (execution.ended, execution.result) == (True, 7)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(test)


def test_the_rest_of_a_coroutine_runs_in_its_task_and_context() -> None:
    seen: list[Any] = []

    async def number(event: asyncio.Event) -> int:
        variable.set(1)
        seen.append(asyncio.current_task())
        await event.wait()
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        return variable.get()

    async def test() -> None:
        event = asyncio.Event()
        context = Context()
        execution = execute(number(event), context)
        assert not execution.ended
        assert context[variable] == 1
        event.set()
        assert await execution.task == 1
        assert seen == [execution.task, execution.task]

    run(test)


def test_a_task_that_begins_another_stays_the_current_one() -> None:
    async def waits() -> None:
        await asyncio.sleep(0)

    async def test() -> None:
        outer = asyncio.current_task()
        execution = execute(waits())
        assert asyncio.current_task() is outer
        await execution.task

    run(test)


def test_a_time_limit_in_the_first_part_ends_the_wait() -> None:
    async def limited() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return ""

    async def test() -> None:
        assert await execute(limited()).task == "late"

    run(test)


def test_a_group_in_the_first_part_awaits_its_tasks() -> None:
    async def number() -> int:
        return 3

    async def group() -> int:
        async with asyncio.TaskGroup() as tasks:
            one = tasks.create_task(number())
        return one.result()

    async def test() -> None:
        assert await execute(group()).task == 3

    run(test)


def test_a_task_that_was_used_ends_although_nothing_waited() -> None:
    async def used(ended: Callable[[Any], None]) -> int:
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(ended)
        return 4

    async def test() -> None:
        tasks: list[asyncio.Task[int]] = []
        execution = execute(used(tasks.append))
        assert (execution.ended, execution.result) == (True, 4)
        assert await execution.task == 4
        await asyncio.sleep(0)
        assert tasks == [execution.task]

    run(test)


def test_errors_of_the_first_part_are_raised_and_later_ones_kept() -> None:
    async def fails(waits: int) -> None:
        for _ in range(waits):
            await asyncio.sleep(0)
        raise OSError(f"after {waits} waits")

    async def test() -> None:
        with pytest.raises(OSError, match="after 0 waits"):
            execute(fails(0))
        with pytest.raises(OSError, match="after 2 waits"):
            await execute(fails(2)).task

    run(test)


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_cancelled_coroutine_cleans_up_and_leaves_its_future(turns: int) -> None:
    async def waits(future: asyncio.Future[None]) -> str:
        try:
            await future
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # it may wait again
            return "cleaned"
        return ""

    async def test() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        execution = execute(waits(future))
        for _ in range(turns):
            await asyncio.sleep(0)
        execution.task.cancel()
        assert await execution.task == "cleaned"
        assert future.cancelled()

    run(test)


def test_a_cancelled_coroutine_that_does_not_catch_it_is_cancelled() -> None:
    async def test() -> None:
        for turns in (0, 1):
            execution = execute(asyncio.sleep(1))
            for _ in range(turns):
                await asyncio.sleep(0)
            execution.task.cancel("stop")
            with pytest.raises(asyncio.CancelledError, match="stop"):
                await execution.task

    run(test)


def test_several_coroutines_wait_for_one_future() -> None:
    async def waits(future: asyncio.Future[int]) -> int:
        return await future

    async def test() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        executions = [execute(waits(future)) for _ in range(3)]
        future.set_result(5)  # before the first turn of their tasks
        assert [await one.task for one in executions] == [5, 5, 5]

    run(test)


def test_an_error_of_the_awaited_future_is_raised_where_the_code_waits() -> None:
    async def waits(future: asyncio.Future[int]) -> str:
        try:
            await future
        except OSError as error:
            return str(error)
        return ""

    async def test() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        execution = execute(waits(future))
        future.set_exception(OSError("busy"))
        assert await execution.task == "busy"

    run(test)
