"""The retention of histories: old rows are deleted, each schedule in a transaction of its own; see ``retention``.

A transaction locks a schedule and those that it runs after. A transaction of several schedules would conflict too often.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.schedules import contents, places
from mainspring.engines.zookeeper.schedules.findings import OldRows
from mainspring.engines.zookeeper.schedules.tables import ZookeeperSchedules
from mainspring.engines.zookeeper.transacting import transact
from mainspring.schedules import retention
from mainspring.schedules import store as ops
from mainspring.schedules.retention import MIN_ROWS, NAMES_PER_STEP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.session import Session
    from mainspring.engines.zookeeper.tree import Tree

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


async def forget(session: Session, operations: Sequence[ops.ForgetFires]) -> list[ops.Forgotten]:
    """Drop old rows; see ``ForgetFires``."""
    return [await _forget(session, operation) for operation in operations]


async def _forget(session: Session, operation: ops.ForgetFires) -> ops.Forgotten:
    before_us, left = operation.before_us, operation.rows
    names = await session.retry_reads(partial(session.memory(ScheduleNames).after, operation.after))
    number, before = 0, operation.after
    for name in names:
        old = await session.retry_reads(partial(oldest, session.tree, name, before_us, left))
        ripe = retention.ripe(old.rows, before_us, operation.now_us)
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
        return (await retention.forget(tables, one)).number

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
    found = await tree.get_many([places.row(name, time) for time in times[:limit]])
    rows = [
        contents.decode_row(name, time, node.data).fire
        for time, node in zip(times, found, strict=False)
        if node is not None
    ]
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
