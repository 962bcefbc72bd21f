"""The slice of work that runs elsewhere in memory."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.memory.engine import MemoryGround, Transaction
from mainspring.external import unit
from mainspring.external.store import MOST_SHOWN, FindWork, Status, Verdict, verdict
from mainspring.external.unit import WorkUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence

    from mainspring.engines.memory.tables import Tables
    from mainspring.external.store import End, Record, Work
    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Meter, Operation, Query


class MemoryWorks(MemoryGround):
    """``external.store.WorkTables`` in a dictionary."""

    async def works(self, jobs: Collection[int]) -> Sequence[Work]:
        return [work for key, work in sorted(self._tables.works.items()) if key[0] in jobs]

    async def add(self, works: Sequence[Work]) -> None:
        self._tables.works.update(((one.job, one.number), one) for one in works)

    async def record(self, records: Sequence[Record]) -> set[tuple[int, int]]:
        recorded = set()
        for job, number, meta in records:
            work = self._tables.works.get((job, number))
            if work is not None and not work.meta and work.status in {Status.OPEN, Status.CANCEL}:
                self._tables.works[job, number] = work._replace(meta=meta, payload=b"")
                recorded.add((job, number))
        return recorded

    async def end(self, ends: Sequence[End]) -> None:
        for job, number, status in ends:
            work = self._tables.works.get((job, number))
            if work is not None and work.status == Status.OPEN:
                self._tables.works[job, number] = work._replace(status=status)

    async def ripe(self, limit: int, old_us: int) -> Sequence[Work]:
        return [work for work in self._tables.works.values() if self._is_ripe(work, old_us)][:limit]

    def _is_ripe(self, work: Work, old_us: int) -> bool:
        if work.status > Status.CANCELLING:
            return work.ended_us < old_us
        jobs = self._tables.jobs
        return verdict(work, jobs.get(work.job), jobs.get(work.canceller)) is not Verdict.KEEP

    async def is_any(self) -> bool:
        return any(work.status < Status.ANSWERED for work in self._tables.works.values())

    async def change(self, works: Iterable[Work]) -> None:
        self._tables.works.update(((one.job, one.number), one._replace(payload=b"")) for one in works)

    async def delete(self, keys: Sequence[tuple[int, int]]) -> None:
        for key in keys:
            del self._tables.works[key]

    async def look_up(self, ids: Iterable[int]) -> Mapping[int, Job]:
        jobs = self._tables.jobs
        return {job_id: copy(jobs[job_id]) for job_id in ids if job_id in jobs}


async def _find(tables: Tables, query: FindWork, _: Meter) -> list[Work]:
    works = [work._replace(payload=b"") for key, work in sorted(tables.works.items()) if key[0] == query.job]
    return works[-MOST_SHOWN:]


class MemoryWorkSlice:
    """The slice on this engine: ``jobs.slices.Slice``."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    handlers: Final[Mapping[type[Operation], Callable[[Tables, Any], object]]] = {}
    readers: Final[Mapping[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {
        FindWork: _find
    }

    def unit(self, tx: Transaction) -> WorkUnit:
        return WorkUnit(MemoryWorks(tx))
