"""A node's part in the audit: it records acts and refusals, and reads them."""

from __future__ import annotations

from collections import Counter
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
"""Refusals of one caller with a name that a node records in a minute; it counts the others."""
UNKNOWN_PER_MINUTE: Final = 10
"""The same of callers without a name, from one address."""
ALL_PER_MINUTE: Final = 10 * REFUSALS_PER_MINUTE
"""Refusals of all callers with a name."""
ALL_UNKNOWN_PER_MINUTE: Final = 10 * UNKNOWN_PER_MINUTE
"""Those of all callers without a name."""


log = structlog.get_logger("mainspring.access")


class _Quota:
    """The refusals that are recorded in a minute: at most ``most`` of one origin, and ``of_all`` of all together."""

    def __init__(self, most: int, of_all: int) -> None:
        self._most = most
        self._of_all = of_all
        self._recorded: Counter[str] = Counter()

    def take(self, origin: str) -> bool:
        """Count a refusal of an origin; return False if it is not recorded."""
        if self._recorded[origin] >= self._most or self._recorded.total() >= self._of_all:
            return False
        self._recorded[origin] += 1
        return True

    def renew(self) -> int:
        """Begin another minute; return how many were recorded in the last one."""
        recorded, self._recorded = self._recorded.total(), Counter()
        return recorded


class ActRecorder:
    """Records acts that no operation of their own records. ``now`` is the monotonic time."""

    def __init__(self, commits: CommitQueue, reads: Reads, now: float) -> None:
        self._commits = commits
        self._reads = reads
        self._refusals_since = now
        self._callers = _Quota(REFUSALS_PER_MINUTE, ALL_PER_MINUTE)
        self._addresses = _Quota(UNKNOWN_PER_MINUTE, ALL_UNKNOWN_PER_MINUTE)
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
        """Record a refusal, unless the quota of its caller is used up: clients can cause any number.

        Each caller has its own quota, so that one cannot hide the refusals of others.
        """
        if not (self._callers.take(act.token or act.who) if act.who else self._addresses.take(act.address)):
            self._left_out += 1
            return
        operation = RecordActs([act])
        operation.urgent = False
        self._commits.put(operation)

    def tick(self, now: float) -> None:
        """Begin another minute of refusals when one is over; called with the monotonic time."""
        if now - self._refusals_since >= 60.0:
            recorded = self._callers.renew() + self._addresses.renew()
            if self._left_out:
                log.warning("refusals are not in the audit", left_out=self._left_out, recorded=recorded)
            self._refusals_since, self._left_out = now, 0
