"""Waits that never forget a cancellation, as some of asyncio's do in the Pythons that are supported."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping


async def wait_or_timeout(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until an event is set, or until some seconds have passed; None: for ever.

    Unlike ``asyncio.wait_for`` before Python 3.12, it never forgets that it was cancelled when the event is set just then.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def run_all(works: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Run coroutines, each as a task with its name, until all have ended. None of them is left afterwards.

    Where one fails, or this is cancelled, the others are cancelled. Raises an ExceptionGroup of their errors.

    Unlike ``asyncio.TaskGroup`` before Python 3.13, it never forgets that it was cancelled while the others were ending because
    of an error: who serves in a loop would begin anew, and live for ever.
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
        raise BaseExceptionGroup("what was done together has failed", errors)


def _errors(tasks: list[asyncio.Task[None]]) -> list[BaseException]:
    ended = [task for task in tasks if task.done() and not task.cancelled()]
    return [error for task in ended if (error := task.exception()) is not None]
