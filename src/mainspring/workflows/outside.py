"""Requests from outside to runs, by their keys: signals, cancel requests and terminations."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.jobs.failures import CANCEL_REASON, failure
from mainspring.workflows.changes import RunDraft
from mainspring.workflows.decisions import execution
from mainspring.workflows.model import Status
from mainspring.workflows.reading import run_of
from mainspring.workflows.requests import Reached
from mainspring.workflows.starting import Definitions, begin_named, cancel_waiting

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.model import Definition, Key
    from mainspring.workflows.store import RequestCancelRun, RunRow, SignalRuns, TerminateRun

UNKNOWN = Reached("unknown")


class _Unbegun(NamedTuple):
    """A job whose run has not begun."""

    job: Job
    definition: Definition


async def signal_runs(changes: RunChanges, operation: SignalRuns) -> list[Reached]:
    """Record signals; see `SignalRuns`."""
    definitions = Definitions(changes.tables)
    outcomes = []
    for signal in operation.signals:
        found = await _find(changes, signal.key, operation.now_us, definitions)
        if isinstance(found, _Unbegun):
            found = await begin_named(changes, found.job.id, found.definition, operation.now_us)
        outcomes.append(execution.signal(found.draft, signal) if isinstance(found, RunDraft) else _missed(found))
    return outcomes


async def request_cancel(changes: RunChanges, operation: RequestCancelRun) -> Reached:
    """Ask a run to cancel itself; see `RequestCancelRun`."""
    found = await _find(changes, operation.key, operation.now_us, Definitions(changes.tables))
    if isinstance(found, _Unbegun):
        return await _cancel(changes, found, operation.reason, operation.now_us)
    if not isinstance(found, RunDraft):
        return _missed(found)
    return execution.request_cancel(found.draft, reason=operation.reason, request=operation.request)


async def terminate(changes: RunChanges, operation: TerminateRun) -> Reached:
    """End a run at once; see `TerminateRun`."""
    found = await _find(changes, operation.key, operation.now_us, Definitions(changes.tables))
    if isinstance(found, _Unbegun):
        return await _cancel(changes, found, operation.reason, operation.now_us)
    if not isinstance(found, RunDraft):
        return _missed(found)
    return execution.terminate(
        found.draft, reason=operation.reason, details=operation.details, children=operation.children
    )


async def _cancel(changes: RunChanges, unbegun: _Unbegun, reason: str, now_us: int) -> Reached:
    error = failure("Cancelled", reason or CANCEL_REASON)
    await cancel_waiting(changes, unbegun.job.id, error, now_us)
    return Reached("recorded", 0, unbegun.job.id, 0, Status.CANCELED)


def _missed(found: RunRow | None) -> Reached:
    return UNKNOWN if found is None else Reached("closed", found.id, found.root, 0, found.status)


async def _find(
    changes: RunChanges, key: Key, now_us: int, definitions: Definitions
) -> RunDraft | _Unbegun | RunRow | None:
    """Return the open run that a key names, a job whose run has not begun, a closed run, or None."""
    if key.workflow_id:
        run = await changes.open_run(key.namespace, key.workflow_id)
        if not run:
            unbegun = await _unbegun_named(changes, key, definitions)
            if unbegun is not None:
                return unbegun
            run = await run_of(changes.tables, key)
        return await changes.find(run, now_us) if run else None
    run = key.run or key.job
    found = await changes.find(run, now_us)
    if found is None and key.job:
        job = await changes.tables.waiting_job(key.job)
        definition = None if job is None else await definitions.newest(job.namespace, job.function)
        return None if job is None or definition is None else _Unbegun(job, definition)
    if key.job and not isinstance(found, RunDraft) and found is not None and found.status is Status.CONTINUED_AS_NEW:
        return await changes.find(await run_of(changes.tables, key), now_us)
    return found


async def _unbegun_named(changes: RunChanges, key: Key, definitions: Definitions) -> _Unbegun | None:
    names = {one.name.encode() for one in await changes.tables.definitions() if one.namespace == key.namespace}
    for job in await changes.tables.waiting_jobs(names, key.workflow_id.encode()):
        definition = await definitions.newest(job.namespace, job.function)
        if definition is not None:
            return _Unbegun(job, definition)
    return None
