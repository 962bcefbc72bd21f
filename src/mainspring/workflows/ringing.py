"""Alarms and parked runs inside one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.workflows import timeouts
from mainspring.workflows.parking import tried_by, unpark
from mainspring.workflows.reading import run_of
from mainspring.workflows.run_draft import RunDraft

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.store import RingAlarms, UnparkRuns


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
