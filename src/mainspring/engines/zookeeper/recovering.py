"""The recovery of lost workers: their tasks go back to pending.

Any node may do it, and several at once: a task goes back with the deletion of its assignment, which can happen only once. The
lost worker cannot write any more: each of its batches checks its ephemeral node, which is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from mainspring.engines.zookeeper import paths, queries, records, sessions, transaction, waiting
from mainspring.engines.zookeeper.committer import Conflict, Entry, Fenced
from mainspring.engines.zookeeper.sessions import Waiting
from mainspring.engines.zookeeper.transaction import Happening
from mainspring.engines.zookeeper.tree import Create, Delete, Refusal
from mainspring.errors import StoreError
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.jobs.owners import AttemptEnded
from mainspring.jobs.rules import Event

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mainspring.engines.zookeeper.committer import Verdict
    from mainspring.engines.zookeeper.sessions import Handlers, Session
    from mainspring.engines.zookeeper.tree import Change, Node, Tree
    from mainspring.jobs.model import Job

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


# ---- the rules ----


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
    counts = [(job.function, State.LEASED, job.priority, -1), (job.function, State.PENDING, job.priority, 1)]
    return Entry(changes, counts), Waiting(held.task, job, data)


def _lost(job: Job, assignment: dict[str, Any]) -> None:
    """Set the state of a job whose worker was lost."""
    job.state = int(State[assignment.get("state", "leased").upper()])
    job.attempt = assignment.get("attempt", job.attempt)
    (settlement,) = rules.recovered([job])
    job.attempt = settlement.counted
    job.state = int(rules.step(State(job.state), settlement.event))
    job.term = job.due_us = job.started_us = 0


def _loss(job: Job, term: int) -> AttemptEnded:
    """Return the notice of a lost attempt to the owner of a job, which is pending again."""
    return AttemptEnded(job.id, Event.LOSE, term, job.attempt, 0, job.error, job.options)


def is_dropped(held: Held, living: Collection[int]) -> bool:
    """Return whether a lost worker's task belongs to a foreground job without waiters, which is dropped."""
    if held.result is None or records.decode(held.assignment.data).get("state") == "running":
        return False
    return is_unwanted(records.decode(held.result.data), living)


def is_unwanted(result: Mapping[str, Any], living: Collection[int]) -> bool:
    """Return whether a result belongs to a foreground job without waiters."""
    return bool(result.get("foreground")) and not set(result.get("waiters", ())).intersection(living)


# ---- the recovery ----


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
            self.dropped += (await self._commit([waiting.dropped(one) for one in dropping])).count(None)
            gone = {one.id for one in dropping}
            helds = [held for held in helds if held.id not in gone]
        planned = [given_back(self._who, held) for held in helds]
        verdicts = await self._commit_planned(planned)
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

    async def _commit(self, entries: Sequence[Entry]) -> list[Conflict | None]:
        return self._checked(await self._session.committer.commit(entries))

    async def _commit_planned(self, planned: Sequence[tuple[Entry, Waiting | None]]) -> list[Conflict | None]:
        """Return tasks, each with the consequences of the lost attempt for its owner."""
        term = paths.term_of(self._who)
        happenings = [Happening(entry, back.job, _loss(back.job, term)) for entry, back in planned if back is not None]
        returned = iter(self._checked(await transaction.commit(self._session, happenings)))
        removed = iter(await self._commit([entry for entry, back in planned if back is None]))
        return [next(removed if back is None else returned) for _, back in planned]

    def _checked(self, verdicts: Sequence[Verdict | StoreError]) -> list[Conflict | None]:
        checked: list[Conflict | None] = []
        for verdict in verdicts:
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
                    await waiting.leave(self._session, [ops.Unsubscribe(term, ids)])
            if left <= 0:
                return

    async def _delete_rest(self) -> bool:
        """Delete all nodes of the worker except its journal; return False if its queue is not empty.

        The letters go last: while they exist, the worker counts as abandoned and its recovery is repeated.
        """
        (verdict,) = await self._commit([Entry([Delete(paths.queue(self._who))])])
        if verdict is not None and verdict.why is Refusal.NOT_EMPTY:
            return False
        await self._remove_waits()
        box = paths.mail(self._who)
        letters = await self._tree.children(box)
        places = [paths.wants(self._who), *(f"{box}/{letter}" for letter in letters or ()), box]
        await self._commit([Entry([Delete(path)]) for path in places])  # refused if it is gone already
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


async def recover(session: Session, operations: Sequence[ops.Recover]) -> list[ops.Recovered]:
    """Return the tasks of ended terms to pending; see ``Recover``."""
    return [await _recover(session, operation) for operation in operations]


async def _recover(session: Session, operation: ops.Recover) -> ops.Recovered:
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


HANDLERS: Handlers = {ops.Recover: recover}
