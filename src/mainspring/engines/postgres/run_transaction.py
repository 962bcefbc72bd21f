"""The transaction of PostgreSQL as slices use it: with root jobs, and jobs that runs withdraw or stop.

A root job is a row of ``jobs`` under the term `RUNS`, which no node has: claims, recoveries and settlements name other states or
terms. At its end it moves to ``ended`` or ``dead`` as any job, under the same term, which keeps it from sweeps, redrives and
deletions. When a partition is detached, a trigger of the schema moves the root jobs in it to a partition of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.engines.postgres import claiming, settling, submitting, transaction
from mainspring.engines.postgres.transaction import JOBS_SQL, known_ids, stored_jobs
from mainspring.engines.sql.statements import SqlGround
from mainspring.ids import TERM_SPAN
from mainspring.jobs import rules
from mainspring.jobs.model import RUNS, UNREADABLE_OPTIONS, State, read_options
from mainspring.jobs.owners import Ended, note
from mainspring.jobs.rules import Event
from mainspring.jobs.store import RequestStop, Withdrawn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job, StopRequest
    from mainspring.jobs.store import Found

_RUNNING = int(rules.target(Event.BEGIN))
_WAITED = 20
"""The index of this column in the rows of the statements ``end_roots`` and ``reject_roots``."""
_PRIORITY, _PLACE = 3, 20
"""The indexes of these columns in the rows of the statement ``pending``."""


class PostgresGround(SqlGround):
    """``jobs.slices.RunTransaction``, and the same of ``workflows.tables.RunTables`` for root jobs."""

    _tx: Transaction

    async def meet(self, terms: Iterable[int]) -> None:
        """Load the nodes of these terms."""
        await self._tx.nodes.load(term * TERM_SPAN for term in terms if term > 0)

    async def submit(self, new: list[Job]) -> dict[int, Found]:
        return await submitting.store(self._tx, new, [0] * len(new)) if new else {}

    async def begin_roots(self, new: list[Job]) -> dict[int, Found]:
        """Store root jobs. The clients of foreground jobs wait at this node, and the jobs stay without them."""
        tx = self._tx
        if not new:
            return {}
        roots = [replace(job, state=_RUNNING, term=RUNS, payload=b"", foreground=False) for job in new]
        joined = await submitting.store(tx, roots, [tx.term if job.foreground else 0 for job in new])
        begun = sorted((job.id, job.started_us) for job in new if job.id not in joined)
        if begun:
            await tx.connection.fetch(JOBS_SQL["begun"], *map(list, zip(*begun, strict=True)))
        return joined

    # ---- waiting jobs ----

    async def take_pending(self, function: bytes, limit: int, now_us: int) -> list[Job]:
        await self._tx.functions.load([function])
        number = self._tx.functions.numbers.get(function)
        return [] if number is None or limit <= 0 else await self._take(await self._readable(number, limit), now_us)

    async def _readable(self, function: int, limit: int) -> list[Job]:
        """Lock the first pending jobs whose options this version can read: the others wait, and keep none behind them."""
        rows: dict[int, Record] = {}
        readable: list[Job] = []
        asked = limit
        while len(readable) < limit:
            found = await claiming.lock_pending(self._tx, function, asked)
            rows.update((record[0], record) for record in found)
            in_order = sorted(rows.values(), key=lambda record: (record[_PRIORITY], record[_PLACE]))
            jobs = await stored_jobs(self._tx, in_order, read_options)
            readable = [job for job in jobs if job.options is not UNREADABLE_OPTIONS]
            if len(found) < asked:
                break
            asked *= 2
        taken = readable[:limit]
        floors = self._tx.memory(claiming.Floors)
        for job_id in rows.keys() - {job.id for job in taken}:
            floors.note_returned(function, rows[job_id][_PRIORITY], rows[job_id][_PLACE])
        return taken

    async def take_waiting(self, ids: Iterable[int], now_us: int) -> list[Job]:
        wanted = list(dict.fromkeys(ids))
        await submitting.admit(self._tx, wanted)
        records = await self._tx.connection.fetch(JOBS_SQL["waiting"], known_ids(wanted))
        return await self._take(_in_order(wanted, await stored_jobs(self._tx, records)), now_us)

    async def _take(self, taken: list[Job], now_us: int) -> list[Job]:
        if taken:
            await self._tx.connection.fetch(JOBS_SQL["take"], known_ids(job.id for job in taken), now_us)
        for job in taken:
            self._count(job, job.state, _RUNNING)
        return taken

    # ---- ends ----

    async def end_roots(self, ended: Iterable[Job]) -> list[Job]:
        ends = list(ended)
        results = {job.id: job.result if job.state == State.SUCCEEDED else b"" for job in reversed(ends)}
        roots = await self._end("end_roots", ends, results)
        for job in roots:
            job.result = results[job.id]
        self._note(roots)
        await self.forget_roots([job.id for job in roots if settling.forgets(job)])
        return roots

    async def reject_roots(self, rejected: Iterable[Job]) -> list[Job]:
        ends = list(rejected)
        roots = await self._end("reject_roots", ends, {job.id: job.payload for job in reversed(ends)})
        self._note(roots)
        return roots

    async def _end(self, statement: str, ends: Sequence[Job], data: dict[int, bytes]) -> list[Job]:
        """Run a statement that ends root jobs with some data of each; count the jobs, and notify the waiting clients."""
        tx = self._tx
        first = {job.id: job for job in reversed(ends)}
        wanted = [first[job_id] for job_id in known_ids(first)]
        records: list[Record] = []
        for portion in transaction.portions(wanted, lambda job: len(data[job.id])):
            records += await tx.connection.fetch(
                JOBS_SQL[statement],
                [job.id for job in portion],
                [job.state for job in portion],
                [job.ended_us for job in portion],
                [job.error or None for job in portion],
                [data[job.id] for job in portion],
            )
        await settling.notify_waiters(tx, (record[0] for record in records if record[_WAITED]))
        roots = _in_order([job.id for job in ends], await stored_jobs(tx, records))
        for job in roots:
            self._count(job, _RUNNING, job.state)
        return roots

    def _note(self, ended: Iterable[Job]) -> None:
        for job in ended:
            note(self._tx.notices, Ended.of(job))

    async def forget_roots(self, ids: Iterable[int]) -> int:
        wanted = known_ids(ids)
        gone = await self._tx.connection.fetch(JOBS_SQL["forget_roots"], wanted) if wanted else ()
        for function, state, priority in gone:
            self._tx.count(function, state, priority, -1)
        return len(gone)

    def _count(self, job: Job, before: int, after: int) -> None:
        function = self._tx.functions.numbers[job.function]
        self._tx.count(function, before, job.priority, -1)
        self._tx.count(function, after, job.priority, 1)

    # ---- jobs of runs ----

    async def withdraw(self, ids: Iterable[int]) -> list[Withdrawn]:
        """Delete jobs. Clients that wait for one, at any node, look it up again, and find that it is gone."""
        tx, wanted = self._tx, list(dict.fromkeys(ids))
        gone = {row[0]: row for row in await tx.connection.fetch(JOBS_SQL["withdraw"], known_ids(wanted))}
        await tx.functions.load_keys({row[3] for row in gone.values()})
        await settling.notify_waiters(tx, (job_id for job_id, row in gone.items() if row[5]))
        withdrawn = []
        for job_id in wanted:
            if job_id in gone:
                _, term, state, function, priority, _ = gone[job_id]
                tx.count(function, state, priority, -1)
                withdrawn.append(Withdrawn(job_id, term, state, tx.functions.keys[function], priority))
        return withdrawn

    async def request_stop(self, held: Sequence[tuple[int, int | None]], request: StopRequest) -> set[int]:
        (found,) = await settling.request_stop(self._tx, [RequestStop(held, request)])
        return found

    async def is_held(self, job_id: int, term: int) -> bool:
        return bool(known_ids([job_id]) and await self._tx.connection.fetch(JOBS_SQL["is_held"], job_id, term))


def _in_order(ids: Iterable[int], jobs: Iterable[Job]) -> list[Job]:
    found = {job.id: job for job in jobs}
    return [found.pop(job_id) for job_id in ids if job_id in found]
