"""What a worker that is gone has left behind goes back to where others find it.

Any node may do it, and several at once: each task goes back with the deletion of its assignment, which can happen only once. The
worker itself cannot write any more: its ephemeral node is gone, which each of its batches checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from mainspring.engines.zookeeper import following, locating, paths, records, waiting
from mainspring.engines.zookeeper.committer import Conflict, Entry, Fenced
from mainspring.engines.zookeeper.following import Happening
from mainspring.engines.zookeeper.session import Waiting
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
    from mainspring.engines.zookeeper.session import Handlers, Session
    from mainspring.engines.zookeeper.tree import Change, Node, Tree
    from mainspring.jobs.model import Job

AT_ONCE: Final = 250
"""Tasks that are given back together."""
MOST_READ: Final = 5000
"""Results of a lost worker's own jobs that are read for those for which only its clients have waited."""

log = structlog.get_logger("mainspring.zookeeper")


class Held(NamedTuple):
    """A task that a lost worker had, as it was read."""

    task: str
    assignment: Node
    running: Node | None
    result: Node | None
    """What is said of its job, where that may be a foreground one still."""

    @property
    def id(self) -> int:
        """The job's id, as the assignment says."""
        job_id: int = records.decode(self.assignment.data)["id"]
        return job_id


# ---- the rules ----


def given_back(who: str, held: Held) -> tuple[Entry, Waiting | None]:
    """Return what gives a task back, and the task as it is pending then; None where nothing is left to be given back."""
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
    """Take a job to the state in which it waits after its worker was lost."""
    job.state = int(State[assignment.get("state", "leased").upper()])
    job.attempt = assignment.get("attempt", job.attempt)
    (settlement,) = rules.recovered([job])
    job.attempt = settlement.counted
    job.state = int(rules.step(State(job.state), settlement.event))
    job.term = job.due_us = job.started_us = 0


def _loss(job: Job, term: int) -> AttemptEnded:
    """Return what the loss of a worker means for the owner of a job, which is pending again."""
    return AttemptEnded(job.id, Event.LOSE, term, job.attempt, 0, job.error, job.options)


def is_dropped(held: Held, living: Collection[int]) -> bool:
    """Return whether nobody waits any more for a foreground job that a lost worker had: then it is as if it had never been."""
    if held.result is None or records.decode(held.assignment.data).get("state") == "running":
        return False
    return is_unwanted(records.decode(held.result.data), living)


def is_unwanted(result: Mapping[str, Any], living: Collection[int]) -> bool:
    """Return whether nobody waits any more for the job of a result, which is a foreground one."""
    return bool(result.get("foreground")) and not set(result.get("waiters", ())).intersection(living)


# ---- doing it ----


class Recovery:
    """Gives back what one lost worker had."""

    def __init__(self, session: Session, who: str, living: Collection[int]) -> None:
        """``living`` are the terms of those that live."""
        self._session = session
        self._tree = session.tree
        self._who = who
        self._living = living
        self.back: list[Waiting] = []
        """What is pending again."""
        self.lost: list[ops.LostAttempt] = []
        """The attempts that were lost with the worker."""
        self.dropped = 0

    async def run(self, limit: int) -> bool:
        """Give back at most so many tasks; returns whether there are more. Then nothing of the worker is left but its journal.

        Raises StoreFencedError where this node may not write any more.
        """
        tasks = await self._tree.children(paths.queue(self._who))
        while tasks is not None:
            for start in range(0, len(tasks), AT_ONCE):
                left = limit - len(self.back) - self.dropped
                if left <= 0:
                    return True
                await self._give_back(tasks[start : start + min(AT_ONCE, left)])
            if await self._take_away():
                return False
            tasks = await self._tree.children(paths.queue(self._who))
        await self._take_away()
        return False

    async def _give_back(self, tasks: Sequence[str]) -> None:
        helds = [held for held in await self._read(tasks) if held is not None]
        unwanted = [held.id for held in helds if is_dropped(held, self._living)]
        if unwanted:
            seen = await locating.look(self._session, unwanted)
            # It may be wanted since it was read first, and the entry is for what was read last. Who waits is read before
            # who lives: a node that was not there yet may have begun to wait.
            self._living = await living(self._tree)
            dropping = [
                one
                for one in seen.values()
                if one.spot is not None and one.spot.assignment and is_unwanted(one.data, self._living)
            ]
            self.dropped += (await self._commit([waiting.dropped(one) for one in dropping])).count(None)
            gone = {one.id for one in dropping}
            helds = [held for held in helds if held.id not in gone]
        planned = [given_back(self._who, held) for held in helds]
        verdicts = await self._commit_planned(planned)
        before = len(self.back)
        for held, (_, back), verdict in zip(helds, planned, verdicts, strict=True):
            if verdict is not None:
                continue  # somebody else has done it, or it has changed: it is listed again
            if back is not None:
                self.back.append(back)
                if records.decode(held.assignment.data).get("state") == "running":
                    self.lost.append(ops.LostAttempt(back.job.id, back.job.function, back.job.attempt))
            else:
                log.error("an assignment without its task was taken away", worker=self._who, task=held.task)
        self._session.waiting(
            self.back[before:]
        )  # at once: what is given back first is assigned while the rest follows

    async def _commit(self, entries: Sequence[Entry]) -> list[Conflict | None]:
        return self._checked(await self._session.committer.commit(entries))

    async def _commit_planned(self, planned: Sequence[tuple[Entry, Waiting | None]]) -> list[Conflict | None]:
        """Give tasks back, each with what follows for its owner from the loss of the attempt."""
        term = paths.term_of(self._who)
        happenings = [Happening(entry, back.job, _loss(back.job, term)) for entry, back in planned if back is not None]
        returned = iter(self._checked(await following.commit(self._session, happenings)))
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

    async def _forget_waits(self) -> None:
        """Nobody waits any more at the worker for jobs that were submitted there, as far as the newest of them go."""
        term = paths.term_of(self._who)
        blocks = paths.blocks_of(await self._tree.children(paths.RESULTS))
        blocks = [name for name in blocks if name.startswith(f"{term}-")]
        left = MOST_READ
        for block in sorted(blocks, key=paths.first_of_block, reverse=True):
            parent = f"{paths.RESULTS}/{block}"
            handles = (await self._tree.children(parent) or [])[:left]
            left -= len(handles)
            for start in range(0, len(handles), AT_ONCE):
                some = [f"{parent}/{handle}" for handle in handles[start : start + AT_ONCE]]
                said = [records.decode(node.data) for node in await self._tree.get_many(some) if node is not None]
                ids = [one["id"] for one in said if not records.is_published(one) and term in one.get("waiters", ())]
                if ids:
                    await waiting.leave(self._session, [ops.Unsubscribe(term, ids)])
            if left <= 0:
                return

    async def _take_away(self) -> bool:
        """Delete what is left of the worker beside its journal; False where its queue is not empty after all.

        The letters go last: as long as they are there, somebody looks after the rest.
        """
        (verdict,) = await self._commit([Entry([Delete(paths.queue(self._who))])])
        if verdict is not None and verdict.why is Refusal.NOT_EMPTY:
            return False
        await self._forget_waits()
        box = paths.mail(self._who)
        letters = await self._tree.children(box)
        places = [paths.wants(self._who), *(f"{box}/{letter}" for letter in letters or ()), box]
        await self._commit([Entry([Delete(path)]) for path in places])  # refused where it is gone already
        return True


async def _lost_workers(tree: Tree) -> list[str]:
    """Return the workers that are gone and have left something behind."""
    # In this order: a queue comes into being together with its worker, so whoever lives is seen among the living.
    found = set(await tree.children(paths.QUEUES) or ())
    found.update(await tree.children(paths.WANTS) or ())
    found.update(await tree.children(paths.MAIL) or ())
    found.difference_update(await tree.children(paths.WORKERS) or ())
    return sorted(paths.workers_of(found), key=paths.term_of)


async def abandoned(tree: Tree) -> list[int]:
    """Return the terms that have ended and of which something is left; see ``MembershipPort``."""
    return [paths.term_of(who) for who in await _lost_workers(tree)]


async def living(tree: Tree) -> list[int]:
    """Return the terms of the workers that live."""
    return [paths.term_of(who) for who in paths.workers_of(await tree.children(paths.WORKERS))]


async def recover(session: Session, operations: Sequence[ops.Recover]) -> list[ops.Recovered]:
    """Give back what ended terms hold; see ``Recover``."""
    return [await _recover(session, operation) for operation in operations]


async def _recover(session: Session, operation: ops.Recover) -> ops.Recovered:
    lost = await _lost_workers(session.tree)
    if operation.of is not None:
        lost = [who for who in lost if paths.term_of(who) in operation.of]
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
