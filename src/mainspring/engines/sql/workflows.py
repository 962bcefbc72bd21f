"""The workflows slice: the conversions of runs to rows and back, its queries, and its tables in a group.

An engine adds root jobs, and looks up jobs that have not begun: see `WorkflowSlice`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from mainspring.engines.sql.statements import LARGEST
from mainspring.engines.sql.streams import StreamRows
from mainspring.engines.sql.values import ValueRows
from mainspring.errors import StoreError
from mainspring.jobs.model import State, read_options
from mainspring.namespaces import ANY
from mainspring.workflows import reading, unit
from mainspring.workflows import store as ops
from mainspring.workflows.cross_run import ErrandsAside
from mainspring.workflows.definitions import CountOpen
from mainspring.workflows.model import Definition, Key, Limits, Parking, Status
from mainspring.workflows.reading import ListedRun, ReadLatest, RunCache
from mainspring.workflows.requests import Signal
from mainspring.workflows.store import (
    CountParked,
    FindDefinitions,
    FindVersions,
    HasErrands,
    ListRuns,
    ReadHistory,
    RunRow,
    ShowRun,
    Versions,
)
from mainspring.workflows.tables import ALL, EarlySignals, Snapshot, StoredRun, first_errands
from mainspring.workflows.unit import WorkflowUnit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mainspring.engines.sql.statements import Readers, Statements, Transaction, Values
    from mainspring.jobs.model import Job, Options
    from mainspring.storage.engine import Meter, Operation, Page
    from mainspring.workflows.history import Event
    from mainspring.workflows.observers import RunObserver
    from mainspring.workflows.store import Shown, ShownRun
    from mainspring.workflows.tables import Guarded, RunTables, Writes

FindJob: TypeAlias = Callable[[Any, int, str], Awaitable["Job | None"]]
"""Returns a job by its id in a transaction of an engine, of one namespace or of any, without its payload."""

_encode = msgspec.msgpack.Encoder().encode
_decode_parking = msgspec.msgpack.Decoder(Parking).decode
_decode_definition = msgspec.msgpack.Decoder(Definition).decode
_NONE: Final = Parking()


def new_row(run: RunRow) -> Values:
    """Return the values of ``run_columns``."""
    return (
        run.id,
        run.root,
        run.namespace,
        run.workflow_id,
        run.type,
        run.version,
        run.slot,
        run.started_us,
        run.input_size,
        *_changed(run),
    )


def appended_row(change: Guarded) -> Values:
    """Return the values of the statement ``append_run``."""
    run, events = change
    return (run.events, run.history_bytes, run.about or None, run.decision, run.id, events)


def rescheduled_row(change: Guarded) -> Values:
    """Return the values of the statement ``reschedule_run``."""
    run, events = change
    return (run.events, run.history_bytes, run.about or None, run.decision, run.due_us or None, run.id, events)


def changed_row(change: Guarded) -> Values:
    """Return the values of the statement ``change_run``."""
    run, events = change
    return (*_changed(run), run.id, events)


def _changed(run: RunRow) -> Values:
    parking = run.parking
    return (
        run.events,
        run.history_bytes,
        run.about or None,
        run.decision,
        run.due_us or None,
        int(run.status),
        run.closed_us,
        run.output_size,
        parking.parked_us or None,
        "\n".join(parking.builds),
        None if parking == _NONE else _encode(parking),
        run.paused_us or None,
    )


def stored_row(row: Sequence[Any]) -> RunRow:
    """Return the run of the values of ``run_columns``."""
    (
        run, root, namespace, workflow_id, kind, version, slot, started, input_size, events, history_bytes, about, decision, due,
        status, closed, output_size, _, _, parking, _,
    ) = row  # fmt: skip
    unread = ""
    try:
        now = Status(status)
    except ValueError:
        now, unread = Status.OPEN, f"this version of Mainspring does not know the status {status} of runs"
    try:
        parked = Parking() if parking is None else _decode_parking(parking)
    except (ValueError, RecursionError) as error:  # a MsgspecError is a ValueError
        parked, unread = Parking(), f"this version of Mainspring cannot read why it is parked: {error}"
    return RunRow(
        run, root, namespace, workflow_id, kind, version, now, started, closed, events, history_bytes, input_size,
        output_size, due or 0, about or b"", decision, slot, parked, unread,
    )  # fmt: skip


def stored_definition(namespace: str, name: str, version: str, definition: bytes) -> Definition:
    """Return a stored definition; of one that this version cannot read, the key: the others are needed in each transaction.

    Each of its workers stores it when it registers.
    """
    try:
        return _decode_definition(definition)
    except (ValueError, RecursionError):  # a MsgspecError is a ValueError
        return Definition(name, version, namespace)


class RunReads:
    """``workflows.tables.Runs``: reads of runs, in a transaction or in a query."""

    def __init__(self, tx: Transaction, find_job: FindJob) -> None:
        self._tx: Any = tx
        self._sql = tx.sql
        self._find_job = find_job

    async def load(self, run: int, namespace: str = ANY) -> StoredRun | None:
        if run > LARGEST:
            return None
        row = await self._sql.first("load_run", run, namespace)
        if row is None:
            return None
        snapshot_bytes, state = row[21:]
        await self._tx.load_nodes([run, row[1]])
        return StoredRun(stored_row(row[:21]), None if state is None else Snapshot(snapshot_bytes, state))

    async def has_run(self, run: int, namespace: str) -> bool:
        return run <= LARGEST and bool(await self._first("run_of_namespace", run, namespace))

    async def blocks(self, run: int, first: int, limit: int = ALL) -> list[bytes]:
        found = await self._sql.fetch("blocks", run, first, LARGEST if limit == ALL else limit)
        return [block for (block,) in found]

    async def histories(self, runs: Collection[int]) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {run: [] for run in runs}
        for run, block in await self._sql.fetch("whole_histories", self._sql.among(found)) if found else ():
            found[run].append(block)
        return found

    async def payloads(self, run: int, events: Collection[int]) -> dict[int, bytes]:
        found = await self._sql.fetch("payloads", run, self._sql.among(events)) if events else ()
        return {event: bytes(data) for event, data in found}

    async def job_options(self, jobs: Collection[int]) -> dict[int, Options]:
        found = await self._sql.fetch("job_options", self._sql.among(jobs)) if jobs else ()
        return {job_id: read_options(options) for job_id, options in found}

    async def open_run(self, namespace: str, workflow_id: str) -> int:
        if "\0" in workflow_id:
            return 0  # no run has such an id
        return await self._first("open_run", namespace, workflow_id)

    async def last_run(self, namespace: str, workflow_id: str) -> int:
        if "\0" in workflow_id:
            return 0
        found = await self._first("open_run", namespace, workflow_id)
        return found or await self._first("last_run", namespace, workflow_id)

    async def last_link(self, root: int, namespace: str = ANY) -> int:
        return await self._first("last_link", root, namespace)

    async def definitions(self, namespace: str = "", name: str = "") -> list[Definition]:
        fetch = self._sql.fetch
        if "\0" in name:
            return []
        found = await (fetch("definitions_of", namespace, name) if name else fetch("definitions"))
        return [stored_definition(*row) for row in found]

    async def waiting_job(self, job_id: int, namespace: str = ANY) -> Job | None:
        job = await self._find_job(self._tx, job_id, namespace)
        return job if job is not None and job.state <= State.PENDING else None

    async def waiting_named(self, namespace: str, unique: bytes) -> list[Job]:
        ids = await self._sql.fetch("waiting_named", namespace, unique)
        return [job for (job_id,) in ids if (job := await self.waiting_job(job_id)) is not None]

    async def _first(self, statement: str, *values: Any) -> int:
        row = await self._sql.first(statement, *values)
        return 0 if row is None else int(row[0])


class _Searchable:
    """`SearchableRuns` in a table."""

    def __init__(self, tx: Transaction, query: ListRuns) -> None:
        self._tx = tx
        self._sql = tx.sql
        self._query = query
        self._is_of_open = set(query.status) == {Status.OPEN}

    async def few(self, most: int) -> list[ListedRun] | None:
        """Return the runs of a workflow id, or the parked ones, by their index; None if there are more than ``most``."""
        query = self._query
        if "\0" in (query.workflow_id or "") + (query.type or ""):
            return []
        if query.workflow_id is not None:
            ids = await self._sql.fetch("few_named", query.namespace, query.workflow_id, most + 1)
        elif query.parked:
            ids = await self._sql.fetch("few_parked", query.namespace, most + 1)
        else:
            return None
        if len(ids) > most:
            return None
        among = self._sql.among(run for (run,) in ids)
        found, _ = await self._list("list_these_runs", "list_these_open_runs", query.after, among, query.limit + 1)
        return found

    async def part(self, before: int | None, rows: int, most: int) -> tuple[list[ListedRun], reading.Mark | None]:
        return await self._list("list_runs", "list_open_runs", before, rows - 1, most)

    async def _list(
        self, of_all: str, of_open: str, before: int | None, among: object, most: int
    ) -> tuple[list[ListedRun], reading.Mark | None]:
        query = self._query
        statuses = sum(1 << status for status in set(query.status))
        filters = (query.namespace, statuses, query.type, query.since_us, query.workflow_id, int(query.parked))
        values = (_id(before), among, *filters, int(query.needs_decision), int(query.paused), most)
        found: list[ListedRun] = []
        mark = None
        for matches, *values_of_run, has_snapshot in await self._sql.fetch(
            of_open if self._is_of_open else of_all, *values
        ):
            row = stored_row(values_of_run)
            if matches:
                found.append(ListedRun(row, bool(has_snapshot)))
            else:
                mark = reading.Mark(row.id, row.started_us)
        await self._tx.load_nodes([one for row, _ in found for one in (row.id, row.root)])
        return found, mark


def _id(before: int | None) -> int:
    return LARGEST if before is None else min(before, LARGEST)


def readers(find_job: FindJob) -> Readers:
    """Return the answers to queries."""

    async def list_runs(tx: Transaction, query: ListRuns, meter: Meter) -> Page[ShownRun]:
        return await reading.list_runs(_Searchable(tx, query), RunReads(tx, find_job), query, meter)

    async def show_run(tx: Transaction, query: ShowRun, _: Meter) -> Shown:
        return await reading.show_run(RunReads(tx, find_job), query)

    async def read_history(tx: Transaction, query: ReadHistory, meter: Meter) -> Page[Event]:
        return await reading.read_history(RunReads(tx, find_job), query, meter)

    async def read_latest(tx: Transaction, query: ReadLatest, meter: Meter) -> dict[int, list[Event] | str]:
        return await reading.read_latest(RunReads(tx, find_job), query, meter)

    async def find_definitions(tx: Transaction, _query: FindDefinitions, _: Meter) -> list[Definition]:
        return await RunReads(tx, find_job).definitions()

    return {
        ListRuns: list_runs,
        ShowRun: show_run,
        ReadHistory: read_history,
        ReadLatest: read_latest,
        CountParked: _count_parked,
        FindVersions: _find_versions,
        HasErrands: _has_errands,
        CountOpen: _count_open,
        FindDefinitions: find_definitions,
    }


async def _has_errands(tx: Transaction, query: HasErrands, _: Meter) -> bool:
    return bool((await tx.sql.first("has_errands", query.after))[0])


async def _count_parked(tx: Transaction, _query: CountParked, _: Meter) -> dict[tuple[str, str, str], int]:
    return _counts(await tx.sql.fetch("count_parked"))


async def _find_versions(tx: Transaction, _query: FindVersions, _: Meter) -> Versions:
    versions = Versions([], {})
    for namespace, name, version, definition, parked in await tx.sql.fetch("versions"):
        if definition is None:
            versions.parked[namespace, name, version] = parked
        else:
            versions.definitions.append(stored_definition(namespace, name, version, definition))
    return versions


async def _count_open(tx: Transaction, _query: CountOpen, _: Meter) -> dict[tuple[str, str, str], int]:
    return _counts(await tx.sql.fetch("count_open"))


def _counts(rows: Iterable[Sequence[Any]]) -> dict[tuple[str, str, str], int]:
    return {(row[0], row[1], row[2]): row[3] for row in rows}


class RunWrites(RunReads):
    """``workflows.tables.RunTables`` inside the open transaction, without the services of its engine."""

    @property
    def values(self) -> ValueRows:
        return ValueRows(self._tx)

    @property
    def streams(self) -> StreamRows:
        return StreamRows(self._tx)

    async def load_short(self, runs: Collection[int]) -> list[tuple[RunRow, list[bytes]]]:
        rows = [stored_row(values) for values in await self._sql.fetch("load_short_runs", self._sql.among(runs))]
        blocks = await self.histories([row.id for row in rows])
        return [(row, blocks[row.id]) for row in rows]

    async def write(self, writes: Writes) -> None:
        many = self._sql.many
        if writes.appended:
            await self._change("append_run", appended_row, writes.appended)
        if writes.rescheduled:
            await self._change("reschedule_run", rescheduled_row, writes.rescheduled)
        if writes.changed:
            await self._change("change_run", changed_row, writes.changed)
        if writes.new:  # a closed run has released its workflow id by now
            await many("new_run", map(new_row, writes.new))
        if writes.blocks:
            await many("append_block", writes.blocks)
        if writes.payloads:
            await many("add_payload", writes.payloads)
        if writes.snapshots:
            await many("save_snapshot", ((run, *snapshot) for run, snapshot in writes.snapshots))

    async def _change(self, statement: str, values: Callable[[Guarded], Values], changes: Sequence[Guarded]) -> None:
        self.check_changed(await self._sql.many(statement, map(values, changes)), changes)

    @staticmethod
    def check_changed(number: int, changes: Sequence[Guarded]) -> None:
        """Raise StoreError unless all of some changes were written."""
        if number != len(changes):
            runs = ", ".join(str(change.row.id) for change in changes)
            raise StoreError(f"a run in the store is not as this node has it in memory: one of {runs}")

    async def save_definitions(self, definitions: Iterable[Definition]) -> None:
        rows = {(one.namespace, one.name, one.version): one for one in definitions}
        await self._sql.many("save_definition", [(*key, _encode(one)) for key, one in rows.items()])

    async def remove_definition(self, namespace: str, name: str, version: str) -> None:
        await self._sql.execute("remove_definition", namespace, name, version)

    async def has_open_run(self, namespace: str, name: str, version: str) -> bool:
        return await self._sql.first("open_of_version", namespace, name, version) is not None

    async def count_open(self, namespace: str, name: str) -> int:
        return await self._first("count_open_of", namespace, name)

    async def early(self, job: int, request: int) -> EarlySignals:
        first = self._sql.first
        is_repeated = bool(request) and await first("early_request", job, _signed(request)) is not None
        last = await first("last_early", job)
        return EarlySignals(0, 0) if last is None else EarlySignals(last[0], last[1], is_repeated)

    async def add_early(self, job: int, signals: EarlySignals, signal: Signal) -> None:
        values = (job, signals.number, signals.bytes, _signed(signal.request), signal.name, signal.input)
        await self._sql.execute("add_early", *values)

    async def take_early(self, job: int) -> list[Signal]:
        found = await self._sql.fetch("early_signals", job)
        if found:
            await self.forget_early([job])
        return [Signal(Key(job=job), name, data, request % 2**64) for name, data, request in found]

    async def early_jobs(self, after: int, limit: int) -> list[tuple[int, bool]]:
        found: list[tuple[int, bool]] = []
        while len(found) < limit and (following := await self._sql.first("next_early", after)) is not None:
            after, may_begin = following
            found.append((after, bool(may_begin)))
        return found

    async def forget_early(self, jobs: Collection[int]) -> None:
        await self._sql.execute("forget_early", self._sql.among(jobs))

    async def errands(self, after: int, limit: int, most_bytes: int) -> list[tuple[int, bytes]]:
        sizes = await self._sql.fetch("errand_sizes", after, limit)
        number = first_errands([size for (size,) in sizes], limit, most_bytes)
        return [(one, errand) for one, errand in await self._sql.fetch("errands", after, number)] if number else []

    async def change_errands(self, done: Collection[int], new: Collection[bytes]) -> None:
        if done:
            await self._sql.execute("delete_errands", self._sql.among(done))
        await self._sql.many("add_errand", [(errand,) for errand in new])

    async def parked(self, definition: tuple[str, ...] | None, builds: Collection[str], limit: int) -> list[int]:
        found: list[int] = []
        tried = set(builds)
        definition = definition or ()
        place: Sequence[str] = (*definition, "", "", "", "")[:4]
        if len(definition) == 3:  # the builds that follow on the empty set are after it
            await self._add_parked(found, place, limit)
        while len(found) < limit:
            following = await self._sql.first("next_builds", *place)
            if following is None or following[: len(definition)] != definition:
                break
            place = following
            if not tried.intersection(place[3].split("\n")):
                await self._add_parked(found, place, limit)
        return found

    async def _add_parked(self, found: list[int], place: Sequence[str], limit: int) -> None:
        runs = await self._sql.fetch("parked_runs", *place, limit - len(found))
        found.extend(run for (run,) in runs)

    async def closed_runs(self, namespace: str, before_us: int, limit: int) -> list[RunRow]:
        return [stored_row(row) for row in await self._sql.fetch("closed_runs", namespace, before_us, limit)]

    async def forget(self, runs: Collection[int]) -> None:
        ids = self._sql.among(runs)
        for statement in ("forget_histories", "forget_payloads", "forget_snapshots", "forget_runs"):
            await self._sql.execute(statement, ids)


def _signed(number: int) -> int:
    """Return an unsigned number of 64 bits as a signed one: these stores have no others."""
    return number if number < 2**63 else number - 2**64


async def find_alarms(tx: Transaction, operations: Sequence[ops.FindAlarms]) -> list[ops.Alarms]:
    """Return the runs that are due soon."""
    return [await _find_alarms(tx.sql, operation) for operation in operations]


async def _find_alarms(sql: Statements, operation: ops.FindAlarms) -> ops.Alarms:
    due = [*await sql.fetch("due_runs", operation.until_us, operation.rows)]
    following = due.pop()[1] if due and not due[-1][0] else None
    if len(due) == operation.rows:  # there may be more at the same time
        row = await sql.first("next_run", due[-1][1], due[-1][0])
        following = None if row is None else row[0]
    return ops.Alarms(due, following)


class WorkflowSlice:
    """``jobs.slices.Slice`` of an engine, which passes its tables (`RunWrites` and ``jobs.slices.RunTransaction``)."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    unit_kind: type[WorkflowUnit] = WorkflowUnit

    def __init__(
        self,
        tables: Callable[[Any], RunTables],
        find_job: FindJob,
        handlers: Mapping[type[Operation], Callable[..., Any]],
        cache: RunCache | None,
        limits: Limits | None,
    ) -> None:
        self._tables = tables
        self.handlers = handlers
        self.readers = readers(find_job)
        self._observers: list[RunObserver] = []
        self.cache = RunCache() if cache is None else cache
        self._limits = Limits() if limits is None else limits
        self._errands_aside = ErrandsAside()

    def subscribe(self, observer: RunObserver) -> None:
        """Report the changes of each committed group to an observer."""
        self._observers.append(observer)

    def errands_stored(self) -> None:
        """Tell the observers that errands were stored by another part of a committed group."""
        for observer in self._observers:
            observer.errands_stored()

    def unit(self, tx: Any) -> WorkflowUnit:
        """Begin a unit of work."""
        return self.unit_kind(self._tables(tx), self.cache, self._limits, self._observers, self._errands_aside)
