"""The surroundings in which workflow code runs."""

from __future__ import annotations

import gc
import sys
from asyncio import _get_running_loop, _set_running_loop
from typing import TYPE_CHECKING, Any

from mainspring.deciding import guards

if TYPE_CHECKING:
    from mainspring.deciding.loop import WorkflowLoop


class Activation:
    """Makes a run's loop the running one for a time, and guards its code.

    It begins in a plain callback of the worker's loop, outside of tasks: CPython has one current task for each thread from 3.14
    on. The collector is off: it would end objects of the workflow at a time that no replay repeats.
    """

    __slots__ = ("_collects", "_hooks", "_loop", "_outer")

    def __init__(self) -> None:
        self._loop: WorkflowLoop | None = None
        self._outer: Any = None
        self._hooks: Any = None
        self._collects = False

    def begin(self, loop: WorkflowLoop) -> None:
        """Begin, unless it has begun."""
        if self._loop is not None:
            return
        self._loop = loop
        self._outer = _get_running_loop()
        self._hooks = sys.get_asyncgen_hooks()
        self._collects = gc.isenabled()
        gc.disable()
        guards.enter()
        _set_running_loop(loop)
        sys.set_asyncgen_hooks(loop.begin_generator, loop.end_generator)
        loop.begin()

    def end(self) -> None:
        """End, if it has begun."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.end()
        guards.leave()
        _set_running_loop(self._outer)
        sys.set_asyncgen_hooks(*self._hooks)
        self._outer = None
        if self._collects:
            gc.enable()
