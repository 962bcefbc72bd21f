"""Backoff between attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.errors import UsageError

if TYPE_CHECKING:
    from mainspring.jobs.model import Retry


MAX_ATTEMPTS: Final = (1 << 31) - 1
MAX_WAIT: Final = 100 * 366 * 86_400.0


def check(policy: Retry) -> None:
    """Raise UsageError for a policy that is invalid or that a store cannot hold: it would fail its whole group."""
    if (
        not 1 <= policy.max_attempts <= MAX_ATTEMPTS
        or not 0 <= policy.initial < MAX_WAIT
        or policy.factor < 0
        or not 0 <= policy.maximum < MAX_WAIT
        or not 0 <= policy.jitter <= 1
    ):
        raise UsageError(
            f"retry takes max_attempts from 1 to {MAX_ATTEMPTS}, initial and maximum from 0 seconds to a century, factor "
            "from 0, and jitter from 0 to 1"
        )


def backoff(policy: Retry, attempt: int, chance: float) -> float:
    """Return the seconds to wait after a failed attempt (1 is the first).

    ``chance``, from 0 to 1, selects the wait within ``jitter``; 0.5 leaves the wait unchanged.
    """
    try:
        wait = min(policy.initial * policy.factor ** (attempt - 1), policy.maximum)
    except OverflowError:
        wait = policy.maximum
    return max(0.0, wait * (1 + policy.jitter * (2 * chance - 1)))
