"""Completion tokens in memory."""

from __future__ import annotations

from copy import copy
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.memory import jobs
from mainspring.jobs.completion_rules import is_awaited
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event
from mainspring.jobs.store import completions as ops
from mainspring.storage.engine import run_synchronously

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mainspring.engines.memory.queries import Readers
    from mainspring.engines.memory.tables import Tables
    from mainspring.jobs.completion_rules import Completion
    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Meter, Operation


class MemoryCompletions:
    """``CompletionTables`` in dictionaries."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._rows = tables.completions

    async def lock(self, digest: bytes) -> Completion | None:
        return self._rows.get(digest)

    async def lock_of_job(self, job_id: int) -> Sequence[Completion]:
        return await self.of_jobs([job_id])

    async def with_digests(self, digests: Collection[bytes]) -> Sequence[Completion]:
        return [self._rows[one] for one in digests if one in self._rows]

    async def of_jobs(self, jobs: Collection[int]) -> Sequence[Completion]:
        return [one for one in self._rows.values() if one.job in jobs]

    async def due(self, limit: int) -> Sequence[tuple[bytes, int]]:
        times = ((one.look_us, one.digest) for one in self._rows.values())
        return [(digest, look_us) for look_us, digest in nsmallest(limit, times)]

    async def save(self, completion: Completion) -> None:
        self._rows[completion.digest] = completion

    async def remove(self, digests: Sequence[bytes]) -> None:
        for digest in digests:
            self._rows.pop(digest, None)

    async def job(self, job_id: int) -> Job | None:
        job = self._tables.jobs.get(job_id)
        return None if job is None else copy(job)

    async def begin(self, job_id: int, term: int) -> bool:
        job = self._tables.jobs.get(job_id)
        if job is None or not State(job.state).held or job.term != term:
            return False
        job.expires_us = 0
        return True

    async def take(self, completion: Completion, term: int) -> bytes | None:
        job = self._tables.jobs.get(completion.job)
        if job is None or not is_awaited(completion, job):
            return None
        jobs.enter(self._tables, job, Event.DUE)
        jobs.enter(self._tables, job, Event.CLAIM)
        job.term = term
        return job.payload


def _run(operate: Callable[[MemoryCompletions, Any], Any]) -> Callable[[Tables, Any], object]:
    return lambda tables, operation: run_synchronously(operate(MemoryCompletions(tables), operation))


async def _forget(tables: MemoryCompletions, operation: ops.ForgetCompletions) -> None:
    await tables.remove(operation.digests)


async def _show(tables: Tables, query: ops.ShowCompletions, _: Meter) -> list[Completion]:
    rows = MemoryCompletions(tables)
    return [*await rows.of_jobs(query.jobs), *await rows.with_digests(query.digests)]


HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {
    ops.OpenCompletion: _run(ops.open_completion),
    ops.ChangeCompletion: _run(ops.change_completion),
    ops.FindCompletions: _run(ops.find_completions),
    ops.FindDueCompletions: _run(ops.find_due),
    ops.ForgetCompletions: _run(_forget),
}
READERS: Final[Readers] = {ops.ShowCompletions: _show}
