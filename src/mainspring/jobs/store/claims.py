"""How stored jobs come to a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from mainspring.jobs.model import Job


class ClaimRequest(NamedTuple):
    """How many jobs of a function a node would take."""

    function: bytes
    limit: int
    slots: frozenset[int] | None = None
    """Only jobs of these hash slots; None is all of them."""
    overdue_us: int = 0
    """Jobs that were created or due before this time are taken whatever their slot."""


class Claim(Operation):
    """Lease due jobs to a term, in the order of priority and then of age.

    On a shared store the order is approximate, and jobs that another node takes at this moment are passed over.
    Outcome: ``list[list[Job]]``: for each want, the whole jobs, in order.
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
    """Lease due jobs of one function to a term, in the order of priority, and within one by turns of their keys.

    In each priority, keys are met in their order, from the first behind ``after`` (None: from the first of all) round to that
    one. Of each, up to ``per_key`` jobs are taken, oldest first; of those in ``enough``, none. However many jobs a key has, it
    costs no more than any other key. Slots and ``overdue_us`` are those of ``ClaimRequest``. On a store that
    shares by slots, jobs of other slots may be skipped after those that were read. Outcome: ``ClaimedByKey``.
    """

    __slots__ = ("after", "enough", "function", "limit", "overdue_us", "per_key", "slots", "term")

    phase = Phase.CLAIM

    def __init__(
        self,
        term: int,
        want: ClaimRequest,
        per_key: int,
        after: After,
        enough: frozenset[bytes],
    ) -> None:
        super().__init__()
        self.term = term
        self.function, self.limit, self.slots, self.overdue_us = want
        self.per_key = per_key
        self.after = after
        self.enough = enough
        self.rows = want.limit


After = tuple[bytes | None, bytes | None, bytes | None]
"""For each priority the key with which a claim has ended."""


class ClaimedByKey(NamedTuple):
    """The outcome of ClaimByKey."""

    jobs: list[Job]
    """Whole jobs, in the order in which they were met."""
    after: After
    """Where the next claim goes on."""
    more: bool
    """Whether it ended because it had enough, or had met as many keys as a claim may."""


KEYS_PER_CLAIM = 1000
"""A claim meets no more keys than that in one priority."""
