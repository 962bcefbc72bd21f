"""Leases of new jobs by the claims of their own group: such a job is written once, and not first as a waiting one.

Under load, most groups store jobs and claim jobs of the same function. Their claims run before their submits. Places that the
store leaves free are filled with new jobs, in the order of a claim.

A claim that gets fewer jobs than it has asked for tells the node that no more wait. So no new job may be left waiting behind such
a claim: claims come first only if they take any job of their functions, and `NewLeases.fill` claims once more if new jobs had to
wait for others that were not stored, because they have joined another job.
"""

from __future__ import annotations

import copy
from operator import attrgetter
from typing import TYPE_CHECKING

from mainspring.engines.postgres import claiming
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.storage.engine import Plan

_PENDING, _LEASED = int(State.PENDING), int(State.LEASED)
_BLOCKERS = (ops.ClaimByKey, ops.DrainInbox)
"""Operations that depend on the usual order of the phases."""
_by_priority = attrgetter("priority")
_by_age = attrgetter("priority", "id")


class _Request:
    """A request that the store has not filled."""

    __slots__ = ("claimed", "function", "left", "new", "term", "wanted")

    def __init__(self, function: int, wanted: ops.ClaimRequest, term: int, claimed: list[Job]) -> None:
        self.function = function
        self.wanted = wanted
        self.term = term
        self.claimed = claimed
        """Its outcome, which new jobs are added to."""
        self.left = wanted.limit - len(claimed)
        self.new: list[Job] = []

    async def fill(self, tx: Transaction, *, more: bool) -> None:
        """Add the stored jobs to the outcome; ``more``: claim other new jobs, too."""
        self.claimed += sorted(self.new, key=_by_age)
        self.new.clear()
        self.left = self.wanted.limit - len(self.claimed)
        if more and self.left:
            self.claimed += await claiming.claim_more(
                tx, self.term, self.function, self.wanted._replace(limit=self.left)
            )
            self.left = self.wanted.limit - len(self.claimed)
        self.claimed.sort(key=_by_priority)


class NewLeases:
    """The requests of one attempt at a group that new jobs can fill."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._requests: dict[int, list[_Request]] = {}
        """By function."""
        self._leased: dict[int, _Request] = {}
        """By the ids of new jobs."""
        self._passed: set[int] = set()
        """The functions with new jobs that wait."""

    @property
    def open_requests(self) -> bool:
        """Whether new jobs can fill a request."""
        return bool(self._requests)

    async def come_first(self, plan: Plan) -> bool:
        """Return whether the claims of a group can run before its submits."""
        claims = plan.get(ops.Claim)
        if (
            claims is None
            or not (ops.Submit in plan or ops.SubmitOnce in plan)
            or any(one in plan for one in _BLOCKERS)
        ):
            return False
        wanted = [one for _, operation in claims for one in operation.wants]
        if any(one.slots is not None for one in wanted):
            return False
        functions = {one.function for one in wanted}
        await self._tx.functions.load(functions)
        return functions <= self._tx.functions.numbers.keys()

    def open(self, claims: Iterable[tuple[int, ops.Claim]], outcomes: Sequence[list[list[Job]]]) -> None:
        """Let new jobs fill what is left of the requests of claims, which have their outcomes at their places."""
        for place, operation in claims:
            for wanted, claimed in zip(operation.wants, outcomes[place], strict=True):
                if len(claimed) < wanted.limit:
                    function = self._tx.functions.numbers[wanted.function]
                    self._requests.setdefault(function, []).append(_Request(function, wanted, operation.term, claimed))

    def lease(self, jobs: Sequence[Job], functions: Sequence[int]) -> Sequence[Job]:
        """Return new jobs as they are stored. Those that fill a request are leased copies: another attempt may let them wait."""
        if not self._requests:
            return jobs
        stored = list(jobs)
        for at in sorted(range(len(jobs)), key=lambda at: _by_age(jobs[at])):
            if jobs[at].state == _PENDING:
                for one in self._requests.get(functions[at], ()):
                    if one.left:
                        one.left -= 1
                        leased = stored[at] = copy.copy(jobs[at])
                        leased.state, leased.term = _LEASED, one.term
                        self._leased[leased.id] = one
                        break
        return stored

    def stored(self, job: Job, function: int) -> None:
        """Note that a new job was stored, and has not joined another one."""
        one = self._leased.get(job.id)
        if one is not None:
            one.new.append(job)
        elif job.state == _PENDING and function in self._requests:
            self._passed.add(function)

    async def fill(self) -> None:
        """Add the new jobs to the outcomes of the claims."""
        for function, requests in self._requests.items():
            for one in requests:
                await one.fill(self._tx, more=function in self._passed)
