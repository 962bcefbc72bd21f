"""The workflows' unit of work in one transaction: it reads runs, applies the rules, and collects the results for one write.

Nothing is decided here: this is the bookkeeping between the rules (``decisions``, ``completing``, ``timeouts``, ``parking``) and
an engine's tables (``tables.RunTables``), once for all engines. Each kind of operation has its module. All of them change drafts
of a ``RunChanges``, which is written at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from mainspring.jobs.owners import AttemptEnded, Ended
from mainspring.workflows import outside, reporting, ringing, starting
from mainspring.workflows.changes import RunChanges
from mainspring.workflows.definition_store import RemoveDefinition, remove_definition
from mainspring.workflows.errands import RecordEnd
from mainspring.workflows.parking import decision_lost
from mainspring.workflows.reading import Unread
from mainspring.workflows.retention import forget
from mainspring.workflows.running_errands import record_end, run_errands
from mainspring.workflows.store import (
    BeginRuns,
    BeginWaiting,
    Decide,
    ForgetRuns,
    MoveRun,
    RanErrands,
    RequestCancelRun,
    RingAlarms,
    RunErrands,
    SaveDefinitions,
    SignalRuns,
    SweepEarlySignals,
    TerminateRun,
    UnparkRuns,
)
from mainspring.workflows.unbegun import sweep_early
from mainspring.workflows.versions import LATELY_US

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.jobs.owners import Notice
    from mainspring.storage.operation import Operation
    from mainspring.storage.plan import Plan
    from mainspring.workflows.cache import RunCache
    from mainspring.workflows.errands import ErrandsAside
    from mainspring.workflows.model import Definition, Limits
    from mainspring.workflows.observer import RunObserver
    from mainspring.workflows.tables import RunTables

KIND: Final = "workflows"
"""The owner of a run's jobs."""
FOLLOWS: Final = frozenset({Ended, AttemptEnded})
WRITES: Final = frozenset(
    {
        BeginRuns,
        BeginWaiting,
        Decide,
        SignalRuns,
        RequestCancelRun,
        TerminateRun,
        MoveRun,
        RingAlarms,
        UnparkRuns,
        SaveDefinitions,
        ForgetRuns,
        RunErrands,
        SweepEarlySignals,
        RemoveDefinition,
    }
)


class WorkflowUnit:
    """The workflows' part of one transaction: see `jobs.slices.Unit`."""

    def __init__(
        self,
        tables: RunTables,
        cache: RunCache,
        limits: Limits,
        observers: Sequence[RunObserver],
        errands_aside: ErrandsAside,
    ) -> None:
        self._tables = tables
        self._changes = RunChanges(tables, cache, limits, observers, errands_aside)

    async def lock(self, plan: Plan) -> None:
        """Lock nothing: the default for engines that run one transaction at a time."""

    async def follow(self, notices: Sequence[Notice]) -> None:
        """Record the ends of activities, and note those of decision tasks: a completion of the same group may use them."""
        await self._changes.prefetch([one.options.run[0] for one in notices if one.options and one.options.run])
        for notice in notices:
            options = notice.options
            assert options is not None
            assert options.run is not None, "this slice owns the job"
            now_us = notice.ended_us if isinstance(notice, Ended) else getattr(notice, "lost_us", 0)
            found = await self._changes.open(options.run[0], now_us)
            if found is None:
                continue
            if isinstance(found, Unread):
                if isinstance(notice, Ended):  # the loss of an attempt counts only towards parking the run
                    row = found.row
                    self._changes.errands.append(RecordEnd(row.id, row.namespace, row.workflow_id, notice))
            elif isinstance(notice, Ended):
                record_end(found, notice)
            elif isinstance(notice, AttemptEnded) and notice.id == found.run.row.decision:
                decision_lost(found.draft, notice)

    async def run(self, operation: Operation) -> Callable[[], Any]:
        """Run an operation that changes runs; return a function that returns its outcome."""
        changes = self._changes
        outcome: Any
        match operation:
            case Decide():
                return await reporting.decide(changes, operation)
            case SignalRuns():
                outcome = await outside.signal_runs(changes, operation)
            case BeginRuns():
                outcome = await starting.begin_runs(changes, operation)
            case BeginWaiting():
                outcome = await starting.begin_waiting(changes, operation)
            case RingAlarms():
                return await ringing.ring_alarms(changes, operation)
            case RequestCancelRun():
                outcome = await outside.request_cancel(changes, operation)
            case TerminateRun():
                outcome = await outside.terminate(changes, operation)
            case MoveRun():
                outcome = await outside.move(changes, operation)
            case UnparkRuns():
                outcome = await ringing.unpark_runs(changes, operation)
            case SaveDefinitions():
                outcome = await self._save(operation)
            case ForgetRuns():
                outcome = await forget(changes, operation)
            case RunErrands():
                changes.errands_due_us = operation.now_us
                changes.errands_from_first = operation.from_first
                return lambda: RanErrands(changes.errands_left, changes.errands_done, changes.errands_aside)
            case SweepEarlySignals():
                outcome = await sweep_early(self._tables, operation)
            case RemoveDefinition():
                outcome = await remove_definition(changes, operation)
            case _:
                raise TypeError(f"{operation!r} is not an operation that changes runs")
        return lambda: outcome

    async def _save(self, operation: SaveDefinitions) -> list[Definition]:
        """Store definitions with the times at which they were seen."""
        now_us = operation.now_us
        stored = {_key(one): one for one in await self._tables.definitions()}
        # A version that was seen while the clock was ahead would count as the only connected one until that time.
        seen = {key for key, one in stored.items() if key in operation.seen or one.last_seen_us > now_us}
        saved = [replace(stored[key], last_seen_us=now_us) for key in sorted(seen)]
        gone = (stored[key] for key in sorted(stored.keys() & set(operation.gone) - seen))
        saved += [replace(one, last_seen_us=min(one.last_seen_us, now_us - LATELY_US)) for one in gone]
        newest_us: dict[tuple[str, str], int] = {}
        for one in stored.values():
            newest_us[one.namespace, one.name] = max(one.first_seen_us, newest_us.get((one.namespace, one.name), 0))
        for one in operation.definitions:
            before = stored.get(_key(one))
            if before is not None and before.first_seen_us:
                first_us = before.first_seen_us
            else:  # new versions are in the order of their registration, also if they come at once or the clock was stepped
                first_us = max(now_us, newest_us.get((one.namespace, one.name), 0) + 1)
                newest_us[one.namespace, one.name] = first_us
            saved.append(replace(one, first_seen_us=first_us, last_seen_us=now_us))
        await self._tables.save_definitions(saved)
        return list((stored | {_key(one): one for one in saved}).values())

    async def flush(self) -> None:
        """Do the errands that the changes have caused, and write the changes so far."""
        changes = self._changes
        if changes.errands or changes.errands_due_us:
            changes.errands_left = await run_errands(changes, changes.time())
            changes.errands_due_us, changes.errands_from_first = 0, False
        await self._changes.flush()


def _key(definition: Definition) -> tuple[str, str, str]:
    return definition.namespace, definition.name, definition.version
