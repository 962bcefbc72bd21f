"""Early signals: those to jobs whose runs have not begun.

A signal to a waiting job begins its run if the job's function is a workflow. Before any worker has registered the workflow, no
node can tell; and runs of a paused workflow do not begin. Such a signal is stored beside the job, and its run takes it at its
begin. It is stored as long as the job, unless a worker ends the job as a task's.

A job whose function has workers for tasks, but is no workflow, is no run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs.model import State as JobState
from mainspring.workflows.requests import Reached
from mainspring.workflows.store import Unbegun
from mainspring.workflows.tables import EarlySignals

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from mainspring.jobs.model import Job
    from mainspring.workflows.model import Key, Limits
    from mainspring.workflows.requests import Signal
    from mainspring.workflows.store import SweepEarlySignals
    from mainspring.workflows.tables import Runs, RunTables

EARLY_BYTES: Final = 16 * 2**20
"""Bytes of all signals to one job whose run has not begun: one transaction records them."""
FIRST_EVENTS: Final = 2
"""Events of a run before its first signal."""


async def find_unbegun(runs: Runs, key: Key, tasks: Container[bytes] = ()) -> list[Unbegun]:
    """Return the waiting jobs that a key names: those of workflows, if there are any, and otherwise those that may become runs.

    ``tasks`` has the functions that are tasks if they are no workflows.
    """
    if key.workflow_id:
        jobs = await runs.waiting_named(key.namespace, key.workflow_id.encode())
    else:
        job = await runs.waiting_job(key.job or key.run, key.namespace)
        jobs = [] if job is None else [job]
    if not jobs:
        return []
    workflows = {one.function for one in await runs.definitions()}
    found = [Unbegun(job, job.function in workflows) for job in jobs]
    return [one for one in found if one.is_workflow] or [one for one in found if one.job.function not in tasks]


def are_workflows(unbegun: Sequence[Unbegun]) -> bool:
    """Return whether there are such jobs, and they will become runs: a request means them rather than a closed run."""
    return bool(unbegun) and unbegun[0].is_workflow


async def store_early(tables: RunTables, job: Job, signal: Signal, limits: Limits) -> Reached:
    """Store a signal for a job whose run has not begun."""
    before = await tables.early(job.id, signal.request)
    if before.is_repeated:
        return Reached("repeated", job.id, job.id, waiting=JobState(job.state))
    size = len(signal.name.encode()) + len(signal.input)
    most = limits.events - limits.reserved - FIRST_EVENTS
    if before.number >= most or before.bytes + size > EARLY_BYTES:
        return Reached("full", 0, job.id)
    await tables.add_early(job.id, EarlySignals(before.number + 1, before.bytes + size), signal)
    return Reached("recorded", job.id, job.id, waiting=JobState(job.state))


async def sweep_early(tables: RunTables, operation: SweepEarlySignals) -> int:
    """Delete signals to jobs for which no run begins any more; see `SweepEarlySignals`."""
    jobs = await tables.early_jobs(operation.after, operation.rows)
    await tables.forget_early([job for job, may_begin in jobs if not may_begin])
    return jobs[-1][0] if len(jobs) == operation.rows else 0
