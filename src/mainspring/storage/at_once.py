"""Running coroutines that never wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, here and now: what is written once for all engines, on one that has nothing to wait for.

    Raises RuntimeError where it does wait.
    """
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError(f"{work!r} waits for something")
