"""Backoff between attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.jobs.model import Retry


def backoff(policy: Retry, attempt: int, chance: float) -> float:
    """Return the seconds to wait after a failed attempt (1 is the first).

    ``chance``, from 0 to 1, places the wait within ``jitter``: 0.5 leaves it as it is.
    """
    try:
        wait = min(policy.initial * policy.factor ** (attempt - 1), policy.maximum)
    except OverflowError:
        wait = policy.maximum
    return max(0.0, wait * (1 + policy.jitter * (2 * chance - 1)))
