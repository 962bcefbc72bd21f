"""Starts of runs inside one transaction: for new jobs, for jobs that wait, and for the next run of a chain.

The run after one that continues as new begins with its close.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from mainspring import namespaces
from mainspring.jobs.model import State as JobState
from mainspring.jobs.model import failure
from mainspring.jobs.rules import own_slot
from mainspring.workflows import (
    execution,
    history,
    other_runs,
)
from mainspring.workflows.model import CHILD_TAG, PART_TAG, Definition, version_for_new_runs, workflow_id_of
from mainspring.workflows.requests import ContinueAsNewWorkflowExecution
from mainspring.workflows.store import Begun, RunRow

if TYPE_CHECKING:
    from collections.abc import Collection

    from mainspring.jobs.model import Job
    from mainspring.workflows.changes import RunChanges, RunDraft
    from mainspring.workflows.cross_run import StartChild
    from mainspring.workflows.requests import Decision
    from mainspring.workflows.store import BeginRuns, BeginWaiting
    from mainspring.workflows.tables import RunTables

ALREADY_RUNNING = "WorkflowAlreadyRunning"
"""The type of the error of a root job whose workflow id has an open run of another workflow."""


class _Beginning(NamedTuple):
    """A root job whose run is to begin."""

    job: Job
    definition: Definition
    timeout: float = 0.0
    is_new: bool = False
    """Whether no client had its handle before."""


async def begin_runs(changes: RunChanges, operation: BeginRuns) -> Begun:
    """Store new root jobs and begin their runs; see `BeginRuns`."""
    definitions = Definitions(changes.tables)
    refused: dict[int, str] = {}
    accepted: list[_Beginning] = []
    for start in operation.starts:
        job = start.job
        versions = await definitions.of(job.function)
        definition = _version(versions, start.version or stated_version(job))
        if definition is None:
            refused[job.id] = unknown_version(job.function, start.version or stated_version(job), versions)
        else:
            accepted.append(_Beginning(job, definition, start.timeout, is_new=True))
            job.started_us = operation.now_us
    joined = await changes.tables.begin_roots([one.job for one in accepted]) if accepted else {}
    begun = [one for one in accepted if one.job.id not in joined]
    changes.jobs.add_roots([one.job for one in begun])
    names = [_name(changes, one.job) for one in begun]
    await changes.tables.look_up(names)
    for one, name in zip(begun, names, strict=True):
        await _begin(changes, one, name, operation.now_us)
    return Begun(joined, refused)


async def begin_waiting(changes: RunChanges, operation: BeginWaiting) -> int:
    """Begin runs for pending jobs; see `BeginWaiting`."""
    definitions = Definitions(changes.tables)
    if await definitions.newest(operation.function) is None:
        return 0
    jobs = await changes.tables.take_pending(operation.function, operation.rows, operation.now_us)
    changes.jobs.take(jobs)
    for job in jobs:
        one = _Beginning(job, await definitions.for_waiting(job))
        await _begin(changes, one, _name(changes, job), operation.now_us)
    return len(jobs)


async def begin_named(changes: RunChanges, job_id: int, definitions: Definitions, now_us: int) -> RunDraft | None:
    """Begin the run of a job of a workflow that waits; None if it cannot begin, and the job has ended."""
    jobs = await changes.tables.take_waiting([job_id], now_us)
    changes.jobs.take(jobs)
    (job,) = jobs
    one = _Beginning(job, await definitions.for_waiting(job))
    return await _begin(changes, one, _name(changes, job), now_us)


async def cancel_waiting(changes: RunChanges, job_id: int, error: bytes, now_us: int) -> None:
    """Cancel a job that waits, whose run has not begun."""
    jobs = await changes.tables.take_waiting([job_id], now_us)
    changes.jobs.take(jobs)
    for job in jobs:
        changes.jobs.reject(_ended(job, JobState.CANCELLED, error, now_us))


def _name(changes: RunChanges, job: Job) -> tuple[str, str]:
    """Return the namespace and the workflow id of the run of a root job."""
    workflow_id = workflow_id_of(job.unique) if job.unique else changes.handle_of(job.id)
    return namespaces.namespace_of(job.function), workflow_id


async def _begin(changes: RunChanges, one: _Beginning, name: tuple[str, str], now_us: int) -> RunDraft | None:
    job, definition = one.job, one.definition
    namespace, workflow_id = name
    rival = await changes.open_run(namespace, workflow_id)
    if rival:
        why = f"the workflow id {workflow_id} has an open run of another workflow: {changes.handle_of(rival)}"
        error = failure(ALREADY_RUNNING, why)
        changes.jobs.reject(_ended(job, JobState.FAILED, error, now_us))
        return None
    found = changes.begin(_row(job, workflow_id, definition.name, definition.version, now_us), now_us)
    timeout = job.options.timeout if job.options is not None else None
    execution.begin_run(
        found.draft,
        type=definition.name,
        version=definition.version,
        input=job.payload,
        run=job.id,
        root=job.id,
        workflow_id=workflow_id,
        namespace=namespace,
        timeout=one.timeout or timeout or definition.timeout,
        seed=job.id,
        task_priority=job.priority,
        tags=_tags(job),
        depth=job.options.depth if job.options is not None else 0,
    )
    if not one.is_new:
        for signal in await changes.tables.take_early(job.id):
            execution.signal(found.draft, signal)
    return found


async def begin_child(changes: RunChanges, job: Job, errand: StartChild, now_us: int) -> bool:
    """Begin a child with a new root job; return False if its workflow id has an open run, or a waiting job of its workflow."""
    event = errand.initiated
    namespace = namespaces.namespace_of(job.function)
    if job.unique:
        if await changes.open_run(namespace, event.workflow_id):
            return False
        await changes.free(namespace, event.workflow_id)
    if await changes.tables.begin_roots([job]):
        return False
    changes.jobs.add_roots([job])
    execution.begin_run(
        changes.begin(_row(job, event.workflow_id, event.type, event.version, now_us), now_us).draft,
        type=event.type,
        version=event.version,
        input=event.input,
        run=job.id,
        root=job.id,
        workflow_id=event.workflow_id,
        namespace=namespace,
        timeout=event.execution_timeout,
        seed=job.id,
        task_priority=event.task_priority,
        tags=event.tags,
        parent_run=errand.source,
        parent_initiated=event.id,
        depth=errand.depth,
    )
    return True


def _tags(job: Job) -> tuple[str, ...]:
    """Return the tags of a root job for its run; not those that mark children, by which workers know the parts of maps."""
    return () if job.options is None else tuple(tag for tag in job.options.tags if tag not in {CHILD_TAG, PART_TAG})


def _row(job: Job, workflow_id: str, name: str, version: str, now_us: int) -> RunRow:
    return RunRow(
        job.id,
        job.id,
        namespaces.namespace_of(job.function),
        workflow_id,
        name,
        version,
        started_us=now_us,
        input_size=len(job.payload),
        slot=own_slot(job),
    )


def _ended(job: Job, state: JobState, error: bytes, now_us: int) -> Job:
    return msgspec.structs.replace(job, state=int(state), error=error, ended_us=now_us)


# ---- definitions ----


class Definitions:
    """The definitions that an operation has read."""

    def __init__(self, tables: RunTables) -> None:
        self._tables = tables
        self._found: dict[bytes, list[Definition]] = {}

    async def of(self, function: bytes) -> list[Definition]:
        """Return the versions of a workflow, which is given by its key."""
        if function not in self._found:
            namespace, name = namespaces.split(function)
            self._found[function] = await self._tables.definitions(namespace, name.decode("utf-8", "backslashreplace"))
        return self._found[function]

    async def version(self, function: bytes, version: str) -> Definition | None:
        """Return a version of a workflow; without one that for new runs; None if it is not registered."""
        return _version(await self.of(function), version)

    async def newest(self, function: bytes) -> Definition | None:
        """Return the version that runs without a stated one get; None if the function is no workflow."""
        return _version(await self.of(function), "")

    async def for_waiting(self, job: Job) -> Definition:
        """Return the version for the run of a stored job of a workflow.

        A version that no worker has registered is added: the run waits for a worker with it, because its start was acknowledged.
        """
        versions = await self.of(job.function)
        stated = stated_version(job)
        found = _version(versions, stated)
        if found is None:
            namespace, name = namespaces.split(job.function)
            text = name.decode("utf-8", "backslashreplace")
            found = Definition(text, stated, namespace, timeout=versions[0].timeout)
            versions.append(found)
            await self._tables.save_definitions([found])
        return found


def stated_version(job: Job) -> str:
    """Return the version that the submitter of a run has stated; empty for none."""
    return "" if job.options is None else job.options.version


def _version(definitions: list[Definition], version: str) -> Definition | None:
    """Return a version of a workflow; without one that for new runs."""
    if version:
        return next((one for one in definitions if one.version == version), None)
    return version_for_new_runs(definitions)


def unknown_version(function: bytes, version: str, versions: Collection[Definition]) -> str:
    """Return why a run of a version cannot begin; without a version: of a workflow."""
    name = namespaces.name_of(function).decode("utf-8", "backslashreplace")
    if not versions:
        return f"no worker has registered a workflow named {name}; start a worker with it first"
    listed = ", ".join(sorted(one.version for one in versions))
    return f"no worker has registered version {version} of the workflow {name}; registered: {listed}"


async def unknown_next_version(changes: RunChanges, found: RunDraft, decision: ContinueAsNewWorkflowExecution) -> str:
    """Return why a decision cannot continue its run in another version; empty if it can."""
    if not decision.version:
        return ""
    state = found.run.state
    versions = [one.version for one in await changes.tables.definitions(state.namespace, state.type)]
    if decision.version in versions:
        return ""
    listed = ", ".join(sorted(versions))
    return (
        f"the run is to continue as version {decision.version} of {state.type}, which no worker has registered; registered: "
        f"{listed}: start a worker with it, and unpark the run"
    )


async def begin_next_run(changes: RunChanges, found: RunDraft, decision: Decision) -> int:
    """Begin the run after one that a decision has just continued as new, and return it."""
    now_us = found.draft.now_us  # the time of the closing event may lie ahead: see `Draft.record`
    closed, event = found.run.state, found.events[-1]
    assert isinstance(event, history.WorkflowExecutionContinuedAsNew)
    assert isinstance(decision, ContinueAsNewWorkflowExecution)
    unread: Collection[int] = frozenset(decision.unread)
    first = max(1, min((closed.seen + 1, *unread)))
    if decision.attempt > 1:  # another attempt has all signals
        unread, first = range(closed.last), 1
    events = [*await changes.events_after(found, first - 1), *found.events]
    row = RunRow(
        event.new_run,
        closed.root,
        closed.namespace,
        closed.workflow_id,
        event.type,
        event.version,
        started_us=now_us,
        input_size=len(event.input),
        slot=found.run.row.slot,
    )
    following = changes.begin(row, now_us)
    other_runs.begin_next(following.draft, closed, event, other_runs.carried(events, unread, closed.seen))
    return event.new_run
