"""Runs on SQLite: their tables with the services of this engine, and their slice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import astuple

from mainspring import namespaces
from mainspring.engines.sql.workflows import RunWrites, WorkflowSlice, find_alarms
from mainspring.engines.sqlite import jobs
from mainspring.engines.sqlite.jobs import find_job
from mainspring.engines.sqlite.slice_transaction import SqliteGround
from mainspring.engines.sqlite.statements import synchronous
from mainspring.jobs.model import is_readable
from mainspring.resources.rules import Bucket, Rate, decode_limits
from mainspring.workflows.places import Candidate, StoredBucket
from mainspring.workflows.store import FindAlarms
from mainspring.workflows.tables import SerialRuns

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import Reschedule, Rescheduled
    from mainspring.resources.rules import FunctionLimits
    from mainspring.workflows.model import Limits
    from mainspring.workflows.reading import RunCache

PRIORITIES: Final = range(3)


async def _find_job(tx: Transaction, job_id: int, namespace: str) -> Job | None:
    return find_job(tx, job_id, namespace)


class SqliteRuns(SerialRuns, RunWrites, SqliteGround):
    """``workflows.tables.RunTables``."""

    def __init__(self, tx: Transaction) -> None:
        RunWrites.__init__(self, tx, _find_job)
        SqliteGround.__init__(self, tx)

    # ---- limits of open runs ----

    async def limits_of(self, function: bytes) -> FunctionLimits | None:
        row = await self._sql.first("limits_of_workflow", *namespaces.split(function))
        return None if row is None else decode_limits(row[1], function, row[0])

    async def count_open_of_keys(self, function: bytes, keys: Collection[bytes]) -> dict[bytes, int]:
        number = self._tx.functions.find(function)
        return {key: await self._first("roots_of_key", number, key or None) for key in keys}

    async def pending_keys(self, function: bytes, after: bytes | None, limit: int) -> list[bytes]:
        number = self._tx.functions.find(function)
        found: list[bytes] = []
        if after is None:
            for priority in PRIORITIES:
                if await self._sql.first("has_pending_without_key", number, priority) is not None:
                    found.append(b"")
                    break
        key = after or b""
        while len(found) < limit:
            (key,) = await self._sql.first("next_pending_key", number, key)
            if key is None:
                break
            found.append(key)
        return found

    async def first_of_keys(self, function: bytes, numbers: Mapping[bytes, int]) -> list[Candidate]:
        number = self._tx.functions.find(function)
        found: list[Candidate] = []
        for key, most in numbers.items():
            left = most
            for priority in PRIORITIES if number is not None else ():
                ids = await self._readable_of_key(number, priority, key or None, left)
                found += [Candidate(priority, job_id, job_id, key) for job_id in ids]
                left -= len(ids)
                if not left:
                    break
        return found

    async def _readable_of_key(self, function: int, priority: int, key: bytes | None, limit: int) -> list[int]:
        asked = limit
        while True:
            rows = await self._sql.fetch("first_of_key", function, priority, key, asked)
            ids = [job_id for job_id, options in rows if options is None or is_readable(options)]
            if len(ids) >= limit or len(rows) < asked:
                return ids[:limit]
            asked *= 2

    async def buckets(self, function: bytes, pools: Collection[bytes]) -> dict[bytes, StoredBucket]:
        number = self._tx.functions.find(function)
        rows = await self._sql.each("bucket", [(number, pool) for pool in pools])
        return {row[0]: StoredBucket(Rate(*row[1:4]), Bucket(*row[4:])) for row in rows}

    async def save_buckets(self, function: bytes, buckets: Mapping[bytes, StoredBucket]) -> None:
        number = self._tx.functions.number(function)
        rows = [(number, pool, *astuple(one.rate), *one.bucket) for pool, one in buckets.items()]
        await self._sql.many("save_bucket", rows)

    async def reschedule(self, changes: Sequence[Reschedule]) -> list[Rescheduled]:
        return jobs.reschedule(self._tx, changes)


class SqliteWorkflowSlice(WorkflowSlice):
    """The slice on this engine."""

    def __init__(self, *, cache: RunCache | None = None, limits: Limits | None = None) -> None:
        super().__init__(SqliteRuns, _find_job, {FindAlarms: synchronous(find_alarms)}, cache, limits)
