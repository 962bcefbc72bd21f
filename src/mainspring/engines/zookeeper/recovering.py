"""The waiters of jobs, by nodes, and the recovery of lost workers: their tasks go back to pending.

Foreground jobs are dropped when they have no waiters.

Any node may do it, and several at once: a task goes back with the deletion of its assignment, which can happen only once. The
lost worker cannot write any more: each of its batches checks its ephemeral node, which is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import structlog

from mainspring.engines.zookeeper import paths, queries, records, sessions, transaction
from mainspring.engines.zookeeper.changing import Plan, decide, note, unmark
from mainspring.engines.zookeeper.committer import Conflict, Entry, Fenced, moved
from mainspring.engines.zookeeper.queries import LocatedJob, look_up
from mainspring.engines.zookeeper.sessions import Handlers, Session, Waiting, one_by_one
from mainspring.engines.zookeeper.transaction import Happening
from mainspring.engines.zookeeper.tree import Change, Create, Delete, Node, Refusal, Tree, Write
from mainspring.errors import StoreError
from mainspring.ids import TERM_SPAN
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State
from mainspring.jobs.owners import AttemptEnded
from mainspring.jobs.rules import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


T = TypeVar("T")

BATCH: Final = 250
"""Tasks that are returned at once."""
MAX_RESULTS: Final = 5000
"""Results of a lost worker's own jobs that are read to find jobs with only its clients waiting."""

log = structlog.get_logger("mainspring.zookeeper")


class Held(NamedTuple):
    """A task of a lost worker, as it was read."""

    task: str
    assignment: Node
    running: Node | None
    result: Node | None
    """The result node of its job, if that may be a foreground job."""

    @property
    def id(self) -> int:
        """The job's id, from the assignment."""
        job_id: int = records.decode(self.assignment.data)["id"]
        return job_id


# ---- waiters ----


_LEASED: Final = int(State.LEASED)


def awaited(seen: LocatedJob | None, term: int) -> Plan[Job | None]:
    """Plan to store that clients of a node wait for a job."""
    if seen is None:
        return None, None
    if seen.state.ended or term in seen.waiters:
        return None, seen.job()
    return note(seen, [*seen.waiters, term]), seen.job()


async def _wait(session: Session, operations: Sequence[ops.Subscribe]) -> list[dict[int, Job]]:
    # One term, since a group belongs to one node; more if a term was fenced.
    terms = {operation.term for operation in operations}

    async def look(ids: Sequence[int]) -> dict[int, Job]:
        found: dict[int, Job] = {}
        for term in sorted(terms):
            decided = await decide(session, ids, _of_term(awaited, term))
            found.update({job_id: job for job_id, job in decided.items() if job is not None})
        return found

    return await look_up(operations, look)


def _of_term(
    plan: Callable[[LocatedJob | None, int], Plan[T]], term: int
) -> Callable[[int, LocatedJob | None, object], Plan[T]]:
    return lambda _, seen, __: plan(seen, term)


def left(seen: LocatedJob | None, term: int) -> Plan[bool]:
    """Plan to remove a node from a job's waiters; the outcome is whether the job is dropped."""
    if seen is None or seen.location is None or seen.state.ended:
        return None, False
    location = seen.location
    waiters = [one for one in seen.waiters if one != term]
    held = location.state == State.LEASED and location.record["term"] == term
    if waiters or not seen.data.get("foreground", False) or not (location.state < _LEASED or held):
        return (note(seen, waiters) if len(waiters) < len(seen.waiters) else None), False
    return dropped(seen), True


def dropped(seen: LocatedJob) -> Entry:
    """Return the entry that removes all traces of a job."""
    location, job = seen.location, seen.job()
    assert location is not None
    name = paths.name(location.task)
    kept = location.name.kept
    changes: list[Change] = [
        Delete(seen.path, seen.version),
        Delete(name, location.name.version)
        if kept is None
        else Write(name, records.encode({"kept": kept}), location.name.version),
        Delete(location.path, location.version),
        *unmark(job, location.task),
    ]
    if location.assignment:
        changes.append(Delete(location.assignment, location.assigned))
    return Entry(changes, ((job.function, job.state, job.priority, -1),))


async def leave(session: Session, operations: Sequence[ops.Unsubscribe]) -> list[set[int]]:
    """Remove a node from the waiters of jobs; see ``Unsubscribe``."""
    gone: dict[int, set[int]] = {}
    for term, ids in _by_term(operations).items():
        decided = await decide(session, ids, _of_term(left, term))
        gone[term] = {job_id for job_id, is_dropped in decided.items() if is_dropped}
        for job_id in gone[term]:
            session.assignments.pop(job_id, None)
    return [gone[operation.term].intersection(operation.ids) for operation in operations]


def _by_term(operations: Sequence[ops.Subscribe] | Sequence[ops.Unsubscribe]) -> dict[int, list[int]]:
    ids: dict[int, list[int]] = {}
    for operation in operations:
        ids.setdefault(operation.term, []).extend(operation.ids)
    return ids


async def _watchers(session: Session, operations: Sequence[ops.FindSubscribers]) -> list[dict[int, list[int]]]:
    ids = sorted({job_id for operation in operations for job_id in operation.ids})
    # The member that this node reads from may lag behind the one that a waiting node has written to.
    await session.tree.sync()
    waiters = await _waiters(session, ids)
    return [
        {
            job_id: elsewhere
            for job_id in operation.ids
            if (elsewhere := [term for term in waiters.get(job_id, ()) if term != operation.term])
        }
        for operation in operations
    ]


async def _waiters(session: Session, ids: Sequence[int]) -> dict[int, list[int]]:
    """Return the waiters of jobs that have not ended."""
    await session.meet(ids)
    loaded = [job_id for job_id in ids if job_id // TERM_SPAN in session.nodes]
    found: dict[int, dict[str, Any]] = {}
    nodes = await session.tree.get_many([session.result(job_id) for job_id in loaded])
    for job_id, node in zip(loaded, nodes, strict=True):
        data = {} if node is None else records.decode(node.data)
        if data.get("waiters") and not records.is_published(data):
            found[job_id] = data
    # The publication of a completed job notifies its waiters.
    ends = await session.tree.get_many([paths.completed(data["task"]) for data in found.values()])
    return {
        job_id: sorted(data["waiters"])
        for (job_id, data), node in zip(found.items(), ends, strict=True)
        if node is None or records.decode(node.data)["id"] != job_id
    }


async def _drain_inbox(session: Session, operations: Sequence[ops.DrainInbox]) -> list[ops.DrainedInbox]:
    """Return empty inboxes: users have no transactions of their own on ZooKeeper."""
    del session
    return [ops.DrainedInbox({}, 0, more=False) for _ in operations]


# ---- the tasks of lost workers ----


def given_back(who: str, held: Held) -> tuple[Entry, Waiting | None]:
    """Return the entry that returns a task to pending, and the pending task; None if only the assignment is left."""
    mine = Delete(paths.assignment(who, held.task), held.assignment.version)
    record: dict[str, Any] = {} if held.running is None else records.decode(held.running.data)
    if held.running is None or record.get("term") != paths.term_of(who):
        return Entry([mine]), None
    job = records.decode_job(record)
    _lost(job, records.decode(held.assignment.data))
    data = records.encode_job(job, record["handle"])
    changes: list[Change] = [
        mine,
        Delete(paths.running(held.task), held.running.version),
        Create(paths.pending(held.task), data),
    ]
    return Entry(changes, moved(job, State.LEASED)), Waiting(held.task, job, data)


def _lost(job: Job, assignment: dict[str, Any]) -> None:
    """Set the state of a job whose worker was lost."""
    job.state = int(State[assignment.get("state", "leased").upper()])
    job.attempt = assignment.get("attempt", job.attempt)
    (settlement,) = rules.recovered([job])
    job.attempt = settlement.counted
    job.state = int(rules.step(State(job.state), settlement.event))
    job.term = job.due_us = job.started_us = 0


def _loss(entry: Entry, back: Waiting | None, who: str) -> Happening:
    """Return an entry with the notice of the lost attempt to the owner of a job, which is pending again."""
    if back is None:
        return Happening(entry)
    job = back.job
    notice = AttemptEnded(job.id, Event.LOSE, paths.term_of(who), job.attempt, 0, job.error, job.options)
    return Happening(entry, job, notice)


def is_dropped(held: Held, living: Collection[int]) -> bool:
    """Return whether a lost worker's task belongs to a foreground job without waiters, which is dropped."""
    if held.result is None or records.decode(held.assignment.data).get("state") == "running":
        return False
    return is_unwanted(records.decode(held.result.data), living)


def is_unwanted(result: Mapping[str, Any], living: Collection[int]) -> bool:
    """Return whether a result belongs to a foreground job without waiters."""
    return bool(result.get("foreground")) and not set(result.get("waiters", ())).intersection(living)


class Recovery:
    """Returns the tasks of one lost worker."""

    def __init__(self, session: Session, who: str, living: Collection[int]) -> None:
        """``living`` are the terms of the live workers."""
        self._session = session
        self._tree = session.tree
        self._who = who
        self._living = living
        self.back: list[Waiting] = []
        """The tasks that are pending again."""
        self.lost: list[ops.LostAttempt] = []
        """The attempts that were lost with the worker."""
        self.dropped = 0

    async def run(self, limit: int) -> bool:
        """Return up to ``limit`` tasks to pending; the result is whether there are more. If not, only the journal is left.

        Raises StoreFencedError if this node may no longer write.
        """
        tasks = await self._tree.children(paths.queue(self._who))
        while tasks is not None:
            for start in range(0, len(tasks), BATCH):
                left = limit - len(self.back) - self.dropped
                if left <= 0:
                    return True
                await self._return_tasks(tasks[start : start + min(BATCH, left)])
            if await self._delete_rest():
                return False
            tasks = await self._tree.children(paths.queue(self._who))
        await self._delete_rest()
        return False

    async def _return_tasks(self, tasks: Sequence[str]) -> None:
        helds = [held for held in await self._read(tasks) if held is not None]
        unwanted = [held.id for held in helds if is_dropped(held, self._living)]
        if unwanted:
            seen = await queries.read_jobs(self._session, unwanted)
            # A client may have started to wait since the first read; the entry checks the last one. The waiters are read
            # before the live workers: a node that started in between may be among the waiters.
            self._living = await living(self._tree)
            dropping = [
                one
                for one in seen.values()
                if one.location is not None and one.location.assignment and is_unwanted(one.data, self._living)
            ]
            self.dropped += (await self._commit([Happening(dropped(one)) for one in dropping])).count(None)
            gone = {one.id for one in dropping}
            helds = [held for held in helds if held.id not in gone]
        planned = [given_back(self._who, held) for held in helds]
        verdicts = await self._commit([_loss(entry, back, self._who) for entry, back in planned])
        before = len(self.back)
        for held, (_, back), verdict in zip(helds, planned, verdicts, strict=True):
            if verdict is not None:
                continue  # another node has returned it, or it has changed: it is listed again
            if back is not None:
                self.back.append(back)
                if records.decode(held.assignment.data).get("state") == "running":
                    self.lost.append(ops.LostAttempt(back.job.id, back.job.function, back.job.attempt))
            else:
                log.error("an assignment without a task was deleted", worker=self._who, task=held.task)
        self._session.waiting(self.back[before:])  # at once: the first tasks are assigned while the rest follow

    async def _commit(self, happenings: Sequence[Happening]) -> list[Conflict | None]:
        checked: list[Conflict | None] = []
        for verdict in await transaction.commit(self._session, happenings):
            if isinstance(verdict, Fenced):
                raise self._session.over()
            if isinstance(verdict, StoreError):
                raise verdict
            checked.append(verdict)
        return checked

    async def _read(self, tasks: Sequence[str]) -> list[Held | None]:
        assignments = await self._tree.get_many([paths.assignment(self._who, task) for task in tasks])
        running = await self._tree.get_many([*map(paths.running, tasks)])
        places: dict[str, str] = {}
        for task, node in zip(tasks, running, strict=True):
            record = {} if node is None else records.decode(node.data)
            if record.get("foreground"):
                places[task] = f"{paths.block(record['id'])}/{record['handle']}"
        found = dict(zip(places, await self._tree.get_many([*places.values()]), strict=True))
        return [
            None if assignment is None else Held(task, assignment, node, found.get(task))
            for task, assignment, node in zip(tasks, assignments, running, strict=True)
        ]

    async def _remove_waits(self) -> None:
        """Remove the worker from the waiters of the newest jobs that were submitted there."""
        term = paths.term_of(self._who)
        blocks = paths.blocks_of(await self._tree.children(paths.RESULTS))
        blocks = [name for name in blocks if name.startswith(f"{term}-")]
        left = MAX_RESULTS
        for block in sorted(blocks, key=paths.first_of_block, reverse=True):
            parent = f"{paths.RESULTS}/{block}"
            handles = (await self._tree.children(parent) or [])[:left]
            left -= len(handles)
            for start in range(0, len(handles), BATCH):
                some = [f"{parent}/{handle}" for handle in handles[start : start + BATCH]]
                results = [records.decode(node.data) for node in await self._tree.get_many(some) if node is not None]
                ids = [one["id"] for one in results if not records.is_published(one) and term in one.get("waiters", ())]
                if ids:
                    await leave(self._session, [ops.Unsubscribe(term, ids)])
            if left <= 0:
                return

    async def _delete_rest(self) -> bool:
        """Delete all nodes of the worker except its journal; return False if its queue is not empty.

        The letters go last: while they exist, the worker counts as abandoned and its recovery is repeated.
        """
        (verdict,) = await self._commit([Happening(Entry([Delete(paths.queue(self._who))]))])
        if verdict is not None and verdict.why is Refusal.NOT_EMPTY:
            return False
        await self._remove_waits()
        box = paths.mail(self._who)
        letters = await self._tree.children(box)
        places = [paths.wants(self._who), *(f"{box}/{letter}" for letter in letters or ()), box]
        await self._commit([Happening(Entry([Delete(path)])) for path in places])  # refused if it is gone already
        return True


async def _lost_workers(tree: Tree) -> list[str]:
    """Return the ended workers that have left nodes behind."""
    # In this order: a queue is created together with its worker, so the later list of workers contains all live ones.
    found = set(await tree.children(paths.QUEUES) or ())
    found.update(await tree.children(paths.WANTS) or ())
    found.update(await tree.children(paths.MAIL) or ())
    found.difference_update(await tree.children(paths.WORKERS) or ())
    return sorted(paths.workers_of(found), key=paths.term_of)


async def abandoned(tree: Tree) -> list[int]:
    """Return the ended terms that have left nodes behind; see ``MembershipPort``."""
    return [paths.term_of(who) for who in await _lost_workers(tree)]


async def living(tree: Tree) -> list[int]:
    """Return the terms of the live workers."""
    return [paths.term_of(who) for who in paths.workers_of(await tree.children(paths.WORKERS))]


async def recover(session: Session, operation: ops.Recover) -> ops.Recovered:
    """Return the tasks of ended terms to pending; see ``Recover``."""
    lost = await _lost_workers(session.tree)
    if operation.of is not None:
        lost = [who for who in lost if paths.term_of(who) in operation.of]
    await sessions.meet(session.tree, session.nodes, map(paths.term_of, lost))  # the node reports their names
    alive = await living(session.tree)
    back: list[Job] = []
    more = False
    attempts: list[ops.LostAttempt] = []
    for who in lost:
        recovery = Recovery(session, who, alive)
        more = await recovery.run(operation.rows - len(back))
        if recovery.back or recovery.dropped:
            log.warning(
                "a worker is gone; its tasks are pending again",
                worker=who,
                tasks=len(recovery.back),
                dropped=recovery.dropped,
            )
        attempts += recovery.lost
        back += [one.job for one in recovery.back]
        if more:
            break
    return ops.Recovered(len(back), ops.tally(back), more, frozenset(attempts))


HANDLERS: Handlers = {
    ops.Recover: one_by_one(recover),
    ops.Subscribe: _wait,
    ops.Unsubscribe: leave,
    ops.FindSubscribers: _watchers,
    ops.DrainInbox: _drain_inbox,
}
