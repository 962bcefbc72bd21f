"""The workflows slice on PostgreSQL: runs under locks, where several nodes change them.

A group locks the rows of all open runs that it will change before anything else, in the order of their ids: those of the jobs
that it settles and those that its operations name. So it waits for other groups only while it holds no row of a job. A run that
shows later is locked if it is free; otherwise the group begins anew. The ends of jobs that show later (expired ones, those
cancelled by hand or recovered) become errands if their runs are locked.

A node keeps runs in memory. Such a run is current if its row was not written since: each write of a row leaves the number of its
transaction in it (`RunRow.written`).

Errands reach other runs than the group that has caused them, so they are stored and done by a later group, which locks their runs
first. One node at a time does errands (`has_errand_turn`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import astuple

from mainspring import namespaces
from mainspring.engines.postgres import changing, submitting
from mainspring.engines.postgres.connections import OvertakenError
from mainspring.engines.postgres.lists import find_stored
from mainspring.engines.postgres.partitions import Histories
from mainspring.engines.postgres.run_transaction import PostgresGround
from mainspring.engines.postgres.transaction import Keyed, decode_stored_options, key_column, known_ids
from mainspring.engines.sql.workflows import RunWrites, WorkflowSlice, appended_row, find_alarms, stored_definition
from mainspring.jobs.model import UNREADABLE_OPTIONS, read_options
from mainspring.jobs.owners import Ended
from mainspring.jobs.slices import of_kind, settled_keys
from mainspring.jobs.store import Settle
from mainspring.resources.rules import Bucket, Rate, decode_limits
from mainspring.workflows import cross_run, outbox, sent_signals, unit
from mainspring.workflows import store as ops
from mainspring.workflows.cross_run import RecordEnd
from mainspring.workflows.definitions import RemoveDefinition
from mainspring.workflows.draft import tried_by
from mainspring.workflows.places import Candidate, StoredBucket
from mainspring.workflows.sent_signals import BehindAwaitedError, deliver, is_workflow_id, signal_of
from mainspring.workflows.unit import WorkflowUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.engines.sql.statements import Statements
    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Notice
    from mainspring.jobs.store import Reschedule, Rescheduled
    from mainspring.resources.rules import FunctionLimits
    from mainspring.storage.engine import Meter, Operation, Plan
    from mainspring.workflows.cross_run import Errand, ErrandsAside
    from mainspring.workflows.model import Definition, Key, Limits
    from mainspring.workflows.observers import RunObserver
    from mainspring.workflows.reading import RunCache
    from mainspring.workflows.requests import Signal
    from mainspring.workflows.store import RunRow
    from mainspring.workflows.tables import EarlySignals, StoredRun, Writes


RING_AGAIN_US: Final = 20_000
"""Microseconds after which a node rings the alarm of a run again that another transaction had locked."""
MOST_UNREAD: Final = 10_000
"""Waiting jobs of a key that are read to pass over those that this version cannot read."""
WRITES: Final = unit.WRITES | {ops.DeliverSignals}


async def _find_job(tx: Transaction, job_id: int, namespace: str) -> Job | None:
    # In this order, so that a job is found which another node moves out of the inbox meanwhile.
    waiting = await submitting.peek(tx, [job_id], namespace)
    return waiting[0] if waiting else (await find_stored(tx, [job_id], namespace)).get(job_id)


class Wanted:
    """The runs that a group will change, as far as its operations name them."""

    def __init__(self) -> None:
        self.runs: set[int] = set()
        self.jobs: set[int] = set()
        """Root jobs, which stand for the last runs of their chains."""
        self.names: set[tuple[str, str]] = set()
        """Namespaces and workflow ids."""
        self.held: set[int] = set()
        """Jobs that have to be held by this node."""

    def add(self, key: Key) -> None:
        """Add the run that a key names."""
        if key.run:
            self.runs.add(key.run)
        elif key.job:
            self.runs.add(key.job)
            self.jobs.add(key.job)
        else:
            self.names.add((key.namespace, key.workflow_id))

    def add_errand(self, errand: Errand) -> None:
        """Add the runs that an errand reads and changes."""
        self.runs.add(errand.source)
        match errand:
            case cross_run.EndChild():
                self.runs.add(errand.parent)
            case cross_run.ApplyPolicy():
                self.runs.add(errand.child)
                self.jobs.add(errand.child)
            case cross_run.SignalOther() | cross_run.CancelOther():
                self.add(outbox.target_of(errand))
            case _:
                pass

    def __bool__(self) -> bool:
        return bool(self.runs or self.names)


class PostgresRuns(RunWrites, PostgresGround):
    """``workflows.tables.RunTables``."""

    stores_errands = True

    def __init__(self, tx: Transaction) -> None:
        RunWrites.__init__(self, tx, _find_job)
        PostgresGround.__init__(self, tx)
        self._asked: set[int] = set()
        """Runs that were to be locked: those that are not in ``_held`` are not open."""
        self._held: dict[int, int] = {}
        """The locked runs, with what `RunRow.written` is if they are current."""
        self._asked_jobs: set[int] = set()
        self._held_jobs: set[int] = set()
        """Those of the jobs above that this node holds; this transaction does not settle them."""
        self._own = 0
        """The number that the writes of this transaction leave in the rows of runs."""
        self._open: dict[tuple[str, str], int] = {}
        """Open runs that were looked up, by namespaces and workflow ids; 0 where there is none."""
        self._errands: list[tuple[int, bytes]] = []
        self._limits: dict[bytes, FunctionLimits | None] = {}
        """The limits of workflows that were read."""
        self._places: dict[int | None, int | None] = {}
        """The workflows whose places this transaction asked to fill, with the time; None where another one does."""

    # ---- locks ----

    async def lock(self, wanted: Wanted) -> None:
        """Lock runs, and wait for other groups that have them; only before the group has locked any job."""
        runs, jobs = known_ids(wanted.runs), known_ids(wanted.jobs)
        names = sorted(one for one in wanted.names if "\0" not in one[1])  # no run has such an id
        columns = [one for one, _ in names], [one for _, one in names], known_ids(wanted.held)
        self._asked |= wanted.runs
        self._asked_jobs = wanted.held
        for number, value in await self._sql.fetch("lock_runs", runs, jobs, *columns, self.term):
            if number > 0:
                self._asked.add(number)
                self._held[number] = value
            elif number < 0:
                self._held_jobs.add(-number)
            else:
                self._own = value
        if len(runs) + len(names) - len(self._held) > 1:
            # In the order of their ids: another node may signal them in another order, and by other names.
            uniques = [workflow_id.encode() for _, workflow_id in names]
            await self._sql.fetch("lock_waiting_named", known_ids(wanted.runs - self._held.keys()), columns[0], uniques)

    async def is_held(self, job_id: int, term: int) -> bool:
        if job_id in self._asked_jobs and term == self.term:
            return job_id in self._held_jobs
        return await super().is_held(job_id, term)

    async def hold(self, runs: Collection[int]) -> None:
        if any(run not in self._asked for run in runs) and await self.try_to_hold(runs):
            raise OvertakenError("another node changes a run")

    async def try_to_hold(self, runs: Iterable[int]) -> set[int]:
        """Lock runs without waiting; return those that another transaction has."""
        wanted = known_ids(run for run in runs if run not in self._asked)
        if not wanted:
            return set()
        found = dict(await self._sql.fetch("try_lock_runs", wanted))
        left = [run for run in wanted if run not in found]
        elsewhere = {run for (run,) in await self._sql.fetch("still_open", left)} if left else set()
        self._held |= found
        self._asked.update(run for run in wanted if run not in elsewhere)
        return elsewhere

    async def lock_due(self, runs: Iterable[int], now_us: int) -> dict[int, int]:
        """Lock runs whose alarms are due, without waiting; return the alarms of the others that are open, 0 if there is none.

        Those that another transaction has are due again soon: another node may ring the same alarms, and to wait for it takes
        as long as to ring them.
        """
        wanted = known_ids(run for run in runs if run not in self._asked)
        if not wanted:
            return {}
        for run, written in await self._sql.fetch("lock_due_runs", wanted, now_us):
            if run:
                self._held[run] = written
                self._asked.add(run)
            else:
                self._own = written
        left = [run for run in wanted if run not in self._held]
        again_us = now_us + RING_AGAIN_US
        alarms = await self._sql.fetch("alarms_of", left) if left else ()
        return {run: again_us if due_us is not None and due_us <= now_us else due_us or 0 for run, due_us in alarms}

    def is_locked(self, run: int) -> bool:
        """Return whether this transaction has locked a run."""
        return run in self._held

    def is_current(self, row: RunRow) -> bool:
        return self._held.get(row.id) == row.written

    async def lock_definitions(self) -> None:
        """Lock the definitions: two nodes that add one at the same time agree on the order."""
        await self._sql.first("lock_definitions")

    async def lock_forgetting(self, before_us: int) -> None:
        """Lock the right to forget runs, and drop old partitions after the commit."""
        await self._sql.first("lock_forgetting")
        self._tx.memory(Histories).look(self._tx, before_us)

    async def admits_runs(self) -> bool:
        first = self._sql.first
        if await first("lock_needed_version") is None:
            return True
        if await first("older_node") is not None:
            return False
        await self._sql.execute("need_version")
        return True

    async def admits_pauses(self) -> bool:
        first = self._sql.first
        if await first("lock_pausing_version") is None:
            return True
        if await first("node_without_pauses") is not None:
            return False
        await self._sql.execute("need_pausing_version")
        return True

    async def reschedule(self, changes: Sequence[Reschedule]) -> list[Rescheduled]:
        return await changing.reschedule(self._tx, changes)

    async def admits_payloads(self) -> bool:
        first = self._sql.first
        if await first("needs_payloads") is not None:
            return True
        if await first("lock_payloads") is None:
            return True
        if await first("node_without_payloads") is not None:
            return False
        await self._sql.execute("need_payloads")
        return True

    # ---- reads ----

    async def look_up(self, names: Collection[tuple[str, str]]) -> None:
        wanted = [one for one in names if "\0" not in one[1]]  # no run has such an id
        if len(wanted) > 1:
            columns = [one for one, _ in wanted], [one for _, one in wanted]
            self._open = dict.fromkeys(wanted, 0)
            for namespace, workflow_id, run in await self._sql.fetch("open_runs_named", *columns):
                self._open[namespace, workflow_id] = run

    async def open_run(self, namespace: str, workflow_id: str) -> int:
        found = self._open.pop((namespace, workflow_id), None)
        return await super().open_run(namespace, workflow_id) if found is None else found

    async def load(self, run: int, namespace: str = "") -> StoredRun | None:
        stored = await super().load(run, namespace)
        if stored is not None:
            self._note_held(stored.row)
        return stored

    async def load_short(self, runs: Collection[int]) -> list[tuple[RunRow, list[bytes]]]:
        found = await super().load_short(runs)
        for row, _ in found:
            self._note_held(row)
        await self._tx.load_nodes([row.root for row, _ in found])
        return found

    def _note_held(self, row: RunRow) -> None:
        """Note which version of a row is read. An open run is locked, unless another node began it after the attempt."""
        if not row.closed_us and row.id not in self._held:
            raise OvertakenError("another node has begun a run meanwhile")
        row.written = self._held.get(row.id, 0)

    # ---- writes ----

    async def write(self, writes: Writes) -> None:
        own = self._own or await self._own_number()
        for row in writes.new:
            row.written = own
        for changes in (writes.appended, writes.rescheduled, writes.changed):
            for change in changes:
                change.row.written = own
        left = await self._append(writes)
        # In one order: two nodes that begin runs of the same workflow ids would wait for each other.
        new = sorted(left.new, key=lambda row: (row.namespace, row.workflow_id))
        await super().write(left._replace(new=new))
        for row in writes.new:
            self._asked.add(row.id)
        for changes in (writes.appended, writes.rescheduled, writes.changed):
            self._held.update((change.row.id, own) for change in changes)
        self._held.update((row.id, own) for row in writes.new)

    async def _append(self, writes: Writes) -> Writes:
        """Write the changes of most runs with all new events in one statement; return the writes that are left."""
        if not writes.appended or not writes.blocks:
            return writes
        rows = map(appended_row, writes.appended)
        columns = [*zip(*rows, strict=True), *zip(*writes.blocks, strict=True)]
        (changed,) = await self._sql.first("append_blocks", *columns)
        self.check_changed(changed, writes.appended)
        return writes._replace(appended=[], blocks=[])

    async def _own_number(self) -> int:
        (self._own,) = await self._sql.first("own_number")
        return self._own

    async def save_definitions(self, definitions: Iterable[Definition]) -> None:
        await super().save_definitions(sorted(definitions, key=lambda one: (one.namespace, one.name, one.version)))

    async def take_waiting(self, ids: Iterable[int], now_us: int) -> list[Job]:
        wanted = set(ids)
        taken = await super().take_waiting(wanted, now_us)
        if len(taken) < len(wanted):
            raise OvertakenError("a job that waited has been taken meanwhile")
        return taken

    # ---- limits of open runs ----

    async def definitions(self, namespace: str = "", name: str = "") -> list[Definition]:
        """Return definitions. Those of one workflow are read with its limits: each begin of its runs needs both."""
        if not name or "\0" in name:
            return await super().definitions(namespace, name)
        function = namespaces.key(namespace, name.encode())
        rows = await self._sql.fetch("definitions_and_limits", namespace, name, await self._number(function) or 0)
        if rows:
            encoded, version = rows[0][4:]
            self._limits[function] = None if encoded is None else decode_limits(encoded, function, version)
        return [stored_definition(*row[:4]) for row in rows]

    async def limits_of(self, function: bytes) -> FunctionLimits | None:
        if function not in self._limits:
            row = await self._sql.first("limits_of_workflow", await self._number(function) or 0)
            self._limits[function] = None if row is None else decode_limits(row[1], function, row[0])
        return self._limits[function]

    async def _number(self, function: bytes) -> int | None:
        await self._tx.functions.load([function])
        number: int | None = self._tx.functions.numbers.get(function)
        return number

    async def hold_places(self, function: bytes, now_us: int) -> int | None:  # noqa: ARG002 - the store's clock is that of all nodes
        number = await self._number(function)
        if number in self._places:
            return self._places[number]
        row = await self._sql.first("hold_places", number)
        now: int | None = None if row is None else row[0]
        self._places[number] = now
        return now

    async def count_open_of_keys(self, function: bytes, keys: Collection[bytes]) -> dict[bytes, int]:
        number, columns = await self._number(function), [key_column(key) for key in keys]
        return {key[1:]: n for key, n in await self._sql.fetch("roots_of_keys", number, columns)}

    async def pending_keys(self, function: bytes, after: bytes | None, limit: int) -> list[bytes]:
        """Return the keys of pending jobs. The empty one is always among them: jobs without a key may be stored apart."""
        number, first = await self._number(function), key_column(after or b"")
        self._tx.memory(Keyed).add(number)
        found = [key[1:] for (key,) in await self._sql.fetch("pending_keys", number, first, limit)]
        return ([b"", *found] if after is None else found)[:limit]

    async def first_of_keys(self, function: bytes, numbers: Mapping[bytes, int]) -> list[Candidate]:
        number = await self._number(function)
        self._tx.memory(Keyed).add(number)
        asked = dict(numbers)
        while True:
            columns = [key_column(key) for key in asked], list(asked.values())
            rows = [*await self._sql.fetch("first_of_keys", number, *columns)]
            if b"" in asked:
                rows += await self._sql.fetch("first_without_key", number, asked[b""])
            found: dict[bytes, list[Candidate]] = {key: [] for key in asked}
            unread: set[bytes] = set()
            bare: list[int] = []
            for priority, place, job_id, column, options in rows:
                key = b"" if column is None else column[1:]
                if options is not None and decode_stored_options(options, read_options)[0] is UNREADABLE_OPTIONS:
                    unread.add(key)
                    continue
                found[key].append(Candidate(priority, place, job_id, key))
                if column is None:
                    bare.append(job_id)
            if not any(len(found[key]) < numbers[key] and asked[key] < MOST_UNREAD for key in unread):
                break
            asked.update({key: 2 * asked[key] for key in unread})
        if bare:  # they are counted by their keys from now on
            await self._sql.execute("give_empty_key", bare, key_column(b""))
        return [one for key, some in found.items() for one in sorted(some)[: numbers[key]]]

    async def buckets(self, function: bytes, pools: Collection[bytes]) -> dict[bytes, StoredBucket]:
        number = await self._number(function)
        rows = await self._sql.fetch("buckets_of_workflow", number, list(pools))
        return {row[0]: StoredBucket(Rate(*row[1:4]), Bucket(*row[4:])) for row in rows}

    async def save_buckets(self, function: bytes, buckets: Mapping[bytes, StoredBucket]) -> None:
        number = await self._number(function)
        rows = [(pool, *astuple(one.rate), *one.bucket) for pool, one in sorted(buckets.items())]
        columns = [list(column) for column in zip(*rows, strict=True)]
        await self._sql.execute("save_buckets", number, *columns)

    async def early(self, job: int, request: int) -> EarlySignals:
        """Return how many signals are stored for a job, which no other transaction begins or signals any more."""
        if await self._sql.first("lock_waiting", [job]) is None:
            raise OvertakenError("the run of the job has begun meanwhile")
        return await super().early(job, request)

    async def add_early(self, job: int, signals: EarlySignals, signal: Signal) -> None:
        name = signal.name.replace("\0", "\\x00")  # of another run: requests of clients have none
        await super().add_early(job, signals, signal._replace(name=name))

    # ---- signals that users have sent ----

    async def lock_sent(self, numbers: Iterable[int]) -> set[int]:
        """Lock sent signals; return the numbers of those that are still stored."""
        return {number for (number,) in await self._sql.fetch("lock_sent", sorted(numbers))}

    async def joined(self, jobs: Iterable[int]) -> dict[int, int]:
        """Return the jobs that submissions in users' own transactions have joined, by the ids of the submissions."""
        return await submitting.aliases(self._tx, jobs)

    async def submitted(self) -> tuple[int, int]:
        """Return the oldest and the newest submission in users' own transactions that are no jobs yet, 0 for none."""
        return await _submitted(self._sql)

    async def settle_sent(self, gone: Collection[int], refused: Mapping[int, str]) -> None:
        """Delete sent signals, and keep refused ones with the reasons."""
        if refused:
            reasons = [reason[:1000] for reason in refused.values()]
            await self._sql.fetch("refuse_signals", list(refused), reasons)
        await self._sql.execute("forget_sent", sorted(gone))

    # ---- steps that users have recorded ----

    async def forget(self, runs: Collection[int]) -> None:
        await super().forget(runs)
        await self._sql.execute("forget_steps", self._sql.among(runs))

    # ---- errands ----

    async def take_errands(self, after: int) -> list[Errand] | None:
        """Read the first stored errands; return those that this version can read; None if another node has the turn."""
        (has_turn,) = await self._sql.first("has_errand_turn")
        if not has_turn:
            return None
        self._errands = await super().errands(after, outbox.MOST, outbox.MOST_BYTES)
        readable = [one for _, data in self._errands if not isinstance(one := cross_run.decode_errand(data), str)]
        children = [one.initiated.run for one in readable if isinstance(one, cross_run.StartChild)]
        await self._tx.load_nodes([*children, *(one.source for one in readable)])
        return readable

    async def errands(self, after: int, limit: int, most_bytes: int) -> list[tuple[int, bytes]]:  # noqa: ARG002 - `take_errands` had them
        taken, self._errands = self._errands, []
        return taken


class PostgresWorkflowUnit(WorkflowUnit):
    """The workflows' part of one attempt to run a group."""

    def __init__(
        self,
        tables: PostgresRuns,
        cache: RunCache,
        limits: Limits,
        observers: Sequence[RunObserver],
        errands_aside: ErrandsAside,
    ) -> None:
        super().__init__(tables, cache, limits, observers, errands_aside)
        self._runs = tables
        self._sent: set[int] = set()
        """The sent signals that the group has locked."""
        self._joined: dict[int, int] = {}
        """The jobs that submissions have joined which these signals name."""
        self._submitted = (0, 0)
        """The oldest and the newest submission that was no job before the group looked for runs by their workflow ids."""
        self._left: dict[int, int] = {}
        """The next alarms of runs that this group was to ring, but has not locked."""

    async def lock(self, plan: Plan) -> None:
        """Lock the runs that the group will change, as far as its operations show."""
        tables, wanted = self._runs, Wanted()
        wanted.runs |= settled_keys(plan, unit.KIND)
        for kind in plan:
            if kind in WRITES:
                for operation in of_kind(plan, kind):
                    await self._name(operation, wanted)
        # A job that the group itself ends or gives back is held no more once its runs are changed.
        wanted.held -= {one.job.id for settle in of_kind(plan, Settle) for one in settle.settlements}
        if ops.SaveDefinitions in plan or RemoveDefinition in plan:
            await tables.lock_definitions()
        if ops.ForgetRuns in plan:
            await tables.lock_forgetting(min(one.before_us for one in of_kind(plan, ops.ForgetRuns)))
        if wanted:
            await tables.lock(wanted)
        for ring in of_kind(plan, ops.RingAlarms):  # behind those for which it waits
            self._left |= await tables.lock_due(ring.runs, ring.now_us)

    async def _name(self, operation: Operation, wanted: Wanted) -> None:
        match operation:
            case ops.Decide():
                wanted.runs.update(completion.run for completion in operation.completions)
                wanted.held.update(one.job for one in operation.completions if one.job and one.more)
            case ops.SignalRuns():
                for signal in operation.signals:
                    wanted.add(signal.key)
            case ops.DeliverSignals():
                self._sent |= await self._runs.lock_sent(one.number for one in operation.sent)
                if any(map(is_workflow_id, operation.sent)):
                    self._submitted = await self._runs.submitted()
                keys = [signal_of(one).key for one in operation.sent]
                self._joined |= await self._runs.joined(key.job for key in keys)
                for key in keys:
                    wanted.add(key._replace(job=self._joined.get(key.job, key.job)))
            case (
                ops.RequestCancelRun()
                | ops.TerminateRun()
                | ops.MoveRun()
                | ops.ForkRun()
                | ops.PauseRun()
                | ops.ResumeRun()
            ):
                wanted.add(operation.key)
            case ops.UnparkRuns() if operation.key is not None:
                wanted.add(operation.key)
            case ops.UnparkRuns():
                tried = tried_by(operation.build)
                wanted.runs.update(await self._runs.parked(operation.definition, tried, operation.rows))
            case ops.RunErrands():
                after = 0 if operation.from_first else self._changes.errands_aside.after
                taken = await self._runs.take_errands(after)
                if taken is None:
                    self._changes.leave_errands()
                for errand in taken or ():
                    wanted.add_errand(errand)
            case _:
                pass

    async def run(self, operation: Operation) -> Callable[[], Any]:
        if isinstance(operation, ops.RingAlarms):
            return await self._ring(operation)
        if not isinstance(operation, ops.DeliverSignals):
            return await super().run(operation)
        sent = [one for one in operation.sent if one.number in self._sent]
        try:
            refused, delivered = await deliver(self._changes, sent, self._joined, self._submitted, operation)
        except BehindAwaitedError as error:
            raise OvertakenError(str(error)) from error
        await self._runs.settle_sent([one.number for one in sent if not delivered.keeps(one.number)], refused)
        outcome = delivered._replace(elsewhere=len(sent) < len(operation.sent))
        return lambda: outcome

    async def _ring(self, operation: ops.RingAlarms) -> Callable[[], dict[int, int]]:
        """Ring the alarms of the runs that this transaction has."""
        due = [run for run in operation.runs if self._runs.is_locked(run)]
        rung = await unit.ring_alarms(self._changes, ops.RingAlarms(due, operation.now_us))
        left = {run: self._left[run] for run in operation.runs if run in self._left}
        return lambda: left | rung()

    async def follow(self, notices: Sequence[Notice]) -> None:
        """Record the ends of jobs. Those of runs that another group has become errands."""
        await self._runs.meet({one.term for one in notices})
        await super().follow([one for one in notices if not _is_of_run(one)])
        notices = [one for one in notices if _is_of_run(one)]
        elsewhere = await self._runs.try_to_hold(_runs_of(notices))
        if elsewhere:
            for run, notice in zip(_runs_of(notices), notices, strict=True):
                if run in elsewhere and isinstance(notice, Ended):  # the loss of an attempt counts only towards parking
                    self._changes.errands.append(RecordEnd(run, "", "", notice))
            notices = [one for run, one in zip(_runs_of(notices), notices, strict=True) if run not in elsewhere]
        await super().follow(notices)


def _is_of_run(notice: Notice) -> bool:
    """Return whether a job belongs to a run, which it names; a root job does not."""
    return notice.options is not None and notice.options.run is not None


def _runs_of(notices: Sequence[Notice]) -> Iterator[int]:
    for notice in notices:
        assert notice.options is not None
        assert notice.options.run is not None, "this slice owns the job"
        yield notice.options.run[0]


class PostgresWorkflowSlice(WorkflowSlice):
    """The slice on this engine."""

    unit_kind = PostgresWorkflowUnit
    writes = WRITES

    def __init__(self, *, cache: RunCache | None = None, limits: Limits | None = None) -> None:
        super().__init__(_tables_of, _find_job, {ops.FindAlarms: find_alarms}, cache, limits)
        self.readers[ops.FindSentSignals] = _find_sent
        self.readers[ops.ShowSubmitted] = _show_submitted


async def _find_sent(tx: Transaction, query: ops.FindSentSignals, _: Meter) -> ops.SentSignals:
    rows = await tx.sql.fetch("sent_signals", list(query.aside), sent_signals.MOST, sent_signals.MOST_BYTES)
    signals = [ops.SentSignal(*row) for row in rows]
    if not query.counts_refused:
        return ops.SentSignals(signals, None)
    number, since_us, reason = await tx.sql.first("refused_signals")
    return ops.SentSignals(signals, number, since_us or 0, reason or "")


async def _show_submitted(tx: Transaction, _: ops.ShowSubmitted, __: Meter) -> tuple[int, int]:
    return await _submitted(tx.sql)


async def _submitted(sql: Statements) -> tuple[int, int]:
    oldest, newest = await sql.first("submitted")
    return oldest, newest


def _tables_of(tx: Transaction) -> Any:
    return tx.tables(PostgresRuns)
