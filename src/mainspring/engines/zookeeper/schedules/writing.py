"""The schedules' operations that write: each in transactions that are small enough for one multi."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.zookeeper.schedules import reading
from mainspring.engines.zookeeper.schedules.catalogue import Specifications
from mainspring.engines.zookeeper.schedules.transacting import patiently, transact
from mainspring.errors import StoreError, StoreFencedError
from mainspring.schedules import rules, work
from mainspring.schedules import store as ops

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.zookeeper.schedules.catalogue import Known
    from mainspring.engines.zookeeper.session import Session
    from mainspring.storage.operation import Operation

SIDE_BY_SIDE: Final = 100
"""Families that are fired at once."""
CATCH_UP: Final = 1000
"""Transactions by which schedules are brought up to date before they are changed. More is left to their own firing."""
MOST_ROWS: Final = 300
"""Rows of one transaction."""
MOST_BYTES: Final = 300_000
"""What jobs and rows of one transaction may have, about: as JSON some of it takes twice as much."""
ROW: Final = 1_000
"""Bytes of a row, of its job and of what both are found by."""


async def each(session: Session, operations: Sequence[Any], one: Callable[[Session, Any], Awaitable[Any]]) -> list[Any]:
    """Run operations one after the other; one that the store cannot do fails alone."""
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
    return await transact(session, lambda tables: work.run(tables, operation))


async def trigger(session: Session, operations: Sequence[ops.TriggerSchedule]) -> list[Any]:
    """Run schedules by hand; see ``TriggerSchedule``. What others have added just now is known."""
    await patiently(session, lambda: session.memory(Specifications).now(fresh=True))
    return await run(session, operations)


# ---- firing ----


async def fire(session: Session, operations: Sequence[ops.FireSchedules]) -> list[Any]:
    """Decide what is due: families side by side, each in a transaction of its own; see ``FireSchedules``."""
    return await each(session, operations, _fire)


async def _fire(session: Session, operation: ops.FireSchedules) -> dict[str, ops.Fired]:
    known = await patiently(session, session.memory(Specifications).now)
    families: dict[str, list[ops.Due]] = {}
    for one in operation.due:
        families.setdefault(known.turn(one.name), []).append(one)
    turns = asyncio.Semaphore(SIDE_BY_SIDE)

    async def fire_family(due: Sequence[ops.Due]) -> dict[str, ops.Fired]:
        limit = min(operation.limit, _most(known, [one.name for one in due]))
        share = ops.FireSchedules([*due], operation.now_us, _ignore, _ignore, limit)
        async with turns:
            return await _run(session, share)  # type: ignore[no-any-return]

    found: dict[str, ops.Fired] = {}
    for outcome in await asyncio.gather(*map(fire_family, families.values()), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome  # the others have fired all the same
        found |= outcome
    return {one.name: found[one.name] for one in operation.due}


def _most(known: Known, names: Sequence[str]) -> int:
    """Return how many rows of each of some schedules one transaction takes, together with what may follow from each row."""
    graph, schedules = known.catalogue.graph, known.catalogue.schedules
    bytes_each = rows_each = 0
    for name in names:
        following = [schedules[name]] if name in schedules else []
        following += graph.descendants(name)
        rows_each += len(following)
        bytes_each += sum(ROW + len(schedule.args) for schedule in following)
    return max(min(MOST_ROWS // max(rows_each, 1), MOST_BYTES // max(bytes_each, 1)), 1)


# ---- changing ----


async def save(session: Session, operations: Sequence[ops.SaveSchedules]) -> list[Any]:
    """Change schedules; see ``SaveSchedules``."""
    return await each(session, operations, _save)


async def _save(session: Session, operation: ops.SaveSchedules) -> ops.Saved:
    await _catch_up(session, [change.name for change in operation.changes if change.kind == "put"], operation.now_us)
    saved: ops.Saved = await _run(session, operation)
    return saved


async def _catch_up(session: Session, names: Sequence[str], now_us: int) -> None:
    """Decide what is due of schedules that are far behind, in transactions of its own: an edit decides it all at once."""
    left = set(names)
    for _ in range(CATCH_UP):
        due = await patiently(session, partial(_far_behind, session, left, now_us))
        if not due:
            return
        left = set(await _fire(session, ops.FireSchedules(due, now_us, _ignore, _ignore)))


async def _far_behind(session: Session, names: set[str], now_us: int) -> list[ops.Due]:
    """Return those of some schedules of which more is due than fits into one transaction with the others."""
    stored = await reading.schedules(session, sorted(names))
    known = await session.memory(Specifications).now()
    limit = _most(known, [one.schedule.name for one in stored])
    found = []
    for schedule, state in stored:
        step = rules.decide(schedule, state, now_us, live=False, limit=limit)
        if step is not None and step.more:
            found.append(ops.Due(schedule.name, state.version))
    return found


def _ignore(_: object) -> None:
    pass
