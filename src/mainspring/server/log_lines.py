"""Log lines of a node about jobs in trouble: failed attempts that no worker logs, and functions without workers.

A function with pending jobs and no worker has a misspelt name, or its workers were never started.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from mainspring.clock import from_us
from mainspring.jobs.model import JobFailure
from mainspring.jobs.rules import Event, Outcome
from mainspring.jobs.settlement_records import NODE_LOST
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.ids import Handles
    from mainspring.jobs.function_index import Registered
    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.rules import Settlement
    from mainspring.log_limit import AttemptEnd, AttemptLog

HOW_LOGGED: Final[dict[Outcome, AttemptEnd]] = {
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "timed out",
    Outcome.LOST: "lost",
}
GIVEN_UP: Final[AttemptEnd] = "given up"
"""The job ended without another attempt: its last one was lost with a node and has a line already."""

UNDECIDED: Final = "unknown"
"""The job is back in its queue; the next node that claims it decides whether its policy allows another attempt."""

_SUCCEEDED: Final = Outcome.SUCCEEDED

_failure = msgspec.json.Decoder(JobFailure).decode


class FailedAttempts:
    """Logs attempts that timed out or were lost, and failed ones of plain workers. ``wall`` returns seconds since 1970."""

    def __init__(self, log: AttemptLog, handles: Handles, wall: Callable[[], float]) -> None:
        self._log = log
        self._handles = handles
        self._wall = wall

    def ended(self, settlements: Sequence[Settlement]) -> None:
        """Log the failed attempts among settlements: see `mainspring.jobs.settlement.AttemptsEnded`."""
        for settlement in settlements:
            outcome = settlement.outcome
            if outcome is _SUCCEEDED or settlement.reported:
                continue
            if outcome is not None:
                how = HOW_LOGGED.get(outcome)
                if how is not None:
                    self._write(how, settlement)
            elif settlement.event is Event.FAIL:
                self._write(GIVEN_UP, settlement)

    def _write(self, how: AttemptEnd, settlement: Settlement) -> None:
        job = settlement.job
        function = function_text(job.function)
        if not self._log.allows(function):
            return
        next_retry: float | str | None = None
        if settlement.event is Event.RETRY:
            next_retry = from_us(settlement.due_us)
        elif settlement.event is Event.LOSE:
            next_retry = UNDECIDED if settlement.why == NODE_LOST else self._wall()
        error = settlement.why
        if not error:
            failed = _failure(settlement.error)
            error = f"{failed.type}: {failed.message}"
        attempt = settlement.counted + settlement.suspected  # a suspected attempt does not count, but has a number
        self._log.write(how, function, self._handles.of(job.id).decode(), attempt, error, next_retry)


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
