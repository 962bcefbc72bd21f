"""Log lines of a node about failed attempts that no worker logs itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.clock import from_us
from mainspring.jobs.failures import JobFailure
from mainspring.jobs.lost_attempts import NODE_LOST
from mainspring.jobs.rules import Event, Outcome
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.attempt_log import AttemptEnd, AttemptLog
    from mainspring.ids import Handles
    from mainspring.jobs.rules import Settlement

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
        """Log the failed attempts among settlements: see `mainspring.jobs.ends.AttemptsEnded`."""
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
