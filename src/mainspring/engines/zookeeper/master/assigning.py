"""The assignment of pending tasks to workers: the open requests of all nodes get equal shares, within their limits.

Each assignment is written as a whole, and the notice to its worker in the same batch.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.claiming import Claims
from mainspring.engines.zookeeper.committer import Conflict, Entry
from mainspring.engines.zookeeper.master.index import PRIORITY_COUNT
from mainspring.engines.zookeeper.records import encode_notice, held_by, leased, mark_of
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Refusal, Write
from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.engines.zookeeper.committer import Verdict
    from mainspring.engines.zookeeper.master.index import Index, Task
    from mainspring.engines.zookeeper.master.leadership import Leadership
    from mainspring.engines.zookeeper.master.workers import OpenRequest, Worker, Workers
    from mainspring.engines.zookeeper.records import Mark
    from mainspring.jobs.model import Job

    Assignment = tuple[OpenRequest, Task]

BATCH: Final = 2000
"""Tasks that are assigned in one round: other claims wait for its answer."""
SCAN_LIMIT: Final = 1000
"""Tasks without a matching request, of each function and priority, after which the requested slots are scanned directly."""
NO_VERSION: Final = 2**31 - 1
"""A version that no node has."""

log = structlog.get_logger("mainspring.zookeeper")


def assign(index: Index, requests: Iterable[OpenRequest], most: int = BATCH) -> list[tuple[OpenRequest, Task]]:
    """Reserve tasks of the index for open requests, by priority and age, and return the assignments.

    Nodes with requests for the same tasks get equal numbers, as long as each requests more.
    """
    assignments: list[tuple[OpenRequest, Task]] = []
    by_function: dict[bytes, list[OpenRequest]] = {}
    for request in requests:
        if request.is_open and index.waiting(request.function):
            by_function.setdefault(request.function, []).append(request)
    for function, some in by_function.items():
        distribution = _Distribution(index, some, assignments, most)
        for priority in range(PRIORITY_COUNT):
            distribution.assign_oldest(function, priority)
            distribution.assign_by_slots(function, priority)
    return assignments


class _Distribution:
    """The distribution of one function's tasks to its requests."""

    def __init__(
        self, index: Index, requests: list[OpenRequest], assignments: list[tuple[OpenRequest, Task]], most: int
    ) -> None:
        self._index = index
        self._requests = requests
        self._results = assignments
        self._most = most
        self._shares = {request.worker: 0 for request in requests}

    def assign_oldest(self, function: bytes, priority: int) -> None:
        """Assign the oldest tasks, until `SCAN_LIMIT` of them matched no request."""
        skipped = 0
        for task in self._index.walk(function, priority):
            if not self._has_more() or skipped > SCAN_LIMIT:
                break
            able = [request for request in self._requests if request.is_open and request.fits(task)]
            if able:
                self._assign(min(able, key=self._rank), task)
            else:
                skipped += 1

    def assign_by_slots(self, function: bytes, priority: int) -> None:
        """Assign tasks that are queued behind many of other slots, one for each request in turn."""
        turns = [
            (request, self._index.walk(function, priority, request.slots))
            for request in self._requests
            if request.is_open and request.slots
        ]
        while turns and self._has_more():
            following = []
            for request, tasks in sorted(turns, key=lambda turn: self._rank(turn[0])):
                task = next(tasks, None) if request.is_open and self._has_more() else None
                if task is not None:
                    self._assign(request, task)
                    following.append((request, tasks))
            turns = following

    def _has_more(self) -> bool:
        return len(self._results) < self._most and any(request.is_open for request in self._requests)

    def _rank(self, request: OpenRequest) -> tuple[int, str]:
        return self._shares[request.worker], request.worker.who

    def _assign(self, request: OpenRequest, task: Task) -> None:
        self._index.reserve(task)
        self._shares[request.worker] += 1
        request.left -= 1
        request.worker.capacity -= 1
        request.worker.in_flight += 1
        self._results.append((request, task))


class AssignmentWriter:
    """Writes assignments. Afterwards the reserved tasks are gone from the index, or put back."""

    def __init__(self, leadership: Leadership, workers: Workers, index: Index) -> None:
        self._leadership = leadership
        self._session = leadership.session
        self._workers = workers
        self._index = index
        self._claims = self._session.memory(Claims)
        self._assignments = 0
        """The number of assignments of this master."""

    async def write(self, assignments: Sequence[Assignment]) -> list[Task]:
        """Write assignments, and return the tasks that had changed since they were read.

        Raises DeposedError, StoreFencedError.
        """
        by_worker: dict[str, list[Assignment]] = {}
        for request, task in assignments:
            by_worker.setdefault(request.worker.who, []).append((request, task))
        found = await asyncio.gather(*(self._write_counted(who, some) for who, some in by_worker.items()))
        return [task for some in found for task in some]

    async def _write_counted(self, who: str, assignments: list[Assignment]) -> list[Task]:
        try:
            return await self._write_for(who, assignments)
        finally:
            for request, _ in assignments:
                request.worker.in_flight -= 1

    async def _write_for(self, who: str, assignments: list[Assignment]) -> list[Task]:
        worker = self._workers.living.get(who)
        data = await self._records([task for _, task in assignments])
        if worker is None:
            for request, task in assignments:
                self._return(request, task)
            return []
        existing = [(request, task, data[task.name]) for request, task in assignments if task.name in data]
        for request, task in assignments:
            if task.name not in data:
                self._free(request)
                self._index.settle(task, back=False)
        checks = await self._identity_checks([record for _, _, record in existing], [task for _, task, _ in existing])
        for request, task, _ in existing:
            if task.name in checks and checks[task.name] is None:
                # It stays reserved, so that this master ignores it.
                log.warning("the name or the result of a pending task cannot be decoded: it is ignored", task=task.name)
                self._free(request)
        existing = [one for one in existing if checks.get(one[1].name, ()) is not None]
        held = [self._assigned_record(record, worker.term) for _, _, record in existing]
        entries = [
            assignment_entry(who, task, record, checks.get(task.name) or ())
            for (_, task, _), record in zip(existing, held, strict=True)
        ]
        verdicts = await self._commit(worker, entries, [task.name for _, task, _ in existing])
        changed = [
            task
            for (request, task, _), verdict in zip(existing, verdicts, strict=True)
            if self._apply_verdict(request, task, verdict)
        ]
        if worker is self._workers.own:
            jobs = [
                (task.name, records.decode_job(record), mark_of(record))
                for (_, task, _), record in zip(existing, held, strict=True)
            ]
            await self._arrive([job for job, verdict in zip(jobs, verdicts, strict=True) if verdict is None])
        return changed

    def _assigned_record(self, record: bytes, term: int) -> dict[str, Any]:
        """Return the record of a task with its new assignment."""
        self._assignments += 1
        return held_by(term, records.decode(record), (self._leadership.version, self._assignments))

    async def _commit(self, worker: Worker, entries: list[Entry], tasks: list[str]) -> list[Verdict]:
        """Write a worker's tasks and the notice to it. This node itself needs no notice: its tasks come through memory."""
        if not entries:
            return []
        if worker is self._workers.own:
            return await self._leadership.commit(entries)
        worker.answered = worker.asked
        notice = worker.next_notice(self._leadership.version, tasks)
        notice_entry = Entry([Write(paths.queue(worker.who), encode_notice(notice))])
        return (await self._leadership.commit([*entries, notice_entry], [Check(paths.worker(worker.who))]))[:-1]

    async def _arrive(self, tasks: list[tuple[str, Job, Mark]]) -> None:
        await self._session.meet(job.id for _, job, _ in tasks)
        self._claims.arrive(tasks)

    def _apply_verdict(self, request: OpenRequest, task: Task, verdict: Verdict) -> bool:
        """Apply the verdict on an assignment, and return whether the task has changed since it was read."""
        if verdict is None:
            self._index.settle(task, back=False)
            return False
        if isinstance(verdict, Conflict) and not (verdict.at == 2 and verdict.why is Refusal.NO_NODE):
            if verdict.at in {1, 2}:
                log.error("a task is in two places", task=task.name, path=verdict.path)
            self._free(request)
            self._index.settle(task, back=False)
            return True
        self._workers.remove(request.worker.who)
        self._return(request, task)
        return False

    @staticmethod
    def _free(request: OpenRequest) -> None:
        """Give back the place of a task that is not assigned."""
        request.left += 1
        request.worker.capacity += 1

    def _return(self, request: OpenRequest, task: Task) -> None:
        """Put a task back into the index: the worker has ended."""
        request.left = 0
        self._index.settle(task, back=True)

    async def _records(self, tasks: Sequence[Task]) -> dict[str, bytes]:
        """Return the records of tasks; those that are not in memory are read. The write refuses tasks that have changed."""
        found = {task.name: task.data for task in tasks if task.data is not None}
        missing = [task.name for task in tasks if task.data is None]
        if missing:
            nodes = await self._session.get_many([*map(paths.pending, missing)])
            found.update({name: node.data for name, node in zip(missing, nodes, strict=True) if node is not None})
        return found

    async def _identity_checks(self, data: Sequence[bytes], tasks: Sequence[Task]) -> dict[str, list[Check] | None]:
        """Return the checks that tasks with a unique still belong to the jobs that were read; None if that is unreadable.

        A job may have ended, and another one of the same name be pending with the same version: then the delete would hit the
        wrong job. The name shows that until the publication, the result from then on.
        """
        named = [
            (task, records.decode(record))
            for task, record in zip(tasks, data, strict=True)
            if not task.name.endswith(f":~{task.id}")
        ]
        if not named:
            return {}
        at = [paths.name(task.name) for task, _ in named]
        at += [f"{paths.block(task.id)}/{record['handle']}" for task, record in named]
        nodes = await self._session.get_many(at)
        checks: dict[str, list[Check] | None] = {}
        for number, (task, _) in enumerate(named):
            name, result = nodes[number], nodes[number + len(named)]
            try:
                same = name is not None and records.decode(name.data).get("id") == task.id
                live = result is not None and not records.is_published(records.decode(result.data))
            except (ValueError, TypeError, AttributeError):
                checks[task.name] = None
                continue
            checks[task.name] = [
                Check(at[number], name.version if name is not None and same else NO_VERSION),
                Check(at[number + len(named)], result.version if result is not None and live else NO_VERSION),
            ]
        return checks


def assignment_entry(who: str, task: Task, record: dict[str, Any], same: Sequence[Check] = ()) -> Entry:
    """Return the entry that assigns a pending task to a worker, with the checks ``same``."""
    held = leased(record["id"], record["handle"], record.get("attempt", 0))
    return Entry(
        [
            Delete(paths.pending(task.name), task.version),
            Create(paths.running(task.name), records.encode(record)),
            Create(paths.assignment(who, task.name), held),
            *same,
        ],
        [(task.function, State.PENDING, task.priority, -1), (task.function, State.LEASED, task.priority, 1)],
    )
