"""Logs functions that have waiting jobs and no worker: a misspelt name, or workers that were never started."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.registered import Registered

GRACE: Final = 2.0
"""Seconds for which jobs wait without a worker before a line is logged: workers that reconnect take no longer."""
EVERY: Final = 60.0
"""Seconds between two lines about one function."""
MOST: Final = 20
"""Functions with a line of their own in any time of `EVERY`; the others are counted in one line."""

log = structlog.get_logger("mainspring.node")


class Unserved:
    """Looks for functions that have waiting jobs and no worker at any node, among those that ``functions`` returns.

    ``mine`` says whether a function is this node's to log: in a fleet each has one node that does. ``grace`` is in seconds; in a
    fleet it is longer than the time between two heartbeats, which is how old the knowledge of other nodes' workers may be.
    """

    def __init__(
        self,
        functions: Callable[[], Iterable[FunctionQueue]],
        registered: Registered,
        *,
        mine: Callable[[str], bool],
        grace: float = GRACE,
    ) -> None:
        self._functions = functions
        self._registered = registered
        self._mine = mine
        self._grace = grace
        self._since: dict[bytes, float] = {}
        """Monotonic times since when functions with waiting jobs had no worker."""
        self._logged: dict[bytes, float] = {}
        """Monotonic times of the last lines, as long as these are younger than `EVERY`."""
        self._counted = float("-inf")
        """Monotonic time of the last line that counted functions without a line of their own."""

    def look(self, now: float) -> None:
        """Log what is due at a monotonic time; to be called every second or so."""
        found = [queue for queue in self._functions() if not queue.workers and queue.waits()]
        found = [queue for queue in found if self._registered.has(queue.name) is False]
        self._since = {queue.name: self._since.get(queue.name, now) for queue in found}
        self._logged = {name: at for name, at in self._logged.items() if now - at < EVERY}
        due = [queue for queue in found if self._is_due(queue, now)]
        room = MOST - len(self._logged)
        for queue in heapq.nlargest(room, due, key=lambda queue: queue.waiting()):
            self._logged[queue.name] = now
            log.warning("jobs wait for a function without a worker", function=_shown(queue.name), jobs=queue.waiting())
        if len(due) > room and now - self._counted >= EVERY:
            self._counted = now
            log.warning("jobs wait for more functions without a worker", functions=len(due) - room)

    def _is_due(self, queue: FunctionQueue, now: float) -> bool:
        name = queue.name
        return name not in self._logged and now - self._since[name] >= self._grace and self._mine(_shown(name))


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
