"""The schedules slice on this engine: its writing operations, repairs, retention, readers and transactions.

Each writing operation runs in transactions that are small enough for one multi.

A repair is of rows that no transaction could update: possible candidates are listed, and each is repaired in a transaction.

Retention deletes old rows of histories, each schedule in a transaction of its own; see ``retention``. A transaction locks a
schedule and those that it runs after. A transaction of several schedules would conflict too often.

``mainspring.schedules.unit`` computes the effects of a fire time from the nodes that were read. One multi writes them: the
schedule's new state, the rows of the fire times, their jobs, and the few index nodes that lead to these. There are no locks: a
transaction that conflicts with another reads and computes again.

Rows that other engines lock are *written* here, with the version that was read (``Transaction.touch``). So of two transactions
that lock the same schedule only one commits. No version guards the children of a node. Rows found by a list are therefore
either protected by the write of a schedule that was locked before, or read again by their path. A family, which is schedules
related by parents, is locked by its first member. The end of a run without effects, the most frequent case, locks nothing: the
transaction that ends a run writes its row.

A job that ends is settled in the multi of its consequences (``ending``), each job by itself, however many end in one group.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.zookeeper import paths, queries, schedule_tables
from mainspring.engines.zookeeper import schedule_places as places
from mainspring.engines.zookeeper.schedule_places import RepairMark, Specifications
from mainspring.engines.zookeeper.schedule_tables import OldRows, Repairs, ZookeeperSchedules, most_rows
from mainspring.engines.zookeeper.sessions import Handlers, Readers, Session, one_by_one
from mainspring.engines.zookeeper.transaction import Transacted, transact, transact_all
from mainspring.errors import UsageError
from mainspring.ids import TERM_SPAN
from mainspring.jobs.owners import Ended
from mainspring.jobs.slices import run_alone
from mainspring.queries import LastOutcomes, ListFires, NewestFires
from mainspring.schedules import rules, unit
from mainspring.schedules import store as ops
from mainspring.schedules.reconcile import fault_of
from mainspring.schedules.unit import MIN_ROWS, NAMES_PER_STEP, ScheduleUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.tree import Tree
    from mainspring.storage.engine import Operation

CATCH_UP_TRANSACTIONS: Final = 1000
"""Transactions that bring schedules up to date before a change. Further fire times are left to the regular firing."""


async def run_writes(session: Session, operation: Operation) -> Any:
    """Run an operation that is one transaction."""
    return await transact(session, ZookeeperSchedules, partial(_work, operation))


async def trigger(session: Session, operation: ops.TriggerSchedule) -> Any:
    """Run schedules by hand; see ``TriggerSchedule``. Schedules that other nodes have just added are included."""
    await session.retry_reads(lambda: session.memory(Specifications).now(fresh=True))
    return await run_writes(session, operation)


# ---- firing ----


async def fire(session: Session, operation: ops.FireSchedules) -> dict[str, ops.Fired]:
    """Fire due schedules: families concurrently, each in a transaction of its own; see ``FireSchedules``."""
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


async def save(session: Session, operation: ops.SaveSchedules) -> ops.Saved:
    """Change schedules; see ``SaveSchedules``.

    More changes than fit into one multi (about 300) are checked at once, and then made in their order, some at a time. If
    another change comes in between, or the node dies, only the first of them are made.
    """
    now_us = operation.now_us
    await _catch_up(session, [change.name for change in operation.changes if change.kind == "put"], now_us)
    portions = [
        ops.SaveSchedules(some, now_us, spans=operation.spans) for some in schedule_tables.portions(operation.changes)
    ]
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
        found = await session.retry_reads(lambda: places.schedules(session, left))
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
        left = set(await fire(session, ops.FireSchedules(due, now_us)))


async def _far_behind(session: Session, names: set[str], now_us: int) -> list[ops.Due]:
    """Return those of some schedules that have more due fire times than fit into one transaction."""
    stored = await places.schedules(session, sorted(names))
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


ROWS_PER_TRANSACTION = 50
"""Rows of one family that are repaired in one transaction."""


async def repair(session: Session, operation: ops.RepairSchedules) -> int:
    """Repair rows; see ``RepairSchedules``."""
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
        if repaired < operation.limit:
            repaired += await _repair_family(session, families[name], ends, operation.now_us)
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
        begin = partial(ZookeeperSchedules, repairs=share)
        repaired += await transact(session, begin, partial(_work, ops.RepairSchedules(now_us)))
    return repaired


async def _ends(session: Session, ids: set[int]) -> dict[int, Ended | None]:
    """Return the ends of those jobs that have ended; None for a job that is no longer stored."""
    located = await queries.read_jobs(session, ids)
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


BLOCKS_READ: Final = 50
"""Blocks of rows that are read at once."""


class ScheduleNames:
    """The schedules with histories, as listed at the start of the current pass."""

    def __init__(self, session: Session) -> None:
        self._tree = session.tree
        self._names: list[str] = []

    async def after(self, name: str) -> list[str]:
        """Return the next names after one."""
        if not name:
            self._names = sorted(map(places.name_of, await self._tree.children(paths.FIRES) or ()))
        first = bisect_right(self._names, name)
        return self._names[first : first + NAMES_PER_STEP]


async def forget(session: Session, operation: ops.ForgetFires) -> ops.Forgotten:
    """Drop old rows; see ``ForgetFires``."""
    before_us, left = operation.before_us, operation.rows
    names = await session.retry_reads(partial(session.memory(ScheduleNames).after, operation.after))
    number, before = 0, operation.after
    for name in names:
        old = await session.retry_reads(partial(oldest, session.tree, name, before_us, left))
        ripe = unit.ripe(old.rows, before_us, operation.now_us)
        dropped = await _forget_one(session, name, operation, left) if ripe else 0
        number += dropped
        left -= len(old.rows)
        if not left:
            return ops.Forgotten(number, before if dropped else name)  # it may have more old rows
        before = name
    return ops.Forgotten(number, before if len(names) == NAMES_PER_STEP else None)


async def _forget_one(session: Session, name: str, operation: ops.ForgetFires, limit: int) -> int:
    before_us = operation.before_us

    async def attempt(tables: ZookeeperSchedules) -> int:
        tables.set_old_rows(name, await oldest(session.tree, name, before_us, limit))
        one = ops.ForgetFires("", before_us, limit, now_us=operation.now_us)
        return (await unit.forget(tables, one)).number

    return await transact(session, ZookeeperSchedules, attempt)


async def oldest(tree: Tree, name: str, before_us: int, limit: int) -> OldRows:
    """Return the oldest rows of a schedule with fire times before a time, except the newest ``retention.MIN_ROWS``."""
    parent = places.fires(name)
    numbers = paths.numbers_of(await tree.children(parent))
    last, stay = await _boundary(tree, parent, numbers)
    times: list[int] = []
    blocks: dict[str, list[int]] = {}
    for number in numbers[: last + 1]:
        if len(times) >= limit or number * places.BLOCK_US >= before_us:
            break
        block = f"{parent}/{number}"
        listed = paths.numbers_of(await tree.children(block))
        old = listed[: max(len(listed) - stay, 0)] if number == numbers[last] else listed
        times += [time for time in old if time < before_us]
        if listed:
            blocks[block] = listed
    rows = await places.read_rows(tree, [(name, time) for time in times[:limit]])
    return OldRows(rows, blocks)


async def _boundary(tree: Tree, parent: str, numbers: Sequence[int]) -> tuple[int, int]:
    """Return the position of the last block with rows that need not stay, and how many of its rows have to; -1: none."""
    stay = MIN_ROWS
    for end in range(len(numbers), 0, -BLOCKS_READ):
        first = max(end - BLOCKS_READ, 0)
        nodes = await tree.get_many([f"{parent}/{number}" for number in numbers[first:end]])
        for place in range(end - 1, first - 1, -1):
            node = nodes[place - first]
            number = 0 if node is None else node.children
            if number > stay:
                return place, stay
            stay -= number
    return -1, 0


class ZookeeperScheduleSlice:
    """See ``engines.zookeeper.session.Slice``."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    handlers: Final[Handlers] = {
        ops.SaveSchedules: one_by_one(save),
        ops.Declare: one_by_one(run_writes),
        ops.RepairSchedules: one_by_one(repair),
        ops.FireSchedules: one_by_one(fire),
        ops.TriggerSchedule: one_by_one(trigger),
        ops.ForgetFires: one_by_one(forget),
        ops.FindDue: one_by_one(places.find_due),
    }
    readers: Final[Readers] = {
        ops.ListSchedules: places.list_schedules,
        ListFires: places.list_fires,
        NewestFires: places.read_newest_fires,
        LastOutcomes: places.last_outcomes,
    }

    async def turns(self, session: Session, keys: Sequence[ops.Key]) -> list[str | None]:
        """Return the family of each run: runs of one family are written one after the other."""
        cache = await session.memory(Specifications).now()
        return [cache.turn(name) if cache.minds_ends(name) else None for name, _ in keys]

    def ground(self, session: Session) -> ZookeeperSchedules:
        """Return an attempt of a transaction."""
        return ZookeeperSchedules(session)

    def unit(self, ground: ZookeeperSchedules) -> ScheduleUnit:
        """Return its unit of work."""
        return ScheduleUnit(ground)
