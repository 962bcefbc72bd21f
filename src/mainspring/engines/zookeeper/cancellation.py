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


async def run_all(works: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Run coroutines, each as a task with its name, until all have ended.

    If one fails, or this call is cancelled, the others are cancelled. Raises an ExceptionGroup of their errors.

    Unlike ``asyncio.TaskGroup`` before Python 3.13, it does not lose a cancellation while the tasks are ending because of an
    error. A caller that serves in a loop would start again, and never end.
    """
    tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
    cancelled: asyncio.CancelledError | None = None
    ending = False
    while left := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
        if not ending and (cancelled is not None or _errors(tasks)):
            ending = True
            for task in tasks:
                task.cancel()
    if cancelled is not None:
        raise cancelled
    if errors := _errors(tasks):
        raise BaseExceptionGroup("concurrent tasks have failed", errors)


def _errors(tasks: list[asyncio.Task[None]]) -> list[BaseException]:
    ended = [task for task in tasks if task.done() and not task.cancelled()]
    return [error for task in ended if (error := task.exception()) is not None]
