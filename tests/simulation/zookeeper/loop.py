"""A loop whose time is its own: where nothing is ready, it is the next timer's time at once."""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

OWNER: contextvars.ContextVar[object] = contextvars.ContextVar("owner", default=None)
"""Whose task it is: those of a node that is killed end with it."""

LOOK = 1e-8
"""Seconds that a look at the clock takes."""


class StuckError(AssertionError):
    """Everybody waits, and nothing will ever happen."""


class _Leap(selectors.SelectSelector):
    """Waits by letting time pass."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StuckError("everybody waits, and nothing will ever happen")
        self.loop.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop without waiting, and with the tasks of each owner."""

    def __init__(self) -> None:
        selector = _Leap()
        super().__init__(selector)
        selector.loop = self
        self.now = 0.0
        self._owned: dict[object, dict[asyncio.Task[Any], None]] = {}
        self.set_task_factory(self._make)

    def time(self) -> float:
        self.now += LOOK  # who looks at the clock until it is later than something, must see it go on
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
