"""Claims: operations that lease stored jobs to a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from mainspring.jobs.model import Job


class ClaimRequest(NamedTuple):
    """The number of jobs of a function that a node requests."""

    function: bytes
    limit: int
    slots: frozenset[int] | None = None
    """Only jobs of these hash slots; None means all."""
    overdue_us: int = 0
    """Jobs that were created or due before this time are claimed whatever their slot."""


class Claim(Operation):
    """Lease due jobs to a term, in the order of priority and then of age.

    On a shared store the order is approximate, and the claim skips jobs that another node is claiming.
    Outcome: ``list[list[Job]]``: for each request, the whole jobs, in order.
    """

    __slots__ = ("term", "wants")

    phase = Phase.CLAIM

    def __init__(
        self,
        term: int,
        wants: list[ClaimRequest],
    ) -> None:
        super().__init__()
        self.term = term
        self.wants = wants
        self.rows = sum(want.limit for want in wants)


class ClaimByKey(Operation):
    """Lease due jobs of one function to a term, by priority, and within a priority in rotation over the keys.

    In each priority the claim visits the keys in their order, from the first key after ``after`` (None: from the first key) and
    once around. It takes up to ``per_key`` jobs of each key, oldest first, and none of the keys in ``enough``. The cost of a key
    does not depend on its number of jobs. ``slots`` and ``overdue_us`` are those of ``ClaimRequest``. On a store that shares by
    slots, the claim may skip jobs of other slots after it has read them. With ``concurrency``, the number of tokens of each key,
    a claim of a shared store takes no job of a key whose tokens other nodes hold: they run it. Outcome: ``ClaimedByKey``.
    """

    __slots__ = ("after", "concurrency", "enough", "function", "limit", "overdue_us", "per_key", "slots", "term")

    phase = Phase.CLAIM

    def __init__(
        self,
        term: int,
        want: ClaimRequest,
        per_key: int,
        after: After,
        enough: frozenset[bytes],
        concurrency: int | None = None,
    ) -> None:
        super().__init__()
        self.term = term
        self.function, self.limit, self.slots, self.overdue_us = want
        self.per_key = per_key
        self.after = after
        self.enough = enough
        self.concurrency = concurrency
        self.rows = want.limit


After = tuple[bytes | None, bytes | None, bytes | None]
"""For each priority, the last key that a claim visited."""


class ClaimedByKey(NamedTuple):
    """The outcome of ClaimByKey."""

    jobs: list[Job]
    """Whole jobs, in the order of the visit."""
    after: After
    """Where the next claim continues."""
    more: bool
    """Whether the claim ended at its limit of jobs or of keys."""
    skipped: frozenset[bytes] = frozenset()
    """The keys of ``enough`` that have jobs in the store. A store with one node may leave them out: the node counts its jobs."""


KEYS_PER_CLAIM = 1000
"""The most keys that a claim visits in one priority."""
