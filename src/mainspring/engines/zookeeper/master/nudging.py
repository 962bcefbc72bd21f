"""Nodes are told of pending tasks that nobody has asked for: at once, and again later and later while nobody does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.events.relay import Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.engines.zookeeper.master.workers import Worker
    from mainspring.events.relay import Message

FIRST: Final = 0.05
"""Seconds until a function is told of again, doubled each time."""
LONGEST: Final = 5.0


class Nudges:
    """When which function is to be told of. Times are seconds of the loop's clock."""

    def __init__(self, tell: Callable[[int, Message], None]) -> None:
        self._tell = tell
        self._due: dict[bytes, tuple[float, float]] = {}
        """Of each function that waits for nobody: when it is told of next, and how long to wait after that."""

    def times(self) -> list[float]:
        """Return when there is something to tell."""
        return [due for due, _ in self._due.values()]

    def tell(self, waiting: set[bytes], workers: Iterable[Worker], now: float) -> None:
        """Tell all workers of the functions of what waits for nobody: who serves which, their rows say late."""
        for function in self._due.keys() - waiting:
            del self._due[function]
        due = [function for function in waiting if self._due.get(function, (now, FIRST))[0] <= now]
        for function in due:
            pause = self._due.get(function, (now, FIRST))[1]
            self._due[function] = now + pause, min(pause * 2, LONGEST)
        for worker in workers if due else ():
            if not worker.draining:
                self._tell(worker.term, Pending(sorted(due)))
