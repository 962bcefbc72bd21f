"""Repairs of rows that no transaction could update: possible candidates are listed, and each is repaired in a transaction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainspring.engines.zookeeper import locating
from mainspring.engines.zookeeper.schedules import places
from mainspring.engines.zookeeper.schedules.catalogue import Specifications
from mainspring.engines.zookeeper.schedules.findings import Repairs
from mainspring.engines.zookeeper.schedules.tables import ZookeeperSchedules
from mainspring.engines.zookeeper.transacting import transact
from mainspring.ids import TERM_SPAN
from mainspring.jobs.owners import Ended
from mainspring.jobs.slices import run_alone
from mainspring.schedules import store as ops
from mainspring.schedules.unit import ScheduleUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.schedules.places import RepairMark
    from mainspring.engines.zookeeper.session import Session

ROWS_PER_TRANSACTION = 50
"""Rows of one family that are repaired in one transaction."""


async def repair(session: Session, operations: Sequence[ops.RepairSchedules]) -> list[int]:
    """Repair rows; see ``RepairSchedules``."""
    return [await _repair(session, operation.now_us, operation.limit) for operation in operations]


async def _repair(session: Session, now_us: int, limit: int) -> int:
    found = await session.retry_reads(lambda: _list_candidates(session))
    ends = await _ends(session, {one.job for one in found if one.kind == "j"})
    cache = await session.retry_reads(session.memory(Specifications).now)
    families: dict[str, list[RepairMark]] = {}
    # The joined rows first: the other kinds may wait for their ends.
    for one in sorted(found):
        if one.kind != "j" or one.job in ends:
            families.setdefault(cache.turn(one.name), []).append(one)
    repaired = 0
    for name in sorted(families):
        if repaired < limit:
            repaired += await _repair_family(session, families[name], ends, now_us)
    return repaired


async def _list_candidates(session: Session) -> list[RepairMark]:
    buckets = [f"{places.REPAIRS}/{bucket}" for bucket in places.BUCKETS]
    listed = await asyncio.gather(*map(session.tree.children, buckets))
    return [places.parse_repair_mark(child) for children in listed for child in children or ()]


async def _repair_family(
    session: Session, found: Sequence[RepairMark], ends: dict[int, Ended | None], now_us: int
) -> int:
    repaired = 0
    for first in range(0, len(found), ROWS_PER_TRANSACTION):
        some = found[first : first + ROWS_PER_TRANSACTION]
        share = Repairs(
            joined=[((one.name, one.fire_us), ends[one.job]) for one in some if one.kind == "j"],
            queued=[one.name for one in some if one.kind == "q"],
            stuck=[(one.name, one.fire_us) for one in some if one.kind == "s"],
        )

        async def attempt(tables: ZookeeperSchedules, share: Repairs = share) -> int:
            tables.set_repairs(share)
            number: int = await run_alone(ScheduleUnit(tables), ops.RepairSchedules(now_us))
            return number

        repaired += await transact(session, ZookeeperSchedules, attempt)
    return repaired


async def _ends(session: Session, ids: set[int]) -> dict[int, Ended | None]:
    """Return the ends of those jobs that have ended; None for a job that is no longer stored."""
    located = await locating.look(session, ids)
    ends: dict[int, Ended | None] = {}
    for job_id in ids:
        one = located.get(job_id)
        if one is None:
            ends[job_id] = None
        elif one.state.ended:
            job = one.job()
            ends[job_id] = Ended.of(job)
    await session.meet([end.term * TERM_SPAN for end in ends.values() if end is not None])
    return ends
