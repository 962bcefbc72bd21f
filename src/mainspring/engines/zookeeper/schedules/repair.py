"""What no transaction could see: found by a look at what may have to be mended, and then mended row by row."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainspring.engines.zookeeper import locating
from mainspring.engines.zookeeper.schedules import places
from mainspring.engines.zookeeper.schedules.catalogue import Specifications
from mainspring.engines.zookeeper.schedules.findings import Mended
from mainspring.engines.zookeeper.schedules.tables import ZookeeperSchedules
from mainspring.engines.zookeeper.transacting import transact
from mainspring.ids import TERM_SPAN
from mainspring.jobs.owners import Ended
from mainspring.jobs.slices import run_alone
from mainspring.schedules import store as ops
from mainspring.schedules.unit import ScheduleUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.schedules.places import Mendable
    from mainspring.engines.zookeeper.session import Session

TOGETHER = 50
"""Rows of one family that are mended in one transaction."""


async def mend(session: Session, operations: Sequence[ops.RepairSchedules]) -> list[int]:
    """Put right what no transaction could see; see ``RepairSchedules``. Families side by side, each by turns."""
    return [await _mend(session, operation.now_us, operation.limit) for operation in operations]


async def _mend(session: Session, now_us: int, limit: int) -> int:
    found = await session.patiently(lambda: _look(session))
    ends = await _ends(session, {one.job for one in found if one.kind == "j"})
    known = await session.patiently(session.memory(Specifications).now)
    families: dict[str, list[Mendable]] = {}
    # The rows that have joined first: what they end, the others may wait for.
    for one in sorted(found):
        if one.kind != "j" or one.job in ends:
            families.setdefault(known.turn(one.name), []).append(one)
    mended = 0
    for name in sorted(families):
        if mended < limit:
            mended += await _mend_family(session, families[name], ends, now_us)
    return mended


async def _look(session: Session) -> list[Mendable]:
    buckets = [f"{places.MENDING}/{bucket}" for bucket in places.BUCKETS]
    listed = await asyncio.gather(*map(session.tree.children, buckets))
    return [places.mendable(child) for children in listed for child in children or ()]


async def _mend_family(session: Session, found: Sequence[Mendable], ends: dict[int, Ended | None], now_us: int) -> int:
    mended = 0
    for first in range(0, len(found), TOGETHER):
        some = found[first : first + TOGETHER]
        share = Mended(
            joined=[((one.name, one.fire_us), ends[one.job]) for one in some if one.kind == "j"],
            queued=[one.name for one in some if one.kind == "q"],
            stuck=[(one.name, one.fire_us) for one in some if one.kind == "s"],
        )

        async def attempt(tables: ZookeeperSchedules, share: Mended = share) -> int:
            tables.mend(share)
            number: int = await run_alone(ScheduleUnit(tables), ops.RepairSchedules(now_us))
            return number

        mended += await transact(session, ZookeeperSchedules, attempt)
    return mended


async def _ends(session: Session, ids: set[int]) -> dict[int, Ended | None]:
    """Return those of some jobs that have ended: how; None where a job is no longer kept."""
    seen = await locating.look(session, ids)
    ends: dict[int, Ended | None] = {}
    for job_id in ids:
        one = seen.get(job_id)
        if one is None:
            ends[job_id] = None
        elif one.state.ended:
            job = one.job()
            ends[job_id] = Ended.of(job)
    await session.meet([end.term * TERM_SPAN for end in ends.values() if end is not None])
    return ends
