"""The worker's log of failed attempts: those that it reports to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.jobs.model import Retry
from mainspring.jobs.retry import backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.attempt_log import AttemptLog
    from mainspring.worker.current import CurrentJob
    from mainspring.worker.execution import Settlement
    from mainspring.worker.registry import Function

UNKNOWN_RETRY = "unknown"
"""The job has its own retry policy, which this worker's server does not send."""


class _Error(msgspec.Struct):
    type: str
    message: str
    traceback: str | None = None


class _Detail(msgspec.Struct):
    error: _Error
    final: bool = False


_decode = msgspec.json.Decoder(_Detail).decode


class FailedAttempts:
    """The log of failed attempts. ``wall`` returns seconds since 1970; ``tracebacks``: log the tracebacks."""

    def __init__(self, log: AttemptLog, wall: Callable[[], float], *, tracebacks: bool) -> None:
        self._log = log
        self._wall = wall
        self._tracebacks = tracebacks

    def failed(self, job: CurrentJob, function: Function | None, settlement: Settlement) -> None:
        """Log an attempt that is reported as failed. ``function`` is None if this worker does not have the job's function."""
        if not self._log.allows(job.function):
            return
        detail = _decode(settlement.detail)
        self._log.write(
            "failed",
            job.function,
            job.handle,
            job.attempt,
            f"{detail.error.type}: {detail.error.message}",
            None if detail.final else self._next_retry(job, function),
            detail.error.traceback if self._tracebacks else None,
        )

    def _next_retry(self, job: CurrentJob, function: Function | None) -> float | str | None:
        """Return the time of the next attempt, without the jitter, which the server adds; None for a last attempt."""
        info = job.info
        if info.max_attempts is None or info.attempt >= info.max_attempts or job.stop_reason == "cancelled":
            return None
        policy: dict[str, Any] | None = None
        if info.retry is not None:
            policy = msgspec.structs.asdict(info.retry)
        elif function is not None and function.retry is not None:
            policy = function.retry.wire()
        if policy is None or policy["max_attempts"] != info.max_attempts:
            return UNKNOWN_RETRY
        return self._wall() + backoff(Retry(**policy), info.attempt, 0.5)
