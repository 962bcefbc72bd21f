"""Notifications to a worker while one of its tasks waits for other jobs.

A worker sets ``waiter`` in the context of each task. Both clients call it when such a wait begins and ends, so that the worker
can run the awaited jobs although tasks hold its places. Outside of tasks, ``waiter`` is None.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Awaited:
    """A job that a task waits for.

    ``refuse`` ends the wait with an error that is raised in the task. It may be called from any thread; it does nothing if the
    wait is over.
    """

    __slots__ = ("handle", "refuse")

    def __init__(self, handle: str, refuse: Callable[[BaseException], None]) -> None:
        self.handle = handle
        self.refuse = refuse


class Waiter(Protocol):
    """A running task that can wait for jobs, on the worker's side.  Called from any thread."""

    def waits(self, awaited: Awaited) -> None:
        """Record that a wait begins."""

    def continues(self, awaited: Awaited) -> None:
        """Record that a wait is over, with or without the job's outcome."""


waiter: Final[ContextVar[Waiter | None]] = ContextVar("mainspring_waiter", default=None)


@contextlib.contextmanager
def announced(handle: str, refuse: Callable[[BaseException], None]) -> Iterator[None]:
    """Notify the worker of this context's task, if there is one, while the block waits for a job."""
    task = waiter.get()
    if task is None:
        yield
        return
    awaited = Awaited(handle, refuse)
    task.waits(awaited)
    try:
        yield
    finally:
        task.continues(awaited)
