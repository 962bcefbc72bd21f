"""The schedules' unit of work in one transaction: it reads rows, applies the rules, and collects the results for one write.

Nothing is decided here: this is the bookkeeping between ``rules`` and ``parents`` and an engine's tables
(``store.ScheduleTables``), once for all engines. Each kind of operation has its module. All of them change a
``ScheduleChanges``, which is written at the end; ``consequences`` has what follows from a change.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from mainspring.jobs.owners import Ended
from mainspring.schedules import backfill, consequences, firing, repair, saving
from mainspring.schedules.changes import ScheduleChanges
from mainspring.schedules.model import Fire
from mainspring.schedules.retention import forget
from mainspring.schedules.store import (
    Declare,
    FireSchedules,
    ForgetFires,
    RepairSchedules,
    SaveSchedules,
    TriggerSchedule,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.jobs.owners import Notice
    from mainspring.schedules.past_times import Backfill, Backfilled
    from mainspring.schedules.store import HistoryTables
    from mainspring.storage.operation import Operation
    from mainspring.storage.plan import Plan

KIND: Final = "schedules"
"""The owner of a schedule's jobs."""
FOLLOWS: Final = frozenset({Ended})
WRITES: Final = frozenset({SaveSchedules, Declare, RepairSchedules, FireSchedules, TriggerSchedule, ForgetFires})


class ScheduleUnit:
    """The schedules' part of one transaction: see `jobs.slices.Unit`. ``monotonic`` measures fires."""

    def __init__(self, tables: HistoryTables, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._tables = tables
        self._monotonic = monotonic
        self._fired: list[FireSchedules] = []
        """Operations whose fires are not written."""
        self._draft = ScheduleChanges(tables)

    async def lock(self, plan: Plan) -> None:
        """Lock nothing: the default for engines that run one transaction at a time."""

    async def follow(self, notices: Sequence[Notice]) -> None:
        """Apply the consequences of ended jobs for schedules."""
        await consequences.ended(self._draft, [notice for notice in notices if isinstance(notice, Ended)])

    async def run(self, operation: Operation) -> Callable[[], Any]:
        """Run an operation that writes schedules; return a function that returns its outcome."""
        changes = self._draft
        outcome: Any
        match operation:
            case FireSchedules():
                began = self._monotonic()
                outcome = await firing.fire(changes, operation)
                operation.seconds = self._monotonic() - began
                self._fired.append(operation)
            case TriggerSchedule():
                row = await firing.trigger(changes, operation)
                return lambda: changes.now(row) if isinstance(row, Fire) else row  # the row has its job by then
            case RepairSchedules():
                outcome = await repair.repair(changes, operation)
            case Declare():
                if operation.digest:
                    await self._tables.declare(operation.app, operation.digest, operation.now_us)
                outcome = []
                for app in (operation.app, *operation.others):
                    outcome += await self._tables.declarations(app)
            case SaveSchedules():
                await (
                    self.flush()
                )  # its checks read earlier changes from the tables, and later operations read its changes there
                outcome = await saving.save(self._draft, operation)
                await self.flush()
            case ForgetFires():
                await self.flush()  # it reads the tables
                outcome = await forget(self._tables, operation)
            case _:
                raise TypeError(f"{operation!r} is not an operation that writes schedules")
        return lambda: outcome

    async def backfill(self, step: Backfill) -> Backfilled:
        """Run and write a step of a backfill, in the transaction of the operation that it belongs to."""
        changes = self._draft
        done = await backfill.backfill(changes, step)
        await self.flush()
        return done._replace(rows=[changes.now(row) for row in done.rows])

    async def flush(self) -> None:
        """Write the changes so far, and start with empty ones."""
        changes, self._draft = self._draft, ScheduleChanges(self._tables)
        began = self._monotonic()
        await changes.flush()
        fired, self._fired = self._fired, []
        for operation in fired:
            operation.seconds += (self._monotonic() - began) / len(fired)
