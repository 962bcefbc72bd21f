"""The slice of submits by a rule in memory."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

from mainspring.conflicts import unit
from mainspring.conflicts.unit import ConflictUnit
from mainspring.engines.memory import jobs
from mainspring.engines.memory.engine import MemoryGround, Transaction
from mainspring.jobs.model import State
from mainspring.jobs.store import RequestStop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from mainspring.conflicts.store import Successor
    from mainspring.engines.memory.tables import Tables
    from mainspring.jobs.model import Job, StopRequest
    from mainspring.jobs.store import Cancel, Cancelled, Reschedule, Rescheduled
    from mainspring.storage.engine import Meter, Operation, Query


class MemoryConflicts(MemoryGround):
    """``conflicts.store.ConflictTables`` in a dictionary."""

    async def live(self, function: bytes, unique: bytes) -> Job | None:
        job_id = self._tables.live.get((function, unique))
        return None if job_id is None else jobs.copy(self._tables.jobs[job_id])

    async def look_up(self, ids: Sequence[int]) -> Mapping[int, Job]:
        stored = self._tables.jobs
        return {job_id: jobs.copy(stored[job_id]) for job_id in ids if job_id in stored}

    async def replace(self, job_id: int, payload: bytes) -> None:
        job = self._tables.jobs[job_id]
        job.payload, job.input_size = payload, len(payload)

    async def reschedule(self, operation: Reschedule) -> Rescheduled:
        return jobs.reschedule(self._tables, operation)

    async def cancel(self, operation: Cancel) -> Cancelled:
        return jobs.cancel(self._tables, operation)

    async def stop(self, job: int, request: StopRequest) -> None:
        jobs.request_stop(self._tables, RequestStop([(job, None)], request))

    async def put(self, successor: Successor) -> None:
        self._tables.successors[successor.job] = successor

    async def successor(self, job: int) -> Successor | None:
        return self._tables.successors.get(job)

    async def ripe(self, limit: int) -> Sequence[Successor]:
        return [
            one
            for one in self._tables.successors.values()
            if not self._is_live(one.predecessor) or not self._is_live(one.job)
        ][:limit]

    def _is_live(self, job_id: int) -> bool:
        job = self._tables.jobs.get(job_id)
        return job is not None and not State(job.state).ended

    async def release(self, job: int, unique: bytes, due_us: int) -> bool:
        stored, live = self._tables.jobs[job], self._tables.live
        if (stored.function, unique) in live:
            return False
        del live[stored.function, stored.unique]
        live[stored.function, unique] = job
        stored.unique, stored.due_us = unique, due_us
        heapq.heappush(self._tables.due, (due_us, job))
        return True

    async def delete(self, job: int) -> None:
        self._tables.successors.pop(job, None)

    async def is_any(self) -> bool:
        return bool(self._tables.successors)

    async def stopping(self, limit: int) -> Sequence[int]:
        return [one.predecessor for one in self._tables.successors.values() if one.stops][:limit]


class MemoryConflictSlice:
    """The slice on this engine: ``jobs.slices.Slice``."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    handlers: Final[Mapping[type[Operation], Callable[[Tables, Any], object]]] = {}
    readers: Final[Mapping[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {}

    def unit(self, tx: Transaction) -> ConflictUnit:
        return ConflictUnit(MemoryConflicts(tx))
