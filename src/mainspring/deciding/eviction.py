"""Ends the coroutines of a run that leaves the worker's memory, and frees its memory."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mainspring.deciding.model import Evicted

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.deciding.api import Calls
    from mainspring.deciding.loop import WorkflowLoop

ROUNDS: Final = 100
"""How often the code of a run may catch Evicted and go on."""
_logger = logging.getLogger("mainspring.workflow")


def throw_evicted(loop: WorkflowLoop) -> None:
    """Throw Evicted into each coroutine where it waits, the newest first, until all have ended.

    The tasks stay pending: nothing of a normal end happens, such as callbacks. The coroutines are held until they are closed, so
    that the collector does not end them later, in another thread.
    """
    rounds = ROUNDS
    for task in reversed(list(loop.tasks)):
        coroutine: Any = task.get_coro()
        rounds = _end(partial(task.own_context.run, coroutine.throw, Evicted()), rounds)
        _end(coroutine.close, 1)
    for generator in loop.open_generators():
        closing = generator.aclose()
        rounds = _end(partial(loop.context.run, closing.send, None), rounds)
        _end(closing.close, 1)
    if rounds <= 0:
        _logger.warning(
            "a workflow caught Evicted a hundred times and went on: let BaseException pass, or catch Exception instead"
        )


class _EveryCallback:
    """Equal to every callback."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


_EVERY: Final[Any] = _EveryCallback()


def release(loop: WorkflowLoop, calls: Calls) -> None:
    """Break the cycles among the objects of a run: its memory is then freed at once, without a look of the collector.

    A future refers by its callbacks to the tasks that wait for it, and they refer to the future.
    """
    pending: list[Any] = [*loop.tasks, *loop.gatherings, *calls.close()]
    pending += [task._fut_waiter for task in loop.tasks]  # type: ignore[attr-defined] # noqa: SLF001 - of C and Python tasks
    for future in pending:
        if future is not None:
            future.remove_done_callback(_EVERY)
    loop.close()


def _end(act: Callable[[], object], rounds: int) -> int:
    """Repeat an act until it raises, at most ``rounds`` times. Return the rounds that are left."""
    while rounds > 0:
        rounds -= 1
        try:
            act()
        except BaseException:  # noqa: BLE001 - the coroutine has ended
            break
    del act  # it has Evicted, whose traceback refers to this frame
    return rounds
