"""The workflows' unit of work in one transaction: it reads runs, applies the rules, and collects the results for one write.

Nothing is decided here: this is the bookkeeping between the rules (``execution``, ``timeouts``, ``draft``) and an
engine's tables (``tables.RunTables``), once for all engines. The reports of deciders, alarms and parked runs are handled here;
each other kind of operation has its module. All of them change drafts of a ``RunChanges``, which is written at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from mainspring import namespaces
from mainspring.jobs.model import State as JobState
from mainspring.jobs.owners import AttemptEnded, Ended
from mainspring.workflows import client_signals, forks, starting, timeouts
from mainspring.workflows.activities import canceled_before_start
from mainspring.workflows.changes import RunChanges, RunDraft
from mainspring.workflows.cross_run import RecordEnd
from mainspring.workflows.definitions import RemoveDefinition, remove_definition
from mainspring.workflows.draft import tried_by, unpark
from mainspring.workflows.execution import complete
from mainspring.workflows.model import LATELY_US, Parked, Status
from mainspring.workflows.outbox import run_errands
from mainspring.workflows.reading import Unread, run_of, sweep_early
from mainspring.workflows.requests import ContinueAsNewWorkflowExecution, Decided, StartChildWorkflowExecution
from mainspring.workflows.starting import Definitions, begin_next_run, end_of_child, unknown_next_version
from mainspring.workflows.store import (
    BeginRuns,
    BeginWaiting,
    Decide,
    FillPlaces,
    ForgetRuns,
    ForkRun,
    MoveRun,
    PauseRun,
    RanErrands,
    RequestCancelRun,
    ResumeRun,
    RingAlarms,
    RunErrands,
    SaveDefinitions,
    SignalRuns,
    SweepEarlySignals,
    TerminateRun,
    UnparkRuns,
)
from mainspring.workflows.watch import forget_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.jobs.owners import Notice
    from mainspring.storage.engine import Operation, Plan
    from mainspring.workflows.cross_run import ErrandsAside
    from mainspring.workflows.model import Definition, Limits
    from mainspring.workflows.observers import RunObserver
    from mainspring.workflows.reading import RunCache
    from mainspring.workflows.requests import Completion, Decision
    from mainspring.workflows.tables import RunTables

KIND: Final = starting.OWNER
"""The owner of a run's jobs."""
FOLLOWS: Final = frozenset({Ended, AttemptEnded})
WRITES: Final[frozenset[type[Operation]]] = frozenset(
    {
        BeginRuns,
        BeginWaiting,
        FillPlaces,
        Decide,
        SignalRuns,
        RequestCancelRun,
        TerminateRun,
        MoveRun,
        ForkRun,
        PauseRun,
        ResumeRun,
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
            if options.child is not None:  # a root job
                if isinstance(notice, Ended) and (errand := end_of_child(notice)) is not None:
                    self._changes.errands.append(errand)
                continue
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
                found.record_end(notice)
            elif isinstance(notice, AttemptEnded):
                found.attempt_ended(notice)

    async def run(self, operation: Operation) -> Callable[[], Any]:
        """Run an operation that changes runs; return a function that returns its outcome."""
        changes = self._changes
        outcome: Any
        match operation:
            case Decide():
                return await decide(changes, operation)
            case SignalRuns():
                outcome = await client_signals.signal_runs(changes, operation)
            case BeginRuns():
                outcome = await starting.begin_runs(changes, operation)
            case BeginWaiting():
                outcome = await starting.begin_waiting(changes, operation)
            case FillPlaces():
                outcome = await starting.fill_places(changes, operation)
            case RingAlarms():
                return await ring_alarms(changes, operation)
            case RequestCancelRun():
                outcome = await client_signals.request_cancel(changes, operation)
            case TerminateRun():
                outcome = await client_signals.terminate(changes, operation)
            case MoveRun():
                outcome = await client_signals.move(changes, operation)
            case ForkRun():
                outcome = await forks.fork(changes, operation)
            case PauseRun():
                outcome = await client_signals.pause(changes, operation)
            case ResumeRun():
                outcome = await client_signals.resume(changes, operation)
            case UnparkRuns():
                outcome = await unpark_runs(changes, operation)
            case SaveDefinitions():
                outcome = await self._save(operation)
            case ForgetRuns():
                outcome = await forget_runs(changes, operation)
            case RunErrands():
                changes.errands_due_us = operation.now_us
                # Those that are set aside stay so while another node does errands: none of them is tried.
                changes.errands_from_first = operation.from_first and not changes.errands_elsewhere
                return lambda: RanErrands(
                    changes.errands_left, changes.errands_done, changes.errands_aside, changes.errands_elsewhere
                )
            case SweepEarlySignals():
                outcome = await sweep_early(self._tables, operation)
            case RemoveDefinition():
                outcome = await remove_definition(changes, operation)
            case _:
                raise TypeError(f"{type(operation).__name__} is not an operation that changes runs")
        return lambda: outcome

    async def _save(self, operation: SaveDefinitions) -> list[Definition]:
        """Store definitions with the times at which they were seen, unless older nodes share the store."""
        now_us = operation.now_us
        stored = {_key(one): one for one in await self._tables.definitions()}
        if operation.definitions and not await self._tables.admits_runs():
            return list(stored.values())
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


CLOSED = "the run is closed, or there is none"
LOST = "the decision task is not held by this decider"


async def decide(changes: RunChanges, operation: Decide) -> Callable[[], list[Decided]]:
    """Record completions; see `Decide`. The outcomes include the events of the whole transaction."""
    outcomes = [await _decide(changes, completion, operation.now_us) for completion in operation.completions]
    return lambda: [outcome() for outcome in outcomes]


async def _decide(changes: RunChanges, completion: Completion, now_us: int) -> Callable[[], Decided]:
    found = await changes.open(completion.run, now_us)
    if isinstance(found, Unread):
        fault = found.fault
        return lambda: Decided("stale", fault)
    if found is None or found.run.row.namespace != completion.namespace:
        return lambda: Decided("stale", CLOSED)
    if completion.job and not await _is_current(changes, found, completion):
        return lambda: Decided("stale", LOST)
    last = completion.decisions[-1] if completion.decisions else None
    if isinstance(last, ContinueAsNewWorkflowExecution) and (why := await unknown_next_version(changes, found, last)):
        completion = completion._replace(decisions=(), steps=(), parked=Parked("missing", why))
    draft, state, row = found.draft, found.run.state, found.run.row
    if why := await changes.lacks(found, _needed(state.seen, completion)):
        return lambda: Decided("stale", why)
    if StartChildWorkflowExecution in map(type, completion.decisions):
        draft.definitions = await _definitions_of_children(changes, found, completion.decisions)
    verdict, ruled, refused_close = complete(draft, completion)
    if verdict in {"stale", "refused"}:
        return lambda: Decided(verdict, ruled)
    if completion.job:
        found.completed = not completion.more
        found.replaced = completion.more
    if completion.parked is None:
        row.about = completion.about
    if completion.values and verdict == "recorded":
        changes.publish(found, completion.values)
    if completion.streams and verdict == "recorded":
        changes.stream(found, completion.streams)
    if draft.cancels:
        await _cancel_activities(changes, found)
    if state.status == Status.CONTINUED_AS_NEW:
        await begin_next_run(changes, found, completion.decisions[-1])
    seen = completion.seen
    earlier = await changes.events_after(found, seen)

    def outcome() -> Decided:
        events = [*earlier, *(event for event in found.events if event.id > seen)]
        return Decided(verdict, ruled, events, Status(state.status), refused_close)

    return outcome


def _needed(seen: int, completion: Completion) -> int:
    """Return the event behind which a completion needs the stored events of its run, which has ``seen`` decided."""
    decision = completion.decisions[-1] if completion.decisions else None
    if not isinstance(decision, ContinueAsNewWorkflowExecution):
        return completion.seen
    if decision.attempt > 1:
        return 0
    return max(0, min(completion.seen, seen, *(number - 1 for number in decision.unread)))


async def _is_current(changes: RunChanges, found: RunDraft, completion: Completion) -> bool:
    """Return whether a completion's decider holds the decision task, or has just settled it."""
    if completion.job != found.run.row.decision or found.completed:
        return False
    if completion.more:
        return found.ended is None and await changes.tables.is_held(completion.job, changes.tables.term)
    ended = found.ended
    return ended is not None and ended.state == JobState.SUCCEEDED


async def _definitions_of_children(
    changes: RunChanges, found: RunDraft, decisions: Sequence[Decision]
) -> dict[tuple[str, str], Definition]:
    """Return the workflows that decisions start, as ``Draft.definitions`` has them."""
    definitions = Definitions(changes.tables)
    started: dict[tuple[str, str], Definition] = {}
    for decision in decisions:
        if isinstance(decision, StartChildWorkflowExecution):
            name, version = decision.type, decision.version
            function = namespaces.key(found.run.row.namespace, name.encode())
            definition = await definitions.version(function, version)
            if definition is not None:
                started[name, version] = definition
    return started


async def _cancel_activities(changes: RunChanges, found: RunDraft) -> None:
    """Cancel the activities that no worker has; the jobs of the others get the request."""
    draft, state = found.draft, found.run.state
    cancels, draft.cancels = draft.cancels, []
    held: list[int] = []
    for scheduled in cancels:
        activity = state.activities.get(scheduled)
        if activity is None:
            continue
        if await changes.tables.waiting_job(activity.job) is None:
            held.append(activity.job)
        else:
            draft.withdraw(activity.job)
            canceled_before_start(draft, scheduled)
    if held:
        await changes.jobs.stop(held, draft.now_us)


async def ring_alarms(changes: RunChanges, operation: RingAlarms) -> Callable[[], dict[int, int]]:
    """Record due timers and timeouts; see `RingAlarms`."""
    await changes.prefetch(operation.runs)
    rung: list[RunDraft] = []
    for run in operation.runs:
        found = await changes.open(run, operation.now_us)
        if not isinstance(found, RunDraft):
            continue
        state = found.run.state
        started = [job for job in timeouts.unstarted_jobs(state, operation.now_us) if await _has_begun(changes, job)]
        timeouts.ring(found.draft, started)
        rung.append(found)
    return lambda: {found.run.row.id: found.run.row.due_us for found in rung if found.is_open}


async def _has_begun(changes: RunChanges, job_id: int) -> bool:
    """Return whether a worker has or has had a job."""
    job = await changes.tables.waiting_job(job_id)
    return job is None or job.attempt > 0 or job.suspects > 0


async def unpark_runs(changes: RunChanges, operation: UnparkRuns) -> int:
    """Let parked runs go on; see `UnparkRuns`."""
    if operation.key is not None:
        runs = [await run_of(changes.tables, operation.key)]
    else:
        runs = await changes.tables.parked(operation.definition, tried_by(operation.build), operation.rows)
    number = 0
    for run in runs:
        found = await changes.open(run, operation.now_us)
        number += isinstance(found, RunDraft) and unpark(found.draft, operation.build)
    return number
