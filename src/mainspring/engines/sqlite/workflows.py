"""The workflows slice on SQLite."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.engines.sqlite import rows, run_rows
from mainspring.engines.sqlite.ground import SqliteGround
from mainspring.engines.sqlite.run_queries import READERS
from mainspring.engines.sqlite.run_rows import SqliteRunReads
from mainspring.engines.sqlite.statements import SQL
from mainspring.errors import StoreError
from mainspring.jobs.model import State
from mainspring.jobs.owners import Ended, note
from mainspring.workflows import store as ops
from mainspring.workflows import unit
from mainspring.workflows.cache import RunCache
from mainspring.workflows.errands import ErrandsAside
from mainspring.workflows.model import Key, Limits
from mainspring.workflows.requests import Signal
from mainspring.workflows.tables import EarlySignals, first_errands
from mainspring.workflows.unit import WorkflowUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.storage.operation import Operation
    from mainspring.workflows.model import Definition
    from mainspring.workflows.observer import RunObserver
    from mainspring.workflows.tables import Guarded, Writes

_encode = msgspec.msgpack.Encoder().encode
_RUNNING = int(State.RUNNING)
LARGEST_ID: Final = rows.LARGEST_ID


class SqliteRuns(SqliteRunReads, SqliteGround):
    """``RunTables`` inside the open transaction."""

    async def load_short(self, runs: Collection[int]) -> list[tuple[ops.RunRow, list[bytes]]]:
        """Return runs with their histories."""
        found: dict[int, tuple[ops.RunRow, list[bytes]]] = {}
        for values in self._tx.cursor.execute(SQL["load_short_runs"], (json.dumps([*runs]),)):
            found[values[0]] = run_rows.stored_row(values), []
        for run, block in self._tx.cursor.execute(SQL["whole_histories"], (json.dumps([*found]),)):
            found[run][1].append(block)
        return list(found.values())

    async def write(self, writes: Writes) -> None:
        """Write runs and events."""
        cursor = self._tx.cursor
        if writes.appended:
            self._change("append_run", run_rows.appended, writes.appended)
        if writes.rescheduled:
            self._change("reschedule_run", run_rows.rescheduled, writes.rescheduled)
        if writes.changed:
            self._change("change_run", run_rows.changed, writes.changed)
        if writes.new:  # a closed run has released its workflow id by now
            cursor.executemany(SQL["new_run"], map(run_rows.new_row, writes.new))
        if writes.blocks:
            cursor.executemany(SQL["append_block"], writes.blocks)
        if writes.snapshots:
            cursor.executemany(SQL["save_snapshot"], ((run, *snapshot) for run, snapshot in writes.snapshots))

    def _change(self, statement: str, values: Callable[[Guarded], rows.Row], changes: Sequence[Guarded]) -> None:
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
            for job in rows.stored(list(tx.cursor.execute(SQL["reject_root"], values)), tx.functions):
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
        return [run_rows.stored_row(row) for row in found]

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
    after = (due[-1][1], due[-1][0]) if len(due) == operation.rows else (operation.until_us, LARGEST_ID)
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
