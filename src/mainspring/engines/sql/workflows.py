"""The workflows slice on SQLite: the conversions of runs to rows and back, its queries, and its tables in a group."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.engines.sqlite import transaction
from mainspring.engines.sqlite.jobs import find_job
from mainspring.engines.sqlite.slice_transaction import SqliteGround
from mainspring.engines.sqlite.statements import SQL
from mainspring.engines.sqlite.transaction import LARGEST_ID
from mainspring.errors import StoreError
from mainspring.jobs.model import State
from mainspring.jobs.owners import Ended, note
from mainspring.namespaces import ANY
from mainspring.workflows import reading, unit
from mainspring.workflows import store as ops
from mainspring.workflows.cross_run import ErrandsAside
from mainspring.workflows.definitions import CountOpen
from mainspring.workflows.model import Definition, Key, Limits, Parking, Status
from mainspring.workflows.reading import ReadLatest, RunCache
from mainspring.workflows.requests import Signal
from mainspring.workflows.store import CountParked, FindDefinitions, ListRuns, ReadHistory, RunRow, ShowRun
from mainspring.workflows.tables import ALL, EarlySignals, Snapshot, StoredRun, first_errands
from mainspring.workflows.unit import WorkflowUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence

    from mainspring.engines.sqlite.transaction import Row, Transaction
    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Meter, Operation, Page, Query
    from mainspring.workflows.history import Event
    from mainspring.workflows.observers import RunObserver
    from mainspring.workflows.store import Shown, ShownRun
    from mainspring.workflows.tables import Guarded, Writes

_encode = msgspec.msgpack.Encoder().encode
_decode_parking = msgspec.msgpack.Decoder(Parking).decode
_decode_definition = msgspec.msgpack.Decoder(Definition).decode
_NONE: Final = Parking()


def new_row(run: RunRow) -> Row:
    """Return the values of the statement ``new_run``."""
    return (
        run.id,
        run.root,
        run.namespace,
        run.workflow_id,
        run.type,
        run.version,
        int(run.status),
        run.started_us,
        run.closed_us,
        run.events,
        run.history_bytes,
        run.input_size,
        run.output_size,
        run.due_us or None,
        run.about or None,
        run.decision,
        run.slot,
        *_parking(run.parking),
    )


def appended_row(change: Guarded) -> Row:
    """Return the values of the statement ``append_run``."""
    run, events = change
    return (run.events, run.history_bytes, run.about or None, run.decision, run.id, events)


def rescheduled_row(change: Guarded) -> Row:
    """Return the values of the statement ``reschedule_run``."""
    run, events = change
    return (run.events, run.history_bytes, run.about or None, run.decision, run.due_us or None, run.id, events)


def changed_row(change: Guarded) -> Row:
    """Return the values of the statement ``change_run``."""
    run, events = change
    return (
        run.events,
        run.history_bytes,
        run.about or None,
        run.decision,
        run.due_us or None,
        int(run.status),
        run.closed_us,
        run.output_size,
        *_parking(run.parking),
        run.id,
        events,
    )


def _parking(parking: Parking) -> Row:
    return (parking.parked_us or None, "\n".join(parking.builds), None if parking == _NONE else _encode(parking))


def stored_row(row: Sequence[Any]) -> RunRow:
    """Return the run of a row; the statements ``load_run`` and ``closed_runs`` select the same columns in the same order."""
    (
        run, root, namespace, workflow_id, kind, version, status, started, closed, events, history_bytes, input_size,
        output_size, due, about, decision, slot, _, _, parking,
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


def _definition(namespace: str, name: str, version: str, definition: bytes) -> Definition:
    """Return a stored definition; of one that this version cannot read, the key: the others are needed in each transaction.

    Each of its workers stores it when it registers.
    """
    try:
        return _decode_definition(definition)
    except (ValueError, RecursionError):  # a MsgspecError is a ValueError
        return Definition(name, version, namespace)


class SqliteRunReads:
    """``workflows.tables.Runs``: reads of runs, in a transaction or in a query."""

    _tx: Transaction

    async def load(self, run: int, namespace: str = ANY) -> StoredRun | None:
        """Return a run."""
        if run > LARGEST_ID:
            return None
        for row in self._tx.cursor.execute(SQL["load_run"], (run, namespace)):
            history_bytes, state = row[20:]
            snapshot = None if state is None else Snapshot(history_bytes, state)
            return StoredRun(stored_row(row[:20]), snapshot)
        return None

    async def has_run(self, run: int, namespace: str) -> bool:
        """Return whether a run exists in a namespace."""
        return run <= LARGEST_ID and bool(self._first("run_of_namespace", run, namespace))

    async def blocks(self, run: int, first: int, limit: int = ALL) -> list[bytes]:
        """Return the blocks of a history."""
        return [block for (block,) in self._tx.cursor.execute(SQL["blocks"], (run, first, limit))]

    async def open_run(self, namespace: str, workflow_id: str) -> int:
        """Return the open run of a workflow id."""
        return self._first("open_run", namespace, workflow_id)

    async def last_run(self, namespace: str, workflow_id: str) -> int:
        """Return the newest run of a workflow id."""
        return self._first("open_run", namespace, workflow_id) or self._first("last_run", namespace, workflow_id)

    async def last_link(self, root: int, namespace: str = ANY) -> int:
        """Return the newest run that continues another one of a root job."""
        return self._first("last_link", root, namespace)

    async def definitions(self, namespace: str = "", name: str = "") -> list[Definition]:
        """Return definitions."""
        cursor = self._tx.cursor
        found = cursor.execute(*((SQL["definitions_of"], (namespace, name)) if name else (SQL["definitions"],)))
        return [_definition(*row) for row in found]

    async def waiting_job(self, job_id: int, namespace: str = ANY) -> Job | None:
        """Return a waiting job."""
        job = find_job(self._tx, job_id, namespace)
        return job if job is not None and job.state <= State.PENDING else None

    async def waiting_named(self, namespace: str, unique: bytes) -> list[Job]:
        """Return waiting jobs by their unique."""
        ids = [job_id for (job_id,) in self._tx.cursor.execute(SQL["waiting_named"], (namespace, unique))]
        return [job for job_id in ids if (job := await self.waiting_job(job_id)) is not None]

    def _first(self, statement: str, *values: Any) -> int:
        for (run,) in self._tx.cursor.execute(SQL[statement], values):
            assert isinstance(run, int)
            return run
        return 0


class _Reads(SqliteRunReads):
    def __init__(self, tx: Transaction) -> None:
        self._tx = tx


class _Searchable:
    """`SearchableRuns` in a file."""

    def __init__(self, tx: Transaction, query: ListRuns) -> None:
        self._tx = tx
        self._query = query

    async def few(self, most: int) -> list[int] | None:
        """Return the runs of a workflow id, or the parked ones, by their index; None if there are more than ``most``."""
        query = self._query
        if query.workflow_id is not None:
            ids = self._ids("few_named", query.namespace, query.workflow_id, most + 1)
        elif query.parked:
            ids = self._ids("few_parked", query.namespace, most + 1)
        else:
            return None
        return None if len(ids) > most else self._list("list_these_runs", query.after, json.dumps(ids), query.limit + 1)

    async def mark(self, before: int | None, rows: int) -> reading.Mark | None:
        """Return the end of a part."""
        for run, started_us in self._tx.cursor.execute(SQL["mark_run"], (_id(before), rows - 1)):
            return reading.Mark(run, started_us)
        return None

    async def between(self, low: int, before: int | None, most: int) -> list[int]:
        """Return the matching runs of a part."""
        return self._list("list_runs", before, low, most)

    def _list(self, statement: str, before: int | None, among: object, most: int) -> list[int]:
        query = self._query
        statuses = sum(1 << status for status in set(query.status))
        filters = (query.namespace, statuses, query.type, query.since_us, query.workflow_id, query.parked)
        return self._ids(statement, _id(before), among, *filters, query.needs_decision, most)

    def _ids(self, statement: str, *values: Any) -> list[int]:
        return [run for (run,) in self._tx.cursor.execute(SQL[statement], values)]


def _id(before: int | None) -> int:
    return LARGEST_ID if before is None else min(before, LARGEST_ID)


async def list_runs(tx: Transaction, query: ListRuns, meter: Meter) -> Page[ShownRun]:
    """List runs, newest first."""
    return await reading.list_runs(_Searchable(tx, query), _Reads(tx), query, meter)


async def show_run(tx: Transaction, query: ShowRun, _: Meter) -> Shown:
    """Return a run with its state, or waiting jobs."""
    return await reading.show_run(_Reads(tx), query)


async def read_history(tx: Transaction, query: ReadHistory, meter: Meter) -> Page[Event]:
    """Return a page of events."""
    return await reading.read_history(_Reads(tx), query, meter)


async def read_latest(tx: Transaction, query: ReadLatest, meter: Meter) -> dict[int, list[Event] | str]:
    """Return the newest events of runs."""
    return await reading.read_latest(_Reads(tx), query, meter)


async def count_parked(tx: Transaction, _query: CountParked, _: Meter) -> dict[tuple[str, str, str], int]:
    """Count parked runs."""
    return {(key[0], key[1], key[2]): number for *key, number in tx.cursor.execute(SQL["count_parked"])}


async def count_open(tx: Transaction, _query: CountOpen, _: Meter) -> dict[tuple[str, str, str], int]:
    """Count open runs."""
    return {(key[0], key[1], key[2]): number for *key, number in tx.cursor.execute(SQL["count_open"])}


async def find_definitions(tx: Transaction, _query: FindDefinitions, _: Meter) -> list[Definition]:
    """Return all definitions."""
    return await _Reads(tx).definitions()


READERS: Final[Mapping[type[Query[Any]], Callable[[Transaction, Any, Meter], Coroutine[Any, Any, Any]]]] = {
    ListRuns: list_runs,
    ShowRun: show_run,
    ReadHistory: read_history,
    ReadLatest: read_latest,
    CountParked: count_parked,
    CountOpen: count_open,
    FindDefinitions: find_definitions,
}

_RUNNING = int(State.RUNNING)
_LARGEST_RUN_ID: Final = transaction.LARGEST_ID


class SqliteRuns(SqliteRunReads, SqliteGround):
    """``RunTables`` inside the open transaction."""

    async def load_short(self, runs: Collection[int]) -> list[tuple[ops.RunRow, list[bytes]]]:
        """Return runs with their histories."""
        found: dict[int, tuple[ops.RunRow, list[bytes]]] = {}
        for values in self._tx.cursor.execute(SQL["load_short_runs"], (json.dumps([*runs]),)):
            found[values[0]] = stored_row(values), []
        for run, block in self._tx.cursor.execute(SQL["whole_histories"], (json.dumps([*found]),)):
            found[run][1].append(block)
        return list(found.values())

    async def write(self, writes: Writes) -> None:
        """Write runs and events."""
        cursor = self._tx.cursor
        if writes.appended:
            self._change("append_run", appended_row, writes.appended)
        if writes.rescheduled:
            self._change("reschedule_run", rescheduled_row, writes.rescheduled)
        if writes.changed:
            self._change("change_run", changed_row, writes.changed)
        if writes.new:  # a closed run has released its workflow id by now
            cursor.executemany(SQL["new_run"], map(new_row, writes.new))
        if writes.blocks:
            cursor.executemany(SQL["append_block"], writes.blocks)
        if writes.snapshots:
            cursor.executemany(SQL["save_snapshot"], ((run, *snapshot) for run, snapshot in writes.snapshots))

    def _change(self, statement: str, values: Callable[[Guarded], transaction.Row], changes: Sequence[Guarded]) -> None:
        connection = self._tx.cursor.connection
        before = connection.total_changes()
        self._tx.cursor.executemany(SQL[statement], map(values, changes))
        if connection.total_changes() - before != len(changes):
            runs = ", ".join(str(change.row.id) for change in changes)
            raise StoreError(f"a run in the store is not as this node has it in memory: one of {runs}")

    async def save_definitions(self, definitions: Iterable[Definition]) -> None:
        """Store definitions."""
        values = ((one.namespace, one.name, one.version, _encode(one)) for one in definitions)
        self._tx.cursor.executemany(SQL["save_definition"], values)

    async def remove_definition(self, namespace: str, name: str, version: str) -> None:
        """Delete a definition."""
        self._tx.cursor.execute(SQL["remove_definition"], (namespace, name, version))

    async def has_open_run(self, namespace: str, name: str, version: str) -> bool:
        """Return whether an open run has a definition."""
        return bool(list(self._tx.cursor.execute(SQL["open_of_version"], (namespace, name, version))))

    async def reject_roots(self, jobs: Iterable[Job]) -> list[Job]:
        """End root jobs whose runs do not begin."""
        tx = self._tx
        rejected = []
        for given in jobs:
            values = (given.state, given.ended_us, given.error or None, given.payload, given.id)
            for job in transaction.stored_jobs(list(tx.cursor.execute(SQL["reject_root"], values)), tx.functions):
                function = tx.functions.number(job.function)
                tx.count(function, _RUNNING, job.priority, -1)
                tx.count(function, job.state, job.priority, 1)
                note(tx.notices, Ended.of(job))
                rejected.append(job)
        return rejected

    async def early(self, job: int, request: int) -> EarlySignals:
        """Return how many signals are stored for a job."""
        cursor = self._tx.cursor
        is_repeated = bool(request) and bool(list(cursor.execute(SQL["early_request"], (job, _signed(request)))))
        for number, size in cursor.execute(SQL["last_early"], (job,)):
            return EarlySignals(number, size, is_repeated)
        return EarlySignals(0, 0)

    async def add_early(self, job: int, signals: EarlySignals, signal: Signal) -> None:
        """Store another signal for a job."""
        values = (job, signals.number, signals.bytes, _signed(signal.request), signal.name, signal.input)
        self._tx.cursor.execute(SQL["add_early"], values)

    async def take_early(self, job: int) -> list[Signal]:
        """Delete and return the signals that are stored for a job."""
        found = list(self._tx.cursor.execute(SQL["early_signals"], (job,)))
        if found:
            await self.forget_early([job])
        return [Signal(Key(job=job), name, data, request % 2**64) for name, data, request in found]

    async def early_jobs(self, after: int, limit: int) -> list[tuple[int, bool]]:
        """Return jobs that have stored signals."""
        found: list[tuple[int, bool]] = []
        while len(found) < limit and (following := list(self._tx.cursor.execute(SQL["next_early"], (after,)))):
            ((after, may_begin),) = following
            found.append((after, bool(may_begin)))
        return found

    async def forget_early(self, jobs: Collection[int]) -> None:
        """Delete the signals that are stored for jobs."""
        self._tx.cursor.executemany(SQL["forget_early"], [(job,) for job in jobs])

    async def errands(self, after: int, limit: int, most_bytes: int) -> list[tuple[int, bytes]]:
        """Return the first stored errands after a number."""
        return first_errands(self._tx.cursor.execute(SQL["first_errands"], (after, limit)), limit, most_bytes)

    async def change_errands(self, done: Collection[int], new: Collection[bytes]) -> None:
        """Delete and store errands."""
        self._tx.cursor.executemany(SQL["delete_errand"], [(number,) for number in done])
        self._tx.cursor.executemany(SQL["add_errand"], [(errand,) for errand in new])

    async def parked(self, definition: tuple[str, ...] | None, builds: Collection[str], limit: int) -> list[int]:
        """Return parked runs."""
        cursor = self._tx.cursor
        found: list[int] = []
        tried = set(builds)
        definition = definition or ()
        place: tuple[Any, ...] = (*definition, "", "", "", "")[:4]
        if len(definition) == 3:  # the builds that follow on the empty set are after it
            self._add_parked(found, place, limit)
        while len(found) < limit:
            following = list(cursor.execute(SQL["next_builds"], place))
            if not following or following[0][: len(definition)] != definition:
                break
            (place,) = following
            if not tried.intersection(place[3].split("\n")):
                self._add_parked(found, place, limit)
        return found

    def _add_parked(self, found: list[int], place: Sequence[Any], limit: int) -> None:
        runs = self._tx.cursor.execute(SQL["parked_runs"], (*place, limit - len(found)))
        found.extend(run for (run,) in runs)

    async def closed_runs(self, namespace: str, before_us: int, limit: int) -> list[ops.RunRow]:
        """Return closed runs."""
        found = self._tx.cursor.execute(SQL["closed_runs"], (namespace, before_us, limit))
        return [stored_row(row) for row in found]

    async def forget(self, runs: Collection[int]) -> None:
        """Delete runs."""
        ids = [(run,) for run in runs]
        for statement in ("forget_history", "forget_snapshot", "forget_run"):
            self._tx.cursor.executemany(SQL[statement], ids)


def _signed(number: int) -> int:
    """Return an unsigned number of 64 bits as a signed one: SQLite has no others."""
    return number if number < 2**63 else number - 2**64


def find_alarms(tx: Transaction, operations: Sequence[ops.FindAlarms]) -> list[ops.Alarms]:
    """Return the runs that are due soon."""
    return [_find_alarms(tx, operation) for operation in operations]


def _find_alarms(tx: Transaction, operation: ops.FindAlarms) -> ops.Alarms:
    due = list(tx.cursor.execute(SQL["due_runs"], (operation.until_us, operation.rows)))
    after = (due[-1][1], due[-1][0]) if len(due) == operation.rows else (operation.until_us, _LARGEST_RUN_ID)
    following = [due_us for (due_us,) in tx.cursor.execute(SQL["next_run"], after)]
    return ops.Alarms(due, following[0] if following else None)


class SqliteWorkflowSlice:
    """The slice on this engine: ``jobs.slices.Slice``."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    handlers: Final[Mapping[type[Operation], Callable[[Transaction, Sequence[Any]], Sequence[Any]]]] = {
        ops.FindAlarms: find_alarms
    }
    readers = READERS

    def __init__(self, *, cache: RunCache | None = None, limits: Limits | None = None) -> None:
        self._observers: list[RunObserver] = []
        self.cache = RunCache() if cache is None else cache
        self._limits = Limits() if limits is None else limits
        self._errands_aside = ErrandsAside()

    def subscribe(self, observer: RunObserver) -> None:
        """Report the changes of each committed group to an observer."""
        self._observers.append(observer)

    def unit(self, tx: Transaction) -> WorkflowUnit:
        """Begin a unit of work."""
        return WorkflowUnit(SqliteRuns(tx), self.cache, self._limits, self._observers, self._errands_aside)
