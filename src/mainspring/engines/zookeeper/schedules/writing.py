"""The schedules' writing operations: each in transactions that are small enough for one multi."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.zookeeper.schedules import reading, sizes
from mainspring.engines.zookeeper.schedules.catalogue import Specifications
from mainspring.engines.zookeeper.schedules.sizes import most_rows
from mainspring.engines.zookeeper.schedules.tables import ZookeeperSchedules
from mainspring.engines.zookeeper.transacting import Transacted, transact, transact_all
from mainspring.errors import StoreError, StoreFencedError, UsageError
from mainspring.jobs.slices import run_alone
from mainspring.schedules import rules
from mainspring.schedules import store as ops
from mainspring.schedules.faults import fault_of
from mainspring.schedules.unit import ScheduleUnit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.zookeeper.session import Session
    from mainspring.storage.operation import Operation

CATCH_UP_TRANSACTIONS: Final = 1000
"""Transactions that bring schedules up to date before a change. Further fire times are left to the regular firing."""


async def each(session: Session, operations: Sequence[Any], one: Callable[[Session, Any], Awaitable[Any]]) -> list[Any]:
    """Run operations one after the other; the error of one does not affect the others."""
    outcomes: list[Any] = []
    for operation in operations:
        try:
            outcomes.append(await one(session, operation))
        except StoreFencedError:
            raise
        except StoreError as error:
            outcomes.append(error)
    return outcomes


async def run(session: Session, operations: Sequence[Operation]) -> list[Any]:
    """Run operations that are one transaction each."""
    return await each(session, operations, _run)


async def _run(session: Session, operation: Operation) -> Any:
    return await transact(session, ZookeeperSchedules, partial(_work, operation))


async def trigger(session: Session, operations: Sequence[ops.TriggerSchedule]) -> list[Any]:
    """Run schedules by hand; see ``TriggerSchedule``. Schedules that other nodes have just added are included."""
    await session.retry_reads(lambda: session.memory(Specifications).now(fresh=True))
    return await run(session, operations)


# ---- firing ----


async def fire(session: Session, operations: Sequence[ops.FireSchedules]) -> list[Any]:
    """Fire due schedules: families concurrently, each in a transaction of its own; see ``FireSchedules``."""
    return await each(session, operations, _fire)


async def _fire(session: Session, operation: ops.FireSchedules) -> dict[str, ops.Fired]:
    specifications = await session.retry_reads(session.memory(Specifications).now)
    began, families = asyncio.get_running_loop().time(), dict[str, list[ops.Due]]()
    for one in operation.due:
        families.setdefault(specifications.turn(one.name), []).append(one)
    parts, shares = [], []
    for due in families.values():
        limit = min(operation.limit, most_rows(specifications.catalogue, [one.name for one in due]))
        share = ops.FireSchedules(due, operation.now_us, limit)
        parts.append(share)
        shares.append(Transacted(ZookeeperSchedules, partial(_work, share)))
    found: dict[str, ops.Fired] = {}
    for outcome in await transact_all(session, shares):
        if isinstance(outcome, Exception):
            raise outcome  # the other families have fired
        found |= outcome
    operation.seconds = asyncio.get_running_loop().time() - began
    operation.fires = sum(one.fires for one in parts)
    return {one.name: found[one.name] for one in operation.due}


async def _work(operation: Operation, tables: ZookeeperSchedules) -> Any:
    return await run_alone(ScheduleUnit(tables), operation)


# ---- changing ----


async def save(session: Session, operations: Sequence[ops.SaveSchedules]) -> list[Any]:
    """Change schedules; see ``SaveSchedules``.

    More changes than fit into one multi (about 300) are checked at once, and then made in their order, some at a time. If
    another change comes in between, or the node dies, only the first of them are made.
    """
    return await each(session, operations, _save)


async def _save(session: Session, operation: ops.SaveSchedules) -> ops.Saved:
    now_us = operation.now_us
    await _catch_up(session, [change.name for change in operation.changes if change.kind == "put"], now_us)
    portions = [ops.SaveSchedules(some, now_us, spans=operation.spans) for some in sizes.portions(operation.changes)]
    saved = ops.Saved({})
    if len(portions) > 1:
        saved = ops.Saved({}, (await transact(session, ZookeeperSchedules, partial(_checked, operation))).error)
    for portion in portions:
        if saved.error is not None:
            break
        changed = await transact(session, ZookeeperSchedules, partial(_saved, portion))
        saved = ops.Saved(saved.schedules | changed.schedules, changed.error)
    left = [change.name for change in operation.changes if change.name not in saved.schedules]
    if left:
        found = await session.retry_reads(lambda: reading.schedules(session, left))
        now = dict.fromkeys(left) | {one.schedule.name: one for one in found}
        saved = ops.Saved(saved.schedules | now, saved.error)
    return saved


async def _saved(operation: ops.SaveSchedules, tables: ZookeeperSchedules) -> ops.Saved:
    try:
        saved: ops.Saved = await run_alone(ScheduleUnit(tables), operation)
    except UsageError as error:
        tables.give_up()
        return ops.Saved({}, error)
    return saved


async def _checked(operation: ops.SaveSchedules, tables: ZookeeperSchedules) -> ops.Saved:
    """Return the result of some changes without making them."""
    saved = await _saved(operation, tables)
    tables.give_up()
    return saved


async def _catch_up(session: Session, names: Sequence[str], now_us: int) -> None:
    """Fire schedules that are far behind in separate transactions: an edit would fire all due times in one."""
    left = set(names)
    for _ in range(CATCH_UP_TRANSACTIONS):
        due = await session.retry_reads(partial(_far_behind, session, left, now_us))
        if not due:
            return
        left = set(await _fire(session, ops.FireSchedules(due, now_us)))


async def _far_behind(session: Session, names: set[str], now_us: int) -> list[ops.Due]:
    """Return those of some schedules that have more due fire times than fit into one transaction."""
    stored = await reading.schedules(session, sorted(names))
    specifications = await session.memory(Specifications).now()
    limit = most_rows(specifications.catalogue, [one.schedule.name for one in stored])
    found = []
    for one in stored:
        if fault_of(one):
            continue
        step = rules.decide(one.schedule, one.state, now_us, live=False, limit=limit)
        if step is not None and step.more:
            found.append(ops.Due(one.schedule.name, one.state.version))
    return found
