"""A loop with virtual time: if nothing is ready, time jumps to the next timer."""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

OWNER: contextvars.ContextVar[object] = contextvars.ContextVar("owner", default=None)
"""The owner of a task: the tasks of a killed node end with it."""

CLOCK_READ_SECONDS = 1e-8
"""Seconds that a read of the clock takes."""


class StuckError(AssertionError):
    """All tasks wait, and no timer is set."""


class _Leap(selectors.SelectSelector):
    """A selector that advances the time instead of waiting."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StuckError("all tasks wait, and no timer is set")
        self.loop.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that does not wait, with the tasks of each owner."""

    def __init__(self) -> None:
        selector = _Leap()
        super().__init__(selector)
        selector.loop = self
        self.now = 0.0
        self._owned: dict[object, dict[asyncio.Task[Any], None]] = {}
        self.set_task_factory(self._make)

    def time(self) -> float:
        self.now += CLOCK_READ_SECONDS  # a loop that polls the clock has to see it advance
        return self.now

    def _make(
        self, _: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **more: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=self, **more)
        owned = self._owned.setdefault(OWNER.get(), {})
        owned[task] = None
        task.add_done_callback(lambda task: owned.pop(task, None))
        return task

    def kill(self, owner: object) -> None:
        """End all tasks of an owner, wherever they are."""
        for task in list(self._owned.get(owner, ())):
            task.cancel()
