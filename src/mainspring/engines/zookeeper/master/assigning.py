"""Which pending task goes to whom: the claims of all nodes, in turns, within what each of them may take.

What was assigned is written, each task as a whole, and the workers that have it are told in the same batch.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.claiming import Claims
from mainspring.engines.zookeeper.committer import Conflict, Entry
from mainspring.engines.zookeeper.master.index import PRIORITIES
from mainspring.engines.zookeeper.records import encode_notice, held_by, leased, mark_of
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Refusal, Write
from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.engines.zookeeper.committer import Verdict
    from mainspring.engines.zookeeper.master.index import Index, Task
    from mainspring.engines.zookeeper.master.leadership import Leadership
    from mainspring.engines.zookeeper.master.workers import OpenWant, Worker, Workers
    from mainspring.engines.zookeeper.records import Mark
    from mainspring.jobs.model import Job

    Given = tuple[OpenWant, Task]

MOST: Final = 2000
"""Tasks that are assigned in one go: others wait for the answer."""
LOOK: Final = 1000
"""Tasks that nobody may take, of each function and priority, after which those of the wanted slots are looked for directly."""
GONE: Final = 2**31 - 1
"""A version that no node has."""

log = structlog.get_logger("mainspring.zookeeper")


def assign(index: Index, wants: Iterable[OpenWant], most: int = MOST) -> list[tuple[OpenWant, Task]]:
    """Take tasks out of the index for open wants, by priority and age, and say which goes to whom.

    Nodes that want the same get the same number, as long as each wants more.
    """
    given: list[tuple[OpenWant, Task]] = []
    by_function: dict[bytes, list[OpenWant]] = {}
    for want in wants:
        if want.is_open and index.waiting(want.function):
            by_function.setdefault(want.function, []).append(want)
    for function, some in by_function.items():
        turn = _Turn(index, some, given, most)
        for priority in range(PRIORITIES):
            turn.give_oldest(function, priority)
            turn.give_by_slots(function, priority)
    return given


class _Turn:
    """The tasks of one function, and those who want them."""

    def __init__(self, index: Index, wants: list[OpenWant], given: list[tuple[OpenWant, Task]], most: int) -> None:
        self._index = index
        self._wants = wants
        self._given = given
        self._most = most
        self._shares = {want.worker: 0 for want in wants}

    def give_oldest(self, function: bytes, priority: int) -> None:
        """Give the oldest tasks, until too many were met that nobody may take."""
        passed = 0
        for task in self._index.walk(function, priority):
            if not self._goes_on() or passed > LOOK:
                break
            able = [want for want in self._wants if want.is_open and want.fits(task)]
            if able:
                self._give(min(able, key=self._rank), task)
            else:
                passed += 1

    def give_by_slots(self, function: bytes, priority: int) -> None:
        """Give tasks that are behind many of others' slots, in turns."""
        turns = [
            (want, self._index.walk(function, priority, want.slots))
            for want in self._wants
            if want.is_open and want.slots
        ]
        while turns and self._goes_on():
            following = []
            for want, tasks in sorted(turns, key=lambda turn: self._rank(turn[0])):
                task = next(tasks, None) if want.is_open and self._goes_on() else None
                if task is not None:
                    self._give(want, task)
                    following.append((want, tasks))
            turns = following

    def _goes_on(self) -> bool:
        return len(self._given) < self._most and any(want.is_open for want in self._wants)

    def _rank(self, want: OpenWant) -> tuple[int, str]:
        return self._shares[want.worker], want.worker.who

    def _give(self, want: OpenWant, task: Task) -> None:
        self._index.take(task)
        self._shares[want.worker] += 1
        want.left -= 1
        want.worker.room -= 1
        want.worker.under_way += 1
        self._given.append((want, task))


class AssignmentWriter:
    """Gives tasks to workers. What was taken out of the index is gone afterwards, or put back."""

    def __init__(self, leadership: Leadership, workers: Workers, index: Index) -> None:
        self._reign = leadership
        self._session = leadership.session
        self._workers = workers
        self._index = index
        self._claims = self._session.memory(Claims)
        self._assignments = 0
        """How many this master has made."""

    async def give(self, given: Sequence[Given]) -> list[Task]:
        """Write who has which task; returns those that were not as they had been read.

        Raises DeposedError, StoreFencedError.
        """
        by_worker: dict[str, list[Given]] = {}
        for want, task in given:
            by_worker.setdefault(want.worker.who, []).append((want, task))
        found = await asyncio.gather(*(self._give(who, some) for who, some in by_worker.items()))
        return [task for some in found for task in some]

    async def _give(self, who: str, given: list[Given]) -> list[Task]:
        try:
            return await self._give_to(who, given)
        finally:
            for want, _ in given:
                want.worker.under_way -= 1

    async def _give_to(self, who: str, given: list[Given]) -> list[Task]:
        worker = self._workers.known.get(who)
        data = await self._records([task for _, task in given])
        if worker is None:
            for want, task in given:
                self._take_back(want, task)
            return []
        known = [(want, task, data[task.name]) for want, task in given if task.name in data]
        for want, task in given:
            if task.name not in data:
                want.left += 1
                self._index.settle(task, back=False)
        held = [self._held(record, worker.term) for _, _, record in known]
        sames = await self._same([record for _, _, record in known], [task for _, task, _ in known])
        entries = [
            assigned(who, task, record, sames.get(task.name, ()))
            for (_, task, _), record in zip(known, held, strict=True)
        ]
        verdicts = await self._write(worker, entries, [task.name for _, task, _ in known])
        changed = [
            task for (want, task, _), verdict in zip(known, verdicts, strict=True) if self._lost(want, task, verdict)
        ]
        if worker is self._workers.own:
            jobs = [
                (task.name, records.decode_job(record), mark_of(record))
                for (_, task, _), record in zip(known, held, strict=True)
            ]
            await self._arrive([job for job, verdict in zip(jobs, verdicts, strict=True) if verdict is None])
        return changed

    def _held(self, record: bytes, term: int) -> dict[str, Any]:
        """Return the record of a task as its worker has it."""
        self._assignments += 1
        return held_by(term, records.decode(record), (self._reign.version, self._assignments))

    async def _write(self, worker: Worker, entries: list[Entry], tasks: list[str]) -> list[Verdict]:
        """Write a worker's tasks, and tell it; this node itself is told in memory."""
        if not entries:
            return []
        if worker is self._workers.own:
            return await self._reign.commit(entries)
        worker.answered = worker.asked
        notice = worker.tell(self._reign.version, tasks)
        told = Entry([Write(paths.queue(worker.who), encode_notice(notice))])
        return (await self._reign.commit([*entries, told], [Check(paths.worker(worker.who))]))[:-1]

    async def _arrive(self, tasks: list[tuple[str, Job, Mark]]) -> None:
        await self._session.meet(job.id for _, job, _ in tasks)
        self._claims.arrive(tasks)

    def _lost(self, want: OpenWant, task: Task, verdict: Verdict) -> bool:
        """Learn what became of an assignment; says whether the task is not as it was read."""
        if verdict is None:
            self._index.settle(task, back=False)
            return False
        if isinstance(verdict, Conflict) and not (verdict.at == 2 and verdict.why is Refusal.NO_NODE):
            if verdict.at in {1, 2}:
                log.error("a task is in two places", task=task.name, path=verdict.path)
            want.left += 1
            want.worker.room += 1
            self._index.settle(task, back=False)
            return True
        self._workers.forget(want.worker.who)
        self._take_back(want, task)
        return False

    def _take_back(self, want: OpenWant, task: Task) -> None:
        """Leave a task to others: the worker has gone."""
        want.left = 0
        self._index.settle(task, back=True)

    async def _records(self, tasks: Sequence[Task]) -> dict[str, bytes]:
        """Return the records of tasks, of which some are read again; those that have changed meanwhile are refused later."""
        found = {task.name: task.data for task in tasks if task.data is not None}
        missing = [task.name for task in tasks if task.data is None]
        if missing:
            nodes = await self._session.get_many([*map(paths.pending, missing)])
            found.update({name: node.data for name, node in zip(missing, nodes, strict=True) if node is not None})
        return found

    async def _same(self, data: Sequence[bytes], tasks: Sequence[Task]) -> dict[str, list[Check]]:
        """Return what says that tasks with a unique are of the jobs that were read.

        A job may have ended meanwhile, and another one of the same name be pending, with the same version: then what was read is
        not what would be deleted. The name tells that until the publication, and the result from then on.
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
        sames = {}
        for number, (task, _) in enumerate(named):
            name, result = nodes[number], nodes[number + len(named)]
            same = name is not None and records.decode(name.data).get("id") == task.id
            live = result is not None and not records.is_published(records.decode(result.data))
            sames[task.name] = [
                Check(at[number], name.version if name is not None and same else GONE),
                Check(at[number + len(named)], result.version if result is not None and live else GONE),
            ]
        return sames


def assigned(who: str, task: Task, record: dict[str, Any], same: Sequence[Check] = ()) -> Entry:
    """Return what gives a pending task to a worker; ``same`` is what is checked beside it."""
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
