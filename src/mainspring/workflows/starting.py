"""Starts of runs inside one transaction: for new jobs, for jobs that wait, and for the next run of a chain.

The run after one that continues as new begins with its close.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mainspring import namespaces
from mainspring.errors import StoreError
from mainspring.jobs.model import Options, failure
from mainspring.jobs.model import State as JobState
from mainspring.jobs.rules import own_slot
from mainspring.jobs.run_places import Filled
from mainspring.resources.rules import FUNCTION_POOL, pool_of
from mainspring.workflows import (
    execution,
    history,
    other_runs,
)
from mainspring.workflows.cross_run import EndChild, StartChild, decode_errand, encode_errand
from mainspring.workflows.model import CHILD_TAG, PART_TAG, Definition, version_for_new_runs, workflow_id_of
from mainspring.workflows.pausing import inherited
from mainspring.workflows.places import KEYS_AT_ONCE, NOTHING, PART_KEY, Pools, is_paused, run_limits
from mainspring.workflows.requests import ContinueAsNewWorkflowExecution
from mainspring.workflows.store import BeginWaiting, Begun, FillPlaces, RunRow

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Ended
    from mainspring.jobs.store import Found
    from mainspring.resources.rules import FunctionLimits, Limits
    from mainspring.workflows.changes import RunChanges, RunDraft
    from mainspring.workflows.cross_run import Close
    from mainspring.workflows.requests import Decision
    from mainspring.workflows.store import BeginRuns, Start
    from mainspring.workflows.tables import RunTables

ALREADY_RUNNING = "WorkflowAlreadyRunning"
"""The type of the error of a root job whose workflow id has an open run of another workflow."""
NOT_BEGUN = "the run of the child has not begun"
"""The reason of the failure of a child whose job ends while it waits for a place."""
FILLED_AT_ONCE: Final = 250
"""The most runs that a transaction begins because of one operation that brings new ones to a workflow with limits."""
OWNER: Final = "workflows"
"""The owner of the jobs of runs."""


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
    waiting: list[Job] = []
    for start in operation.starts:
        job = start.job
        versions = await definitions.of(job.function)
        definition = _version(versions, start.version or stated_version(job))
        if definition is None:
            refused[job.id] = unknown_version(job.function, start.version or stated_version(job), versions)
        elif await definitions.limits(job.function, operation.now_us) is not None:
            _set_options(job, start)
            waiting.append(job)
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
    if waiting:
        joined = {**joined, **await _begin_by_limits(changes, definitions, waiting, operation.now_us)}
    return Begun(joined, refused)


async def begin_waiting(changes: RunChanges, operation: BeginWaiting) -> int:
    """Begin runs for pending jobs; see `BeginWaiting`."""
    definitions = Definitions(changes.tables)
    if await definitions.newest(operation.function) is None:
        return 0
    if await definitions.limits(operation.function, operation.now_us) is not None:
        fill = FillPlaces(operation.function, operation.rows, operation.now_us)
        return (await _fill(changes, definitions, fill)).begun
    jobs = await changes.tables.take_pending(operation.function, operation.rows, operation.now_us)
    await _begin_taken(changes, definitions, jobs, operation.now_us)
    return len(jobs)


async def _begin_taken(changes: RunChanges, definitions: Definitions, jobs: Sequence[Job], now_us: int) -> None:
    changes.jobs.take(jobs)
    for job in jobs:
        one = _Beginning(job, await definitions.for_waiting(job))
        await _begin(changes, one, _name(changes, job), now_us)


# ---- limits of open runs ----


def _set_options(job: Job, start: Start) -> None:
    """Store what the start of a run states with its job, which waits."""
    if start.timeout or start.version:
        options = job.options or Options()
        timeout, version = start.timeout or options.timeout, start.version or options.version
        job.options = msgspec.structs.replace(options, timeout=timeout, version=version)


async def _begin_by_limits(
    changes: RunChanges, definitions: Definitions, jobs: list[Job], now_us: int
) -> dict[int, Found]:
    """Store new jobs of workflows with limits, and fill their places; return those that join others, as ``begin_roots``."""
    for job in jobs:
        job.state = int(JobState.SCHEDULED if job.due_us else JobState.PENDING)
    joined = await store_waiting(changes, jobs)
    for function in dict.fromkeys(job.function for job in jobs):
        keys = list(dict.fromkeys(job.key for job in jobs if job.function == function))
        filled = await _fill(changes, definitions, FillPlaces(function, FILLED_AT_ONCE, now_us, keys))
        if filled.is_busy or filled.more or filled.next_us:
            changes.jobs.fill_again(function, keys, filled)
    return joined


async def store_waiting(changes: RunChanges, jobs: list[Job]) -> dict[int, Found]:
    """Store new jobs whose runs wait for places; return those that join others."""
    tables, lifecycle = changes.tables, changes.tables.lifecycle
    term = tables.term
    reserved = [job for job in jobs if lifecycle.reserve(job, term)]
    tables.after_rollback(lambda: lifecycle.dropped(reserved))
    joined = await tables.submit(jobs)
    gone = [job for job in reserved if job.id in joined]
    if gone:
        tables.after_commit(lambda: lifecycle.dropped(gone))
    changes.jobs.add_waiting([job for job in reserved if job.id not in joined])
    return joined


async def fill_places(changes: RunChanges, operation: FillPlaces) -> Filled:
    """Begin runs for pending jobs of a workflow with limits; see `FillPlaces`."""
    definitions = Definitions(changes.tables)
    if await definitions.newest(operation.function) is None:
        return NOTHING
    if await definitions.limits(operation.function, operation.now_us) is None:  # they were removed meanwhile
        begun = await begin_waiting(changes, BeginWaiting(operation.function, operation.rows, operation.now_us))
        return Filled(begun, begun == operation.rows)
    return await _fill(changes, definitions, operation)


async def _fill(changes: RunChanges, definitions: Definitions, fill: FillPlaces) -> Filled:
    function, tables = fill.function, changes.tables
    limits = await definitions.limits(function, fill.now_us)
    assert limits is not None, "the workflow has limits"
    if is_paused(await definitions.stored_limits(function), fill.now_us):
        return NOTHING
    now_us = await tables.hold_places(function, fill.now_us)
    if now_us is None:
        return Filled(is_busy=True)
    if limits.per_key:
        return await _fill_by_key(changes, definitions, fill, limits, now_us)
    pools = await _pools(changes, function, limits, (), now_us)
    jobs = await tables.take_pending(function, pools.free(fill.rows), fill.now_us)
    pools.take(len(jobs))
    await _begin_taken(changes, definitions, jobs, fill.now_us)
    if pools.changed:
        await tables.save_buckets(function, pools.changed)
    return Filled(len(jobs), len(jobs) == fill.rows, pools.next_us(()))


async def _fill_by_key(
    changes: RunChanges, definitions: Definitions, fill: FillPlaces, limits: Limits, now_us: int
) -> Filled:
    function, tables = fill.function, changes.tables
    keys = list(fill.keys or ()) if fill.keys is not None else None
    if keys is None:
        keys = await tables.pending_keys(function, fill.after, KEYS_AT_ONCE)
    after = keys[-1] if fill.keys is None and len(keys) == KEYS_AT_ONCE else None
    if not keys:
        return NOTHING
    pools = await _pools(changes, function, limits, keys, now_us)
    free = pools.free_of(keys, fill.rows)
    candidates = await tables.first_of_keys(function, free) if free else []
    chosen = pools.choose(candidates, fill.rows)
    jobs = await tables.take_waiting([one.id for one in chosen], fill.now_us) if chosen else []
    order = {one.id: at for at, one in enumerate(chosen)}
    await _begin_taken(changes, definitions, sorted(jobs, key=lambda job: order[job.id]), fill.now_us)
    if pools.changed:
        await tables.save_buckets(function, pools.changed)
    return Filled(len(jobs), len(chosen) == fill.rows, pools.next_us(keys), after=after)


async def _pools(changes: RunChanges, function: bytes, limits: Limits, keys: Collection[bytes], now_us: int) -> Pools:
    """Return the pools of a workflow and of keys of its jobs, as they are in the store and in this transaction."""
    tables = changes.tables
    namespace, name = namespaces.split(function)
    opened = 0
    if limits.concurrency is not None:
        parts = await tables.count_open_of_keys(function, [PART_KEY])
        opened = await changes.count_open(namespace, name.decode()) - parts.get(PART_KEY, 0)
    opened_of = {} if limits.concurrency_per_key is None else await tables.count_open_of_keys(function, keys)
    pools = [FUNCTION_POOL] if limits.rate is not None else []
    if limits.rate_per_key is not None:
        pools += map(pool_of, keys)
    return Pools(limits, opened, opened_of, await tables.buckets(function, pools) if pools else {}, now_us)


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
    if (errand := _child_of(job)) is not None:
        found = _begin_as_child(changes, job, errand, now_us)
        for signal in await changes.tables.take_early(job.id):
            execution.signal(found.draft, signal)
        return found
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
    definitions = Definitions(changes.tables)
    limits = await definitions.limits(job.function, now_us)
    if limits is not None and PART_TAG in event.tags:
        job.key = PART_KEY
    elif limits is not None:
        return not await _begin_by_limits(changes, definitions, [_waiting_child(job, errand)], now_us)
    if await changes.tables.begin_roots([job]):
        return False
    changes.jobs.add_roots([job])
    _begin_as_child(changes, job, errand, now_us)
    return True


def _waiting_child(job: Job, errand: StartChild) -> Job:
    """Return the job of a child that waits for a place; it tells its parent if it ends before."""
    initiated = msgspec.structs.replace(errand.initiated, input=b"")
    options = msgspec.structs.replace(
        job.options or Options(),
        owner=(OWNER, str(errand.source), "child"),
        child=encode_errand(msgspec.structs.replace(errand, initiated=initiated)),
    )
    return msgspec.structs.replace(job, started_us=0, options=options)


def _child_of(job: Job) -> StartChild | None:
    """Return the start of a job that waits as a child; None for other jobs. Raises StoreError if this version cannot read it."""
    if job.options is None or job.options.child is None:
        return None
    errand = decode_errand(job.options.child)
    if not isinstance(errand, StartChild):
        raise StoreError(f"the start of the child {job.id} cannot be read: {errand}")
    return msgspec.structs.replace(errand, initiated=msgspec.structs.replace(errand.initiated, input=job.payload))


def end_of_child(ended: Ended) -> EndChild | None:
    """Return the errand that tells a parent of a child which has ended before its run began; None if the run has begun."""
    options = ended.options
    if options is None or options.child is None or ended.started_us:
        return None
    errand = decode_errand(options.child)
    if not isinstance(errand, StartChild):
        return None
    event = errand.initiated
    close: Close
    if ended.state == JobState.CANCELLED:
        close = history.WorkflowExecutionCanceled(0, ended.ended_us, decision_completed=0, details=ended.error)
    else:
        close = history.WorkflowExecutionFailed(
            0, ended.ended_us, decision_completed=0, reason=NOT_BEGUN, details=ended.error
        )
    return EndChild(
        ended.id, errand.namespace, event.workflow_id, errand.source, event.id, event.type, event.version, close
    )


def _begin_as_child(changes: RunChanges, job: Job, errand: StartChild, now_us: int) -> RunDraft:
    event = errand.initiated
    namespace = namespaces.namespace_of(job.function)
    found = changes.begin(_row(job, event.workflow_id, event.type, event.version, now_us), now_us)
    execution.begin_run(
        found.draft,
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
    return found


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
        self._limits: dict[bytes, FunctionLimits | None] = {}

    async def stored_limits(self, function: bytes) -> FunctionLimits | None:
        """Return the stored limits and pause of a workflow, which is given by its key."""
        if function not in self._limits:
            self._limits[function] = await self._tables.limits_of(function)
        return self._limits[function]

    async def limits(self, function: bytes, now_us: int) -> Limits | None:
        """Return the limits of the open runs of a workflow; None if it has none."""
        return run_limits(await self.stored_limits(function), now_us)

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
    row.parking.pause = inherited(found.draft.was_paused)
    other_runs.begin_next(following.draft, closed, event, other_runs.carried(events, unread, closed.seen))
    return event.new_run
