"""The engine as production runs it, driven until it is quiescent: for suites that check the result of each step.

What a node wants stays open: tasks arrive in parts, and later ones are assigned to it without being asked for. Here a claim is
answered when nothing more arrives for it, and what it wanted is withdrawn before anything else happens.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from mainspring.engines.zookeeper.engine import ZookeeperEngine
from mainspring.engines.zookeeper.ensemble_client import KazooTree
from mainspring.engines.zookeeper.schedule_handlers import ZookeeperScheduleSlice
from mainspring.errors import StoreError
from mainspring.jobs.store import Claim, ClaimRequest
from mainspring.storage.engine import DEFERRED
from mainspring.stores import parse_zookeeper
from tests.zookeeper.memory import MemoryContent, MemoryTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Answer, Committed, Operation

LEASE = 4.0
SLICES = (ZookeeperScheduleSlice(),)
"""The slices that a server registers."""


def in_memory(content: MemoryContent | None = None) -> Callable[[], DrivenEngine]:
    """Return a factory of engines on an ensemble in memory. Nothing is due there: its clock stands before all times."""
    there = content or MemoryContent(now_us=lambda: 0)
    return lambda: DrivenEngine(lambda: MemoryTree(there), slices=SLICES)


def on(url: str) -> Callable[[], DrivenEngine]:
    """Return a factory of engines on a real ensemble."""
    return lambda: DrivenEngine(lambda: KazooTree(parse_zookeeper(url), LEASE), lease=LEASE, slices=SLICES)


class DrivenEngine(ZookeeperEngine):
    """Answers claims with all matching jobs."""

    _driving: asyncio.Task[None] | None = None

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        if any(isinstance(operation, Claim) for operation in group):
            self._driving = asyncio.get_running_loop().create_task(self._drive(group, committed, answer))
        else:
            super().commit(group, committed, answer)

    async def _drive(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        new = asyncio.get_running_loop().create_future
        claims = {place: one for place, one in enumerate(group) if isinstance(one, Claim)}
        late = {place: new() for place in claims}

        def answered(place: int, outcome: Any) -> None:
            if place in late:
                late[place].set_result(outcome)
            else:
                answer(place, outcome)

        with contextlib.suppress(StoreError):  # the group will meet it, too
            await self._open_tree().sync()  # all watches for earlier commits have fired
            for claim in claims.values():
                await self._nothing(claim)  # so the master has listed it, and assigns it in its order
        try:
            outcomes = await self._outcomes(group, answered)
        except StoreError as error:
            committed(error)
            return
        committed([DEFERRED if place in late else outcome for place, outcome in enumerate(outcomes)])
        for place, claim in claims.items():
            jobs = await late[place] if outcomes[place] is DEFERRED else outcomes[place]
            if not isinstance(jobs, StoreError):
                try:
                    jobs = await self._all(claim, jobs)
                except StoreError as error:
                    jobs = error
            answer(place, jobs)

    async def _all(self, claim: Claim, jobs: list[list[Job]]) -> list[list[Job]]:
        """Repeat a claim for its missing jobs until none comes, and withdraw the rest."""
        found = jobs
        while True:
            left = [want._replace(limit=want.limit - len(some)) for want, some in zip(claim.wants, jobs, strict=True)]
            if not any(found) or not any(want.limit for want in left):
                await self._nothing(claim)
                return jobs
            found = await self._claim(claim.term, left)
            for some, more in zip(jobs, found, strict=True):
                some += more

    async def _nothing(self, claim: Claim) -> None:
        """Withdraw the requests for a claim's functions, and wait until the master has read that."""
        if claim.wants:
            await self._claim(claim.term, [want._replace(limit=0) for want in claim.wants])

    async def _claim(self, term: int, wants: list[ClaimRequest]) -> list[list[Job]]:
        late = asyncio.get_running_loop().create_future()
        (jobs,) = await self._outcomes([Claim(term, wants)], lambda _, outcome: late.set_result(outcome))
        jobs = await late if jobs is DEFERRED else jobs
        if isinstance(jobs, StoreError):
            raise jobs
        return list(jobs)

    async def _outcomes(self, group: Sequence[Operation], answer: Answer) -> Sequence[Any]:
        """Commit a group and return its outcomes; raises the StoreError where it failed."""
        done: asyncio.Future[Sequence[Any] | StoreError] = asyncio.get_running_loop().create_future()
        super().commit(group, done.set_result, answer)
        outcomes = await done
        if isinstance(outcomes, StoreError):
            raise outcomes
        return outcomes
