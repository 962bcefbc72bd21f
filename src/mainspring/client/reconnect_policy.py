"""Reconnects of clients and workers: the delays between attempts, and the requests that survive failed ones."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from mainspring.client.connection_errors import explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mainspring.client.addresses import Address
    from mainspring.client.session import Session
    from mainspring.errors import ServerError

CONNECT_TIMEOUT = 5.0
"""Seconds for one attempt to connect."""

RECONNECT_TIMEOUT = 60.0
"""Seconds without a server after which waits for jobs fail."""

REQUEST_TIMEOUT = 10.0
"""Seconds without an answer after which a request fails; waits for jobs have their own limits."""

FIRST_DELAY = 0.05
"""Seconds of the first delay; each further one is twice as long."""

LAST_DELAY = 2.0
"""Seconds of the longest delay."""


def delays() -> Iterator[float]:
    """Yield the seconds to wait before each further attempt: doubling, and randomized so that peers do not reconnect at once."""
    delay = FIRST_DELAY
    while True:
        yield delay * random.uniform(0.75, 1.25)  # noqa: S311 - spreads load, guards nothing
        delay = min(delay * 2, LAST_DELAY)


def unreachable_message(failures: Iterable[tuple[Address, OSError | None]]) -> str:
    """Return the error message for unreachable servers, with the reasons."""
    reasons = "; ".join(f"{address}: {explain(error)}" for address, error in failures)
    return f"no server could be reached ({reasons})"


class ReconnectPolicy:
    """The rules for pending requests while no server can be reached.

    Waits for jobs fail ``timeout`` seconds after the end of the last working connection; all other requests fail at once.
    Times are monotonic.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lost_at = float("-inf")
        self._delays = delays()

    def connection_lost(self, now: float) -> None:
        """Record that a working connection has ended."""
        self._lost_at = now
        self._delays = delays()

    def connect_failed(self, session: Session, error: ServerError, now: float) -> float | None:
        """Fail the requests that do not wait longer; return the seconds before the next attempt, None if no wait is left."""
        session.abandon(error, waits=now - self._lost_at >= self._timeout)
        return next(self._delays) if session.waiting_for_jobs else None
