"""How long clients and workers wait between attempts to reach a server, and who goes on waiting."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from mainspring.client.refusals import why

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mainspring.client.addresses import Address
    from mainspring.client.session import Session
    from mainspring.errors import ServerError

CONNECT_TIMEOUT = 5.0
"""Seconds for one attempt to connect."""

RECONNECT_PATIENCE = 60.0
"""Seconds for which somebody who waits for a job puts up with unreachable servers."""

FIRST_DELAY = 0.05
LAST_DELAY = 2.0


def delays() -> Iterator[float]:
    """Give the seconds to wait before each further attempt: doubling, and spread so that peers do not come at once."""
    delay = FIRST_DELAY
    while True:
        yield delay * random.uniform(0.75, 1.25)  # noqa: S311 - spreads load, guards nothing
        delay = min(delay * 2, LAST_DELAY)


def unreachable(failures: Iterable[tuple[Address, OSError | None]]) -> str:
    """Say which servers could not be reached, and why."""
    reasons = "; ".join(f"{address}: {why(error)}" for address, error in failures)
    return f"no server could be reached ({reasons})"


class ReconnectPolicy:
    """What a client does while no server can be reached.

    Those who wait for jobs go on waiting, for so many seconds since a connection that worked has ended; all others are told at
    once. Times are monotonic.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lost_at = float("-inf")
        self._delays = delays()

    def lost(self, now: float) -> None:
        """A connection that worked has ended."""
        self._lost_at = now
        self._delays = delays()

    def fruitless(self, session: Session, error: ServerError, now: float) -> float | None:
        """Tell whoever is not to go on waiting why; return the seconds before the next attempt, None where nobody waits."""
        session.abandon(error, waits=now - self._lost_at >= self._seconds)
        return next(self._delays) if session.waiting_for_jobs else None
