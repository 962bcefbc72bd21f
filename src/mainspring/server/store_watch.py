"""A watch over a node's store: whether it commits groups, and log lines if it does not.

A failed group makes the node unready, and only a committed `Probe` makes it ready again: another group may succeed because it
is smaller or writes elsewhere. An unready node gets no jobs, so it probes the store itself once a second. A ready node does
not probe: an idle node writes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from mainspring.errors import StoreBrokenError, StoreCorruptError, StoreFencedError
from mainspring.faces.http.figures import Measure
from mainspring.log_limit import CauseLimit
from mainspring.storage.operation import Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.errors import StoreError
    from mainspring.storage.commit_queue import CommitQueue

UNREADY_AFTER: Final = 5.0
"""Seconds without an answer from the store after which a node is unready. A large group on a slow disk takes less."""
PROBE_INTERVAL: Final = 1.0
"""Seconds between two probes of a store that refuses groups."""
LOG_LOCK_AFTER: Final = 1.0
"""Seconds for which another program may lock the store before a log line reports it."""

log = structlog.get_logger("mainspring.node")


class StoreWatch:
    """Watches the results of a node's groups. It calls ``broken`` if no group can succeed any more."""

    def __init__(self, monotonic: Callable[[], float], *, broken: Callable[[StoreError], None]) -> None:
        self._monotonic = monotonic
        self._broken = broken
        now = monotonic()
        self._limit = CauseLimit()
        self._failed: StoreError | None = None
        """The error of the last refused group, until a probe is committed."""
        self._failed_at = now
        """The monotonic time of the first refused group since the last success."""
        self._refused = 0
        """The number of groups refused since then."""
        self._refused_ever = 0
        self._is_probing = False
        self._probed_at = now - PROBE_INTERVAL
        self._answered = 0
        self._answered_at = now
        """The monotonic time at which the store had last answered, or had no request."""

    def failed(self, error: StoreError) -> None:
        """Record that a group was not committed."""
        if isinstance(error, (StoreBrokenError, StoreCorruptError)):
            self._broken(error)
            return
        now = self._monotonic()
        if self._failed is None:
            self._failed_at = now
            self._refused = 0
        self._failed = error
        self._refused += 1
        self._refused_ever += 1
        cause = str(error)
        if isinstance(error, StoreFencedError):
            return  # the fleet begins another term and logs that; until a group of it is committed, the node is unready
        if self._limit.allows(cause, now):
            log.error("the store refused a group", error=cause, refused=self._refused)

    def read_failed(self, error: StoreError) -> None:
        """Report a damaged store that a query has found. A query that did not reach the store proves nothing about groups."""
        if isinstance(error, (StoreBrokenError, StoreCorruptError)):
            self._broken(error)

    def check(self, commits: CommitQueue) -> None:
        """Log a locked store, and probe a refusing one. The node calls this several times a second with its queue."""
        now = self._monotonic()
        silent = self._silent(commits, now)
        locked = commits.locked
        if locked is not None and silent >= LOG_LOCK_AFTER:
            cause = str(locked)
            if self._limit.allows(cause, now):
                log.warning("the store is locked: writes wait, and are refused after 5 s", error=cause)
        if self._failed is not None and not self._is_probing and now - self._probed_at >= PROBE_INTERVAL:
            self._is_probing = True
            self._probed_at = now
            commits.put(Probe(), lambda _: self._recovered(), lambda _: self._probe_failed())

    def ready(self, commits: CommitQueue) -> bool:
        """Return whether the store can be expected to commit the next group soon."""
        return self._failed is None and self._silent(commits, self._monotonic()) < UNREADY_AFTER

    def _silent(self, commits: CommitQueue, now: float) -> float:
        """Return for how many seconds the store has not answered its requests."""
        if commits.idle or commits.answered != self._answered:
            self._answered, self._answered_at = commits.answered, now
        return now - self._answered_at

    def metrics(self) -> Iterable[Measure]:
        """Return the current measures."""
        text = "Groups that the store refused."
        yield Measure("mainspring_commits_refused_total", "counter", text, [({}, float(self._refused_ever))])

    def _recovered(self) -> None:
        self._is_probing = False
        self._failed = None
        now = self._probed_at
        if self._limit.allows("recovered", now):
            log.info("the store commits again", refused=self._refused, seconds=round(now - self._failed_at, 1))

    def _probe_failed(self) -> None:
        self._is_probing = False
