"""The workflows slice in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from copy import copy
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from mainspring.engines.memory import jobs
from mainspring.engines.memory.engine import MemoryGround, Transaction
from mainspring.engines.memory.jobs import PENDING, find_job
from mainspring.engines.memory.streams import MemoryStreams
from mainspring.engines.memory.values import MemoryValues
from mainspring.jobs.model import State
from mainspring.namespaces import ANY
from mainspring.workflows import reading, unit
from mainspring.workflows import store as ops
from mainspring.workflows.cross_run import ErrandsAside
from mainspring.workflows.definitions import CountOpen
from mainspring.workflows.model import Limits
from mainspring.workflows.places import Candidate, StoredBucket
from mainspring.workflows.reading import ListedRun, ReadLatest, RunCache
from mainspring.workflows.tables import ALL, EarlySignals, SerialRuns, StoredRun, first_errands
from mainspring.workflows.unit import WorkflowUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence

    from mainspring.engines.memory.tables import Tables
    from mainspring.jobs.model import Job, Options
    from mainspring.jobs.store import Reschedule, Rescheduled
    from mainspring.resources.rules import FunctionLimits
    from mainspring.storage.engine import Meter, Operation, Page, Query
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import Definition
    from mainspring.workflows.observers import RunObserver
    from mainspring.workflows.requests import Signal
    from mainspring.workflows.tables import Guarded, Writes


_NO_SIGNALS: Final = EarlySignals(0, 0)


def _copy(row: ops.RunRow) -> ops.RunRow:
    """Copy a row with everything in it that may change."""
    return replace(row, parking=replace(row.parking))


class MemoryRunReads:
    """``workflows.tables.Runs`` in dictionaries."""

    _tables: Tables

    async def load(self, run: int, namespace: str = ANY) -> StoredRun | None:
        row = self._tables.workflows.get(run)
        return (
            None
            if row is None or namespace not in {ANY, row.namespace}
            else StoredRun(_copy(row), self._tables.snapshots.get(run))
        )

    async def has_run(self, run: int, namespace: str) -> bool:
        row = self._tables.workflows.get(run)
        return row is not None and namespace in {ANY, row.namespace}

    async def blocks(self, run: int, first: int, limit: int = ALL) -> list[bytes]:
        firsts, blocks = self._tables.histories.get(run, ([], []))
        at = max(bisect_right(firsts, first) - 1, 0)
        return blocks[at:] if limit == ALL else blocks[at : at + limit]

    async def histories(self, runs: Collection[int]) -> dict[int, list[bytes]]:
        return {run: await self.blocks(run, 1) for run in runs}

    async def payloads(self, run: int, events: Collection[int]) -> dict[int, bytes]:
        found = self._tables.payloads.get(run, {})
        return {event: found[event] for event in events if event in found}

    async def job_options(self, jobs: Collection[int]) -> dict[int, Options]:
        found = ((job_id, self._tables.jobs.get(job_id)) for job_id in jobs)
        return {job_id: job.options for job_id, job in found if job is not None and job.options is not None}

    async def open_run(self, namespace: str, workflow_id: str) -> int:
        last = await self.last_run(namespace, workflow_id)
        return last if last and self._tables.workflows[last].status.open else 0

    async def last_run(self, namespace: str, workflow_id: str) -> int:
        return max(
            self._tables.workflow_ids.get((namespace, workflow_id), ()),
            key=lambda run: (self._tables.workflows[run].status.open, run),
            default=0,
        )

    async def last_link(self, root: int, namespace: str = ANY) -> int:
        run = self._tables.run_links.get(root, [0])[-1]
        return run if await self.has_run(run, namespace) else 0

    async def definitions(self, namespace: str = "", name: str = "") -> list[Definition]:
        found = self._tables.definitions
        return [one for key, one in found.items() if not name or key[:2] == (namespace, name)]

    async def waiting_job(self, job_id: int, namespace: str = ANY) -> Job | None:
        job = find_job(self._tables, job_id, namespace)
        return copy(job) if job is not None and job.state <= PENDING else None

    async def waiting_named(self, namespace: str, unique: bytes) -> list[Job]:
        names = {key[0] for key in self._tables.counts}
        ids = [job_id for name in names if (job_id := self._tables.live.get((name, unique)))]
        return [job for job_id in ids if (job := await self.waiting_job(job_id, namespace)) is not None]


class MemoryRuns(SerialRuns, MemoryRunReads, MemoryGround):
    """``RunTables`` in dictionaries."""

    @property
    def values(self) -> MemoryValues:
        return MemoryValues(self._tables)

    @property
    def streams(self) -> MemoryStreams:
        return MemoryStreams(self._tables)

    async def load_short(self, runs: Collection[int]) -> list[tuple[ops.RunRow, list[bytes]]]:
        found = [stored for run in runs if (stored := await self.load(run)) is not None]
        return [(row, await self.blocks(row.id, 1)) for row, snapshot in found if row.status.open and snapshot is None]

    async def write(self, writes: Writes) -> None:
        tables = self._tables
        for row in writes.new:
            assert row.id not in tables.workflows, "a run begins once"
            tables.workflow_ids.setdefault((row.namespace, row.workflow_id), set()).add(row.id)
            if row.id != row.root:
                tables.run_links.setdefault(row.root, []).append(row.id)
            self._put(row, 0)
        for change in (*writes.appended, *writes.rescheduled, *writes.changed):
            self._change(change)
        for block in writes.blocks:
            firsts, blocks = tables.histories.setdefault(block.run, ([], []))
            firsts.append(block.first)
            blocks.append(block.events)
        for run, snapshot in writes.snapshots:
            tables.snapshots[run] = snapshot
        for one in writes.payloads:
            tables.payloads.setdefault(one.run, {})[one.event] = one.data

    def _change(self, change: Guarded) -> None:
        before = self._tables.workflows[change.row.id]
        assert before.events == change.events, "the number of events guards a run"
        if before.closed_us:
            self._tables.closed_runs.remove((before.closed_us, before.id))
        self._put(change.row, before.due_us)

    def _put(self, row: ops.RunRow, due_us: int) -> None:
        tables = self._tables
        before = tables.workflows.get(row.id)
        was_open = before is not None and before.status.open
        tables.open_runs[row.namespace, row.type] += row.status.open - was_open
        tables.workflows[row.id] = _copy(row)
        if row.due_us and row.due_us != due_us:
            heappush(tables.alarms, (row.due_us, row.id))
        if row.parked_us:
            tables.parked_runs[row.id] = None
        else:
            tables.parked_runs.pop(row.id, None)
        if row.closed_us:
            insort(tables.closed_runs, (row.closed_us, row.id))

    async def reschedule(self, changes: Sequence[Reschedule]) -> list[Rescheduled]:
        return [jobs.reschedule(self._tables, change) for change in changes]

    async def save_definitions(self, definitions: Iterable[Definition]) -> None:
        self._tables.definitions.update({(one.namespace, one.name, one.version): one for one in definitions})

    async def remove_definition(self, namespace: str, name: str, version: str) -> None:
        del self._tables.definitions[namespace, name, version]

    async def has_open_run(self, namespace: str, name: str, version: str) -> bool:
        return any(
            row.status.open and (row.namespace, row.type, row.version) == (namespace, name, version)
            for row in self._tables.workflows.values()
        )

    async def reject_roots(self, given: Iterable[Job]) -> list[Job]:
        tables, rejected = self._tables, []
        for one in given:
            job = tables.jobs[one.id]
            before, job.state = job.state, one.state
            tables.live_roots[job.function, job.key] -= 1
            job.term = job.attempt = job.started_us = 0
            job.ended_us, job.error, job.payload = one.ended_us, one.error, one.payload
            jobs.enter_end(tables, job, before, "")
            rejected.append(copy(job))
        return rejected

    # ---- limits of open runs ----

    async def limits_of(self, function: bytes) -> FunctionLimits | None:
        return self._tables.limits.get(function)

    async def count_open(self, namespace: str, name: str) -> int:
        return self._tables.open_runs[namespace, name]

    async def count_open_of_keys(self, function: bytes, keys: Collection[bytes]) -> dict[bytes, int]:
        return {key: self._tables.live_roots[function, key] for key in keys}

    async def pending_keys(self, function: bytes, after: bytes | None, limit: int) -> list[bytes]:
        lines = self._tables.pending.get(function, ())
        keys = {key for line in lines for key in line.keys(None) if after is None or key > after}
        found = (key for key in sorted(keys) if next(self._pending_of(function, key), None) is not None)
        return list(islice(found, limit))

    async def first_of_keys(self, function: bytes, numbers: Mapping[bytes, int]) -> list[Candidate]:
        return [one for key, most in numbers.items() for one in islice(self._pending_of(function, key), most)]

    def _pending_of(self, function: bytes, key: bytes) -> Iterator[Candidate]:
        for priority, line in enumerate(self._tables.pending.get(function, ())):
            for job_id in line.all_of(key, partial(self._is_pending, priority)):
                yield Candidate(priority, job_id, job_id, key)

    def _is_pending(self, priority: int, job_id: int) -> bool:
        job = self._tables.jobs.get(job_id)
        return job is not None and job.state == PENDING and job.priority == priority

    async def buckets(self, function: bytes, pools: Collection[bytes]) -> dict[bytes, StoredBucket]:
        stored = self._tables.buckets
        return {pool: StoredBucket(*stored[function, pool]) for pool in pools if (function, pool) in stored}

    async def save_buckets(self, function: bytes, buckets: Mapping[bytes, StoredBucket]) -> None:
        self._tables.buckets.update({(function, pool): one for pool, one in buckets.items()})

    async def early(self, job: int, request: int) -> EarlySignals:
        last, signals = self._tables.early_signals.get(job, (_NO_SIGNALS, []))
        return last._replace(is_repeated=bool(request) and any(one.request == request for one in signals))

    async def add_early(self, job: int, signals: EarlySignals, signal: Signal) -> None:
        _, stored = self._tables.early_signals.get(job, (_NO_SIGNALS, []))
        stored.append(signal)
        self._tables.early_signals[job] = signals, stored

    async def take_early(self, job: int) -> list[Signal]:
        return self._tables.early_signals.pop(job, (_NO_SIGNALS, []))[1]

    async def early_jobs(self, after: int, limit: int) -> list[tuple[int, bool]]:
        following = sorted(job for job in self._tables.early_signals if job > after)
        return [(number, self._may_begin(self._tables.jobs.get(number))) for number in following[:limit]]

    @staticmethod
    def _may_begin(job: Job | None) -> bool:
        return job is not None and not (State(job.state).ended and job.attempt)

    async def forget_early(self, jobs: Collection[int]) -> None:
        for job in jobs:
            self._tables.early_signals.pop(job, None)

    async def errands(self, after: int, limit: int, most_bytes: int) -> list[tuple[int, bytes]]:
        stored = [one for one in self._tables.errands.items() if one[0] > after]
        return stored[: first_errands((len(errand) for _, errand in stored), limit, most_bytes)]

    async def change_errands(self, done: Collection[int], new: Collection[bytes]) -> None:
        tables = self._tables
        for number in done:
            del tables.errands[number]
        for errand in new:
            tables.last_errand += 1
            tables.errands[tables.last_errand] = errand

    async def parked(self, definition: tuple[str, ...] | None, builds: Collection[str], limit: int) -> list[int]:
        tried, definition = set(builds), definition or ()
        rows = (self._tables.workflows[run] for run in self._tables.parked_runs)
        found = (
            row.id
            for row in rows
            if (row.namespace, row.type, row.version)[: len(definition)] == definition
            and not tried.intersection(row.parking.builds)
        )
        return list(islice(found, limit))

    async def closed_runs(self, namespace: str, before_us: int, limit: int) -> list[ops.RunRow]:
        closed = self._tables.closed_runs
        rows = (self._tables.workflows[run] for _, run in closed[: bisect_left(closed, (before_us, 0))])
        return list(islice((row for row in rows if row.namespace == namespace), limit))

    async def forget(self, runs: Collection[int]) -> None:
        tables = self._tables
        for run in runs:
            row = tables.workflows.pop(run)
            tables.closed_runs.remove((row.closed_us, run))
            tables.histories.pop(run, None)
            tables.snapshots.pop(run, None)
            tables.payloads.pop(run, None)
            of_id = tables.workflow_ids[row.namespace, row.workflow_id]
            of_id.discard(run)
            if row.id != row.root:
                links = tables.run_links[row.root]
                links.remove(run)
                if not links:
                    del tables.run_links[row.root]
            if not of_id:
                del tables.workflow_ids[row.namespace, row.workflow_id]


# ---- reading ----


def find_alarms(tables: Tables, operation: ops.FindAlarms) -> ops.Alarms:
    """Return the runs that are due soon."""
    due: list[tuple[int, int]] = []
    heap = tables.alarms
    while heap:
        at_us, run = heap[0]
        row = tables.workflows.get(run)
        if row is not None and row.due_us == at_us and (not due or due[-1] != (at_us, run)):
            if at_us > operation.until_us or len(due) == operation.rows:
                break
            due.append((at_us, run))
        heappop(heap)
    next_us = heap[0][0] if heap else None
    for entry in due:
        heappush(heap, entry)
    return ops.Alarms([(run, at_us) for at_us, run in due], next_us)


class _Reads(MemoryRunReads):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables


class _Searchable:
    """`SearchableRuns` in dictionaries."""

    def __init__(self, tables: Tables, query: ops.ListRuns) -> None:
        self._rows = tables.workflows
        self._snapshots = tables.snapshots
        self._order = sorted(tables.workflows)
        self._query = query

    async def few(self, most: int) -> list[ListedRun] | None:
        """Return None: there are no indexes."""
        del most
        return None

    async def part(self, before: int | None, rows: int, most: int) -> tuple[list[ListedRun], reading.Mark | None]:
        high = self._place(before)
        part = self._order[max(high - rows, 0) : high]
        matching = (row for run in reversed(part) if self._matches(row := self._rows[run]))
        found = [ListedRun(_copy(row), row.id in self._snapshots) for row in islice(matching, most)]
        if len(part) < rows:
            return found, None
        last = self._rows[part[0]]
        return found, reading.Mark(last.id, last.started_us)

    def _place(self, before: int | None) -> int:
        return len(self._order) if before is None else bisect_left(self._order, before)

    def _matches(self, row: ops.RunRow) -> bool:
        query = self._query
        return (
            row.namespace == query.namespace
            and (not query.status or row.status in query.status)
            and (query.type is None or row.type == query.type)
            and row.started_us >= query.since_us
            and (query.workflow_id is None or row.workflow_id == query.workflow_id)
            and (not query.parked or row.parked_us > 0)
            and (not query.paused or row.paused_us > 0)
            and (not query.needs_decision or row.decision > 0)
        )


async def list_runs(tables: Tables, query: ops.ListRuns, meter: Meter) -> Page[ops.ShownRun]:
    """List runs, newest first."""
    return await reading.list_runs(_Searchable(tables, query), _Reads(tables), query, meter)


async def show_run(tables: Tables, query: ops.ShowRun, _: Meter) -> ops.Shown:
    """Return a run with its state, or waiting jobs."""
    return await reading.show_run(_Reads(tables), query)


async def read_history(tables: Tables, query: ops.ReadHistory, meter: Meter) -> Page[Event]:
    """Return a page of events."""
    return await reading.read_history(_Reads(tables), query, meter)


async def read_latest(tables: Tables, query: ReadLatest, meter: Meter) -> dict[int, list[Event] | str]:
    """Return the newest events of runs."""
    return await reading.read_latest(_Reads(tables), query, meter)


async def count_parked(tables: Tables, query: ops.CountParked, _: Meter) -> dict[tuple[str, str, str], int]:
    """Count parked runs."""
    del query
    numbers: dict[tuple[str, str, str], int] = {}
    for run in tables.parked_runs:
        row = tables.workflows[run]
        key = (row.namespace, row.type, row.version)
        numbers[key] = numbers.get(key, 0) + 1
    return numbers


async def count_open(tables: Tables, query: CountOpen, _: Meter) -> dict[tuple[str, str, str], int]:
    """Count open runs."""
    del query
    return Counter((row.namespace, row.type, row.version) for row in tables.workflows.values() if row.status.open)


async def find_definitions(tables: Tables, query: ops.FindDefinitions, _: Meter) -> list[Definition]:
    """Return all definitions."""
    del query
    return list(tables.definitions.values())


async def find_versions(tables: Tables, query: ops.FindVersions, meter: Meter) -> ops.Versions:
    """Return all definitions, and the numbers of parked runs."""
    del query
    definitions = await find_definitions(tables, ops.FindDefinitions(), meter)
    return ops.Versions(definitions, await count_parked(tables, ops.CountParked(), meter))


class MemoryWorkflowSlice:
    """The slice on this engine: ``jobs.slices.Slice``."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    handlers: Final[Mapping[type[Operation], Callable[[Tables, Any], object]]] = {ops.FindAlarms: find_alarms}
    readers: Final[Mapping[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {
        ops.ListRuns: list_runs,
        ops.ShowRun: show_run,
        ops.ReadHistory: read_history,
        ReadLatest: read_latest,
        ops.CountParked: count_parked,
        CountOpen: count_open,
        ops.FindDefinitions: find_definitions,
        ops.FindVersions: find_versions,
    }

    def __init__(self, *, cache: RunCache | None = None, limits: Limits | None = None) -> None:
        self._observers: list[RunObserver] = []
        self.cache = RunCache() if cache is None else cache
        self._limits = Limits() if limits is None else limits
        self._errands_aside = ErrandsAside()

    def subscribe(self, observer: RunObserver) -> None:
        self._observers.append(observer)

    def errands_stored(self) -> None:
        """Tell the observers that errands were stored by another part of a committed group."""
        for observer in self._observers:
            observer.errands_stored()

    def unit(self, tx: Transaction) -> WorkflowUnit:
        return WorkflowUnit(MemoryRuns(tx), self.cache, self._limits, self._observers, self._errands_aside)
