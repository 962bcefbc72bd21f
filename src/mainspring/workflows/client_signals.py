"""Requests of clients and of other runs to runs, by their keys: signals, cancel requests, terminations and pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State as JobState
from mainspring.jobs.model import failure
from mainspring.namespaces import ANY
from mainspring.workflows import (
    execution,
    history,
    other_runs,
    pausing,
)
from mainspring.workflows.changes import RunDraft
from mainspring.workflows.model import Status
from mainspring.workflows.reading import Run, Unread, are_workflows, find_unbegun, load, run_of, store_early
from mainspring.workflows.requests import ContinueAsNewWorkflowExecution, Reached
from mainspring.workflows.starting import Definitions, begin_named, begin_next_run, cancel_waiting
from mainspring.workflows.store import Moved, Unbegun

if TYPE_CHECKING:
    from collections.abc import Container

    from mainspring.jobs.model import Job
    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.model import Key
    from mainspring.workflows.requests import Signal
    from mainspring.workflows.store import (
        MoveRun,
        PauseRun,
        RequestCancelRun,
        ResumeRun,
        RunRow,
        SignalRuns,
        TerminateRun,
    )
    from mainspring.workflows.tables import RunTables


async def signal_runs(changes: RunChanges, operation: SignalRuns) -> list[Reached]:
    """Record signals; see `SignalRuns`."""
    definitions = Definitions(changes.tables)
    outcomes = []
    for signal in operation.signals:
        found = await find_target(changes, signal.key, operation.now_us, operation.tasks)
        if isinstance(found, Unbegun):
            begins = found.job.function not in operation.paused
            reached = await signal_unbegun(
                changes, found.job, signal, operation.now_us, begins=begins, definitions=definitions
            )
        elif isinstance(found, RunDraft):
            reached = execution.signal(found.draft, signal)
        else:
            reached = await _missed(changes, found, signal.request)
        outcomes.append(reached)
    return outcomes


async def signal_unbegun(
    changes: RunChanges,
    job: Job,
    signal: Signal,
    now_us: int,
    *,
    begins: bool,
    definitions: Definitions | None = None,
) -> Reached:
    """Signal a job whose run has not begun: begin the run, if it may and the job's function is a workflow.

    A signal gives no run a place: if the workflow has limits, it is stored with the job.
    """
    definitions = definitions or Definitions(changes.tables)
    if (
        not begins
        or await definitions.newest(job.function) is None
        or await definitions.limits(job.function, now_us) is not None
    ):
        return await store_early(changes.tables, job, signal, changes.limits)
    found = await begin_named(changes, job.id, definitions, now_us)
    return await _missed(changes, None) if found is None else execution.signal(found.draft, signal)


async def request_cancel(changes: RunChanges, operation: RequestCancelRun) -> Reached:
    """Ask a run to cancel itself; see `RequestCancelRun`."""
    found = await find_target(changes, operation.key, operation.now_us, operation.tasks)
    if isinstance(found, Unbegun):
        return await cancel_unbegun(changes, found.job, operation.reason, operation.now_us)
    if not isinstance(found, RunDraft):
        return await _missed(changes, found, operation.request)
    return execution.request_cancel(found.draft, reason=operation.reason, request=operation.request)


async def terminate(changes: RunChanges, operation: TerminateRun) -> Reached:
    """End a run at once; see `TerminateRun`."""
    found = await find_target(changes, operation.key, operation.now_us, operation.tasks)
    if isinstance(found, Unbegun):
        return await cancel_unbegun(changes, found.job, operation.reason, operation.now_us)
    if not isinstance(found, RunDraft):
        return await _missed(changes, found)
    return execution.terminate(
        found.draft, reason=operation.reason, details=operation.details, children=operation.children
    )


async def pause(changes: RunChanges, operation: PauseRun) -> Reached:
    """Pause a run; see `PauseRun`."""
    found = await find_target(changes, operation.key, operation.now_us, operation.tasks)
    if isinstance(found, Unbegun):
        return Reached("unbegun", 0, found.job.id, waiting=JobState(found.job.state))
    if not isinstance(found, RunDraft):
        return await _missed(changes, found)
    if not await changes.tables.admits_pauses():
        return Reached("older", found.run.row.id, found.run.row.root)
    return pausing.pause(found.draft, reason=operation.reason, by=operation.by, until_us=operation.until_us)


async def resume(changes: RunChanges, operation: ResumeRun) -> Reached:
    """End the pause of a run; see `ResumeRun`."""
    found = await find_target(changes, operation.key, operation.now_us, operation.tasks)
    if isinstance(found, Unbegun):
        return Reached("unbegun", 0, found.job.id, waiting=JobState(found.job.state))
    if not isinstance(found, RunDraft):
        return await _missed(changes, found)
    return pausing.resume(found.draft)


async def move(changes: RunChanges, operation: MoveRun) -> Moved:
    """Let a run continue as new with another version before its code has recorded anything; see `MoveRun`."""
    found = await find_target(changes, operation.key, operation.now_us, operation.tasks)
    if found is None:
        return Moved("unknown")
    if isinstance(found, list):
        return Moved("ambiguous")
    if isinstance(found, Unbegun):
        return Moved("unbegun", 0, found.job.id)
    if isinstance(found, Unread):
        return Moved("unread", found.row.id, found.row.root, fault=found.fault)
    if not isinstance(found, RunDraft):
        return Moved("closed", found.id, found.root, found.status)
    return await _move_open(changes, found, operation.version)


async def _move_open(changes: RunChanges, found: RunDraft, version: str) -> Moved:
    state = found.run.state
    run, root = state.run, state.root
    versions = sorted(one.version for one in await changes.tables.definitions(state.namespace, state.type))
    if state.status:
        return Moved("closed", run, root, Status(state.status))
    if version not in versions:
        return Moved("unregistered", run, root, versions=tuple(versions))
    if state.version == version:
        return Moved("same", run, root)
    # Another attempt follows commands that another version has made.
    if state.seen or state.steps or state.attempt > 1:
        return Moved("recorded", run, root)
    if fault := await changes.lacks(found, 0):
        return Moved("unread", run, root, fault=fault)
    (started, *_) = await changes.events_after(found, 0) or found.events
    assert isinstance(started, history.WorkflowExecutionStarted)
    decision = ContinueAsNewWorkflowExecution(0, started.input, version)
    other_runs.continue_as_new(found.draft, decision, 0)
    return Moved("moved", await begin_next_run(changes, found, decision), root)


async def cancel_unbegun(changes: RunChanges, job: Job, reason: str, now_us: int) -> Reached:
    """Cancel a job whose run has not begun."""
    error = failure("Cancelled", reason or "cancelled before its run began")
    await cancel_waiting(changes, job.id, error, now_us)
    return Reached("recorded", 0, job.id, 0, Status.CANCELED)


async def _missed(changes: RunChanges, found: RunRow | list[Unbegun] | Unread | None, request: int = 0) -> Reached:
    if found is None:
        return Reached("unknown")
    if isinstance(found, Unread):
        return Reached("unread", found.row.id, found.row.root, fault=found.fault)
    if isinstance(found, list):
        return Reached("ambiguous")
    repeated = request != 0 and await _has_taken(changes.tables, found.id, request)
    return Reached("repeated" if repeated else "closed", found.id, found.root, 0, found.status)


async def _has_taken(tables: RunTables, run: int, request: int) -> bool:
    """Return whether a closed run took a request: its sender did not get the answer, and repeats it."""
    stored = await tables.load(run)
    found = None if stored is None else await load(tables, stored)
    return isinstance(found, Run) and request in found.state.requests


def _continues(found: RunDraft | RunRow | Unread | None) -> bool:
    """Return whether the chain of a root job may have a run after its first one, which is forgotten if it is None."""
    if isinstance(found, Unread):
        return bool(found.row.unread)  # its status may be the part that cannot be read
    status = Status(found.run.state.status) if isinstance(found, RunDraft) else found and found.status
    return status is None or status is Status.CONTINUED_AS_NEW


def _of_namespace(key: Key, found: RunDraft | RunRow | Unread | None) -> RunDraft | RunRow | Unread | None:
    """Return a run, unless it is of another namespace than the key: it may be in this node's memory, whatever its namespace."""
    if isinstance(found, Unread):
        row: RunRow | None = found.row
    else:
        row = found.run.row if isinstance(found, RunDraft) else found
    return found if row is None or key.namespace in {ANY, row.namespace} else None


async def find_target(
    changes: RunChanges, key: Key, now_us: int, tasks: Container[bytes] = ()
) -> RunDraft | RunRow | Unread | Unbegun | list[Unbegun] | None:
    """Return the open run that a key names, a job whose run has not begun, several such jobs, a closed run, or None.

    A run that this node cannot read is `Unread`. ``tasks`` is as of `SignalRuns`.
    """
    if key.workflow_id:
        run = await changes.open_run(key.namespace, key.workflow_id)
        if run:
            return await changes.find(run, now_us)
    else:
        found = _of_namespace(key, await changes.find(key.run or key.job, now_us))
        if key.job and _continues(found) and (link := await changes.last_link(key.job)):
            return _of_namespace(key, await changes.find(link, now_us))
        if found is not None:
            return found
    unbegun = await find_unbegun(changes.tables, key, tasks)
    run = 0 if key.run or are_workflows(unbegun) else await run_of(changes.tables, key)
    if run:
        return await changes.find(run, now_us)
    if not unbegun:
        return None
    return unbegun[0] if len(unbegun) == 1 else unbegun
