"""Running a coroutine that never suspends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def run_synchronously(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result. Engines without I/O run the coroutines that all engines share this way.

    Raises RuntimeError if the coroutine suspends.
    """
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError(f"{work!r} is suspended, and nothing would resume it")
