"""Waits that never lose a cancellation, as some of asyncio's do in supported versions of Python."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping


async def wait_or_timeout(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until an event is set, or some seconds have passed; None: without a time-out.

    Unlike ``asyncio.wait_for`` before Python 3.12, it does not lose a cancellation if the event is set at the same moment.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def run_loops(works: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Run loops, each as a task with its name, until one of them ends, however it does, or this call is cancelled.

    Then the others are cancelled. Raises an ExceptionGroup of their errors, with a RuntimeError for each loop that has ended
    without one: none may end by itself, because the others would go on without it.

    Unlike ``asyncio.TaskGroup`` before Python 3.13, it does not lose a cancellation while the tasks are ending because of an
    error. A caller that serves in a loop would start again, and never end.
    """
    tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
    cancelled: asyncio.CancelledError | None = None
    ended: list[asyncio.Task[None]] = []
    while left := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
        if not ended:
            ended = [task for task in tasks if task.done()]
            for task in tasks if ended or cancelled is not None else ():
                task.cancel()
    if cancelled is not None:
        raise cancelled
    errors = [failed for task in tasks if not task.cancelled() and (failed := task.exception()) is not None]
    silent = [task.get_name() for task in ended if task.cancelled() or task.exception() is None]
    raise BaseExceptionGroup("a loop has ended", [*errors, *(RuntimeError(f"{name} has ended") for name in silent)])
