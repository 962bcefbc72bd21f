"""What one transaction does to the schedules: it reads what the rules need, asks them, and gathers what they say for one write.

Nothing is decided here: this is the bookkeeping between ``rules`` and ``parents`` and an engine's tables
(``store.ScheduleTables``), once for all engines. Each kind of operation has its module. All of them change a ``Draft``, which is
written at the end, and what follows from a change is in ``consequences``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.schedules import consequences, firing, mending, saving
from mainspring.schedules.draft import Draft
from mainspring.schedules.store import Declare, FireSchedules, MendSchedules, SaveSchedules, TriggerSchedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.jobs.store import Ended
    from mainspring.schedules.store import ScheduleTables
    from mainspring.storage.operation import Operation


async def follow(tables: ScheduleTables, jobs: Sequence[Ended]) -> None:
    """Do what follows for schedules from the ends of jobs."""
    draft = Draft(tables)
    await consequences.ended(draft, jobs)
    await draft.flush()


async def run(tables: ScheduleTables, operation: Operation) -> Any:
    """Run one of the operations that write schedules; returns its outcome."""
    draft = Draft(tables)
    outcome: Any
    match operation:
        case SaveSchedules():
            outcome = await saving.save(draft, operation)
        case FireSchedules():
            outcome = await firing.fire(draft, operation)
        case TriggerSchedule():
            row = await firing.trigger(draft, operation)
            await draft.flush()
            return row and draft.now(row)  # it has its job now
        case MendSchedules():
            outcome = await mending.mend(draft, operation)
        case Declare():
            return await tables.declare(operation.app, operation.digest, operation.now_us)
        case _:
            raise TypeError(f"{operation!r} is none of the operations that write schedules")
    await draft.flush()
    return outcome
