"""Forks of runs inside one transaction: the rules are in `forking`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring import namespaces
from mainspring.errors import UsageError
from mainspring.jobs.model import Job, Options, Priority
from mainspring.jobs.model import State as JobState
from mainspring.jobs.rules import own_slot
from mainspring.workflows.changes import RunDraft
from mainspring.workflows.client_signals import find_target
from mainspring.workflows.forking import Origin, begin_rerun, begin_reset, close_forked, plan_fork
from mainspring.workflows.model import version_for_new_runs
from mainspring.workflows.reading import Run, Unread, events_from, load
from mainspring.workflows.store import Forked, RunRow, Unbegun

if TYPE_CHECKING:
    from mainspring.workflows.carrying import Plan
    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.forking import ForkPlan
    from mainspring.workflows.store import ForkRun

CARRIED_PART: Final = 0.8
"""The part of a history that results of an earlier run may take."""


async def fork(changes: RunChanges, operation: ForkRun) -> Forked:
    """Begin a fork of a run, or tell what it would have; see `ForkRun`."""
    found = await find_target(changes, operation.key, operation.now_us, operation.tasks)
    if found is None:
        return Forked("unknown")
    if isinstance(found, list):
        return Forked("ambiguous")
    if isinstance(found, Unbegun):
        return Forked("unbegun", 0, found.job.id)
    if isinstance(found, Unread):
        return Forked("unread", found.row.id, found.row.root, fault=found.fault)
    origin = await (_of_open(changes, found) if isinstance(found, RunDraft) else _of_closed(changes, found))
    row = found.run.row if isinstance(found, RunDraft) else found
    if isinstance(origin, str):
        return Forked("unread", row.id, row.root, fault=origin)
    return await _fork(changes, operation, row, found if isinstance(found, RunDraft) else None, origin)


async def _of_open(changes: RunChanges, found: RunDraft) -> Origin | str:
    """Return a run that was open at the begin of the transaction; if this node cannot read it, the reason."""
    if fault := await changes.lacks(found, 0):
        return fault
    events = [*await changes.events_after(found, 0), *found.events]
    return Origin(events, found.run.state, goes_on=found.is_open)


async def _of_closed(changes: RunChanges, row: RunRow) -> Origin | str:
    stored = await changes.tables.load(row.id)
    if stored is None:
        return "it was deleted meanwhile"
    run = await load(changes.tables, stored)
    if not isinstance(run, Run):
        return run.fault
    events = await events_from(changes.tables, row.id, 1)
    return events if isinstance(events, str) else Origin(events, run.state, goes_on=False)


async def _fork(changes: RunChanges, operation: ForkRun, row: RunRow, found: RunDraft | None, origin: Origin) -> Forked:
    change, source = operation.change, (row.id, row.root)
    most = int(changes.limits.events * CARRIED_PART)
    try:
        plan, results = plan_fork(origin.events, change, most)
    except UsageError as error:
        return Forked("refused", *source, fault=str(error))
    version = row.version
    if results is not None:
        definitions = await changes.tables.definitions(row.namespace, row.type)
        versions = tuple(sorted(one.version for one in definitions))
        newest = version_for_new_runs(definitions)
        version = change.version or (row.version if newest is None else newest.version)
        if version not in versions:
            return Forked("unregistered", *source, plan=plan, versions=versions)
    if not origin.goes_on:
        rival = await _rival(changes, row)
        if rival:
            return Forked("open", *source, plan=plan, rival=rival)
    if operation.dry_run:
        return Forked("planned", *source, plan=plan)
    run = changes.tables.lifecycle.next_id()
    if origin.goes_on:
        assert found is not None
        root, slot = row.root, row.slot
        payload = origin.started.input if change.input is None else change.input
        close_forked(found.draft, run, change, version, payload)
    else:
        job = _root_job(changes, run, row, origin, operation.now_us)
        if await changes.tables.begin_roots([job]):
            return Forked("open", *source, plan=plan)
        changes.jobs.add_roots([job])
        root, slot = job.id, own_slot(job)
    following = RunRow(
        run,
        root,
        row.namespace,
        row.workflow_id,
        row.type,
        version,
        started_us=operation.now_us,
        input_size=row.input_size if change.input is None else len(change.input),
        slot=slot,
    )
    _begin(changes.begin(following, operation.now_us), operation, origin, plan, results)
    return Forked("forked", *source, run, root, plan)


def _begin(fresh: RunDraft, operation: ForkRun, origin: Origin, plan: ForkPlan, results: Plan | None) -> None:
    row, change = fresh.run.row, operation.change
    if results is None:
        begin_reset(fresh.draft, origin, change, plan, row.id, row.root)
        fresh.run.task = fresh.run.state.scheduled
    else:
        begin_rerun(fresh.draft, origin, change, results, row.id, row.root, row.version)


async def _rival(changes: RunChanges, row: RunRow) -> int:
    """Return the open run of a workflow id, or a job that waits and will have it; 0 if there is none."""
    rival = await changes.open_run(row.namespace, row.workflow_id)
    if rival:
        return rival
    waiting = await changes.tables.waiting_named(row.namespace, row.workflow_id.encode())
    return waiting[0].id if waiting else 0


def _root_job(changes: RunChanges, run: int, row: RunRow, origin: Origin, now_us: int) -> Job:
    """Return the root job of the fork of a closed run."""
    is_named = row.workflow_id != changes.handle_of(row.root)
    started = origin.started
    return Job(
        run,
        namespaces.key(row.namespace, row.type.encode()),
        b"",
        unique=row.workflow_id.encode() if is_named else b"",
        priority=Priority(started.task_priority),
        state=int(JobState.PENDING),
        created_us=now_us,
        started_us=now_us,
        options=Options(tags=started.tags) if started.tags else None,
    )
