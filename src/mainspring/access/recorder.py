"""A node's part in the audit: it records acts and refusals, and reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from mainspring.access.audit import RecordActs
from mainspring.storage.reads import always

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.acts import Act
    from mainspring.access.audit import ListActs, Recorded
    from mainspring.errors import StoreError
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.query import Page
    from mainspring.storage.reads import Reads

REFUSALS_PER_MINUTE: Final = 60
"""Refusals of callers with a name that a node records in a minute; it counts the others."""
UNKNOWN_PER_MINUTE: Final = 10
"""The same of callers without a name."""

log = structlog.get_logger("mainspring.access")


class ActRecorder:
    """Records acts that no operation of their own records. ``now`` is the monotonic time."""

    def __init__(self, commits: CommitQueue, reads: Reads, now: float) -> None:
        self._commits = commits
        self._reads = reads
        self._refusals_since = now
        self._refusals = [0, 0]
        """Recorded in this minute: of callers without a name, and with one."""
        self._left_out = 0

    def list_acts(
        self,
        query: ListActs,
        done: Callable[[Page[Recorded]], None],
        failed: Callable[[StoreError], None],
        wanted: Callable[[], bool] = always,
    ) -> None:
        """Read a part of the audit: its page may have fewer acts than the query wants, and a place where the next one begins."""
        self._reads.ask(query, done, failed, wanted)

    def record(self, act: Act, done: Callable[[None], None], failed: Callable[[StoreError], None]) -> None:
        """Record an act that changes nothing else, such as a mark."""
        self._commits.put(RecordActs([act]), done, failed)

    def refused(self, act: Act) -> None:
        """Record a refusal, unless `REFUSALS_PER_MINUTE` were recorded: clients can cause any number.

        Callers without a name have a count of their own, so that they cannot displace the refusals of those with one.
        """
        is_known = bool(act.who)
        if self._refusals[is_known] >= (REFUSALS_PER_MINUTE if is_known else UNKNOWN_PER_MINUTE):
            self._left_out += 1
            return
        self._refusals[is_known] += 1
        operation = RecordActs([act])
        operation.urgent = False
        self._commits.put(operation)

    def tick(self, now: float) -> None:
        """Begin another minute of refusals when one is over; called with the monotonic time."""
        if now - self._refusals_since >= 60.0:
            if self._left_out:
                log.warning("refusals are not in the audit", left_out=self._left_out, recorded=sum(self._refusals))
            self._refusals_since, self._refusals, self._left_out = now, [0, 0], 0
