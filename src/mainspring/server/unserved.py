"""Log lines about functions with pending jobs and no worker: a misspelt name, or workers that were never started."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.registered import Registered

NO_WORKER_GRACE: Final = 2.0
"""Seconds for which jobs may lack a worker before a line is logged: enough for workers to reconnect."""
NO_WORKER_LOG_INTERVAL: Final = 60.0
"""Seconds between two lines about one function."""
MAX_LINES: Final = 20
"""Functions with their own line in any `NO_WORKER_LOG_INTERVAL`; one more line counts the others."""

log = structlog.get_logger("mainspring.node")


class Unserved:
    """Logs functions with pending jobs and no worker at any node, among those that ``functions`` returns.

    ``mine`` returns whether this node logs a function: in a fleet one node logs each. ``grace`` is in seconds. In a fleet it is
    longer than the time between two heartbeats, because the list of other nodes' workers may be that old.
    """

    def __init__(
        self,
        functions: Callable[[], Iterable[FunctionQueue]],
        registered: Registered,
        *,
        mine: Callable[[str], bool],
        grace: float = NO_WORKER_GRACE,
    ) -> None:
        self._functions = functions
        self._registered = registered
        self._mine = mine
        self._grace = grace
        self._since: dict[bytes, float] = {}
        """Monotonic times since which functions with pending jobs have had no worker."""
        self._logged: dict[bytes, float] = {}
        """Monotonic times of the last lines that are younger than `NO_WORKER_LOG_INTERVAL`."""
        self._counted = float("-inf")
        """Monotonic time of the last line that counted the other functions."""

    def check(self, now: float) -> None:
        """Log the functions that are due at a monotonic time; the node calls this about once a second."""
        found = [queue for queue in self._functions() if not queue.workers and queue.waits()]
        found = [queue for queue in found if self._registered.has(queue.name) is False]
        self._since = {queue.name: self._since.get(queue.name, now) for queue in found}
        self._logged = {name: at for name, at in self._logged.items() if now - at < NO_WORKER_LOG_INTERVAL}
        due = [queue for queue in found if self._is_due(queue, now)]
        room = MAX_LINES - len(self._logged)
        for queue in heapq.nlargest(room, due, key=lambda queue: queue.waiting()):
            self._logged[queue.name] = now
            log.warning(
                "jobs wait for a function without a worker", function=function_text(queue.name), jobs=queue.waiting()
            )
        if len(due) > room and now - self._counted >= NO_WORKER_LOG_INTERVAL:
            self._counted = now
            log.warning("jobs wait for more functions without a worker", functions=len(due) - room)

    def _is_due(self, queue: FunctionQueue, now: float) -> bool:
        name = queue.name
        return name not in self._logged and now - self._since[name] >= self._grace and self._mine(function_text(name))
