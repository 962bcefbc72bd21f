"""Whether a node's store takes what is written, and what the log has of it where it does not.

A group that fails makes the node unready, and only a `Probe` that is committed makes it ready again: another group may be smaller
than the one that failed, or write elsewhere. So a node that gets no jobs because it is not ready finds out by itself that the
cause is gone. While all is well nothing is probed: an idle node writes nothing.
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

LATE: Final = 5.0
"""Seconds without an answer from the store after which a node is not ready. A large group on a slow disk takes less."""
PROBE_EVERY: Final = 1.0
"""Seconds between two probes of a store that refuses groups."""
TELL_LOCKED: Final = 1.0
"""Seconds for which another program may lock the store before the log says so."""

log = structlog.get_logger("mainspring.node")


class StoreWatch:
    """Looks at what becomes of a node's groups. ``broken`` is called where no group can succeed any more."""

    def __init__(self, monotonic: Callable[[], float], *, broken: Callable[[StoreError], None]) -> None:
        self._monotonic = monotonic
        self._broken = broken
        now = monotonic()
        self._limit = CauseLimit()
        self._failed: StoreError | None = None
        """Why the last group was refused, until a probe is committed."""
        self._failed_at = now
        """Since when."""
        self._refused = 0
        """How many groups were refused since then."""
        self._refused_ever = 0
        self._is_probing = False
        self._probed_at = now - PROBE_EVERY
        self._answered = 0
        self._answered_at = now
        """When the store was last seen to have answered, or to have been asked nothing."""

    def failed(self, error: StoreError) -> None:
        """Nothing of a group was committed."""
        if isinstance(error, StoreFencedError):
            return  # the node's part in the fleet goes on under another term
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
        if self._limit.allows(cause, now):
            log.error("the store refused a group", error=cause, refused=self._refused)

    def read_failed(self, error: StoreError) -> None:
        """A query was not answered: one that found no way to the store says nothing of groups, one that found it damaged does."""
        if isinstance(error, (StoreBrokenError, StoreCorruptError)):
            self._broken(error)

    def look(self, commits: CommitQueue) -> None:
        """Do what is due: to be called several times a second, with the queue that calls ``failed``."""
        now = self._monotonic()
        silent = self._silent(commits, now)
        locked = commits.locked
        if locked is not None and silent >= TELL_LOCKED:
            cause = str(locked)
            if self._limit.allows(cause, now):
                log.warning("the store is locked: what is written waits, and is refused after 5 s", error=cause)
        if self._failed is not None and not self._is_probing and now - self._probed_at >= PROBE_EVERY:
            self._is_probing = True
            self._probed_at = now
            commits.put(Probe(), lambda _: self._recovered(), lambda _: self._probe_failed())

    def ready(self, commits: CommitQueue) -> bool:
        """Tell whether what is written now is likely to be committed soon."""
        return self._failed is None and self._silent(commits, self._monotonic()) < LATE

    def _silent(self, commits: CommitQueue, now: float) -> float:
        """Return for how many seconds the store has not answered what it was asked."""
        if commits.idle or commits.answered != self._answered:
            self._answered, self._answered_at = commits.answered, now
        return now - self._answered_at

    def metrics(self) -> Iterable[Measure]:
        """Return the figures of this moment."""
        text = "Groups that the store refused."
        yield Measure("mainspring_commits_refused_total", "counter", text, [({}, float(self._refused_ever))])

    def _recovered(self) -> None:
        self._is_probing = False
        self._failed = None
        now = self._probed_at
        if self._limit.allows("again", now):
            log.info("the store commits again", refused=self._refused, seconds=round(now - self._failed_at, 1))

    def _probe_failed(self) -> None:
        self._is_probing = False
