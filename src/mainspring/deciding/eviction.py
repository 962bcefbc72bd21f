"""Ends the coroutines of a run that leaves the worker's memory."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mainspring.deciding.model import Evicted

if TYPE_CHECKING:
    from collections.abc import Callable

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


def _end(act: Callable[[], object], rounds: int) -> int:
    """Repeat an act until it raises, at most ``rounds`` times. Return the rounds that are left."""
    while rounds > 0:
        rounds -= 1
        try:
            act()
        except BaseException:  # noqa: BLE001 - the coroutine has ended
            break
    return rounds
