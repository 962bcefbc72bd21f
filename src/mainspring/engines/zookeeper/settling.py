"""Settlements of held jobs, and the records of running ones.

A settlement is one entry: it deletes the assignment, with the version that its holder expects, and moves the task. It is written
blind, unless another node holds the job, or the job is delayed and other nodes may have written its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper import paths, queries, records, transaction
from mainspring.engines.zookeeper.committer import Conflict, Entry, Fenced
from mainspring.engines.zookeeper.records import running
from mainspring.engines.zookeeper.sessions import Completion, Handlers, Session, Waiting
from mainspring.engines.zookeeper.transaction import Happening
from mainspring.engines.zookeeper.tree import ANY, Change, Create, Delete, Refusal, Write
from mainspring.errors import StoreError
from mainspring.ids import TERM_SPAN
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State
from mainspring.jobs.owners import AttemptEnded, Ended, Notice, Started
from mainspring.jobs.rules import Event, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


_TARGETS: Final = {event: int(rules.target(event)) for event in Event}
_LEASED, _PENDING, _SCHEDULED, _SUCCEEDED = map(int, (State.LEASED, State.PENDING, State.SCHEDULED, State.SUCCEEDED))
_copy: Callable[[Job], Job] = Job.__copy__  # type: ignore[attr-defined]

JobTerm = ops.JobTerm


# ---- planning ----


def settled(settlement: Settlement, payload: bytes | None = None) -> Job:
    """Return the job after a settlement; ``payload`` is the stored one if the settlement's job has none."""
    job = _copy(settlement.job)
    event = settlement.event
    job.state = after = _TARGETS[event]
    job.attempt = settlement.counted
    job.due_us = settlement.due_us
    job.started_us = settlement.started_us
    job.ended_us = settlement.ended_us
    if settlement.error or event is Event.SUCCEED:
        job.error = settlement.error
    job.result = settlement.result
    job.output_size = len(settlement.result)
    if after == _SUCCEEDED:
        job.payload = b""
    elif payload is not None:
        job.payload = payload
    if after < _LEASED:
        job.term = 0
    return job


@dataclass(slots=True, eq=False)
class Held:
    """A held job that is settled, with the data that its entry needs."""

    settlement: Settlement
    handle: str
    task: str
    assignment: str
    version: int | None
    """The version of the assignment; None if it has to be read."""
    name: queries.Name | None = None
    """The name, read if a job with a unique is delayed: other nodes may have written it."""
    payload: bytes | None = None
    """The payload, read if it is kept and the settlement's job has none."""
    is_unmarked: bool = False
    """Whether its expiry has no index node any more."""
    record: bytes = b""
    """The record of its task after the settlement."""

    @property
    def needs_name(self) -> bool:
        """Whether the name has to be read."""
        return bool(self.settlement.job.unique) and _TARGETS[self.settlement.event] == _SCHEDULED

    @property
    def needs_payload(self) -> bool:
        """Whether the payload has to be read."""
        job = self.settlement.job
        return bool(job.input_size and not job.payload) and _TARGETS[self.settlement.event] != _SUCCEEDED


def _notice(settlement: Settlement, job: Job) -> Notice | None:
    """Return the notice of a settlement to the owner of its job, if it may have one; ``job`` has its new state."""
    if job.options is None:
        return None
    return Ended.of(job, settlement.worker) if job.state >= _SUCCEEDED else AttemptEnded.by(settlement)


def settlement_entry(held: Held, job: Job, who: str) -> Entry:
    """Return the entry of a settlement, and set the record of ``held``; ``job`` has its new state, ``who`` is this worker."""
    task, after = held.task, job.state
    assert held.version is not None, "its assignment was read"
    end = f"{paths.bucket(task)}/{task}"
    changes: list[Change] = [Delete(held.assignment, held.version), Delete(f"{paths.RUNNING}/{end}")]
    if after >= _SUCCEEDED:
        held.record = records.encode_job(job, held.handle, worker=who)
        changes.append(Create(f"{paths.COMPLETED}/{end}", held.record))
        if job.expires_us and not held.is_unmarked:
            changes.append(Delete(paths.expiring(task, job.expires_us, job.id)))
    elif after == _PENDING:
        held.record = records.encode_job(job, held.handle)
        changes.append(Create(f"{paths.PENDING}/{end}", held.record))
    else:
        held.record = records.encode_job(job, held.handle)
        name = held.name
        kept, version = (None, ANY) if name is None else (name.kept, name.version)
        changes.append(Create(paths.delayed(task, job.due_us, job.id), held.record))
        changes.append(Write(f"{paths.NAMES}/{end}", queries.name_data(job.id, held.handle, kept, job.due_us), version))
    function, priority = job.function, job.priority
    return Entry(changes, ((function, _LEASED, priority, -1), (function, after, priority, 1)))


# ---- settling ----


class Settling:
    """The settlements of one group on their way into the tree."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.stale: set[JobTerm] = set()
        self.fenced: set[JobTerm] = set()
        self.failed: dict[JobTerm, StoreError] = {}
        self._completed: list[Completion] = []
        self._waiting: list[Waiting] = []

    async def run(self, settlements: Sequence[Settlement]) -> None:
        """Settle all, each once."""
        left = await self._begin(settlements)
        try:
            while left:
                left = await self._read_missing(left)
                left = await self._settle(left)
        except StoreError as error:
            self.failed.update({(held.settlement.job.id, held.settlement.job.term): error for held in left})
        finally:
            self.session.completions(self._completed)
            self.session.waiting(self._waiting)

    async def _begin(self, settlements: Sequence[Settlement]) -> list[Held]:
        """Return the held jobs with the paths of their assignments; the versions of this node's own are in memory."""
        session = self.session
        await session.meet(number for one in settlements for number in (one.job.id, one.job.term * TERM_SPAN))
        held: list[Held] = []
        for settlement in settlements:
            job = settlement.job
            if job.term not in session.nodes or job.id // TERM_SPAN not in session.nodes:
                self.stale.add((job.id, job.term))
                continue
            version = session.assignments.get(job.id) if job.term == session.term else None
            task = paths.task_name(job.function, job.unique, job.id)
            assignment = paths.assignment(session.worker_of(job.term), task)
            held.append(Held(settlement, session.handle(job.id), task, assignment, version))
        return held

    async def _read_missing(self, left: list[Held]) -> list[Held]:
        """Read missing versions, names and payloads at once, and return the jobs that are still held."""
        unassigned = [held for held in left if held.version is None]
        unnamed = [held for held in left if held.needs_name]
        bare = [held for held in left if held.payload is None and held.needs_payload]
        if unassigned or unnamed or bare:
            at = [held.assignment for held in unassigned]
            at += [paths.name(held.task) for held in unnamed]
            at += [paths.running(held.task) for held in bare]
            nodes = iter(await self.session.get_many(at))
            for held in unassigned:
                node = next(nodes)
                if node is None or records.decode(node.data)["id"] != held.settlement.job.id:
                    self._drop(held)
                else:
                    held.version = node.version
            for held in unnamed:
                node = next(nodes)
                held.name = None if node is None else queries.name_of(node)
            for held in bare:
                node = next(nodes)
                held.payload = None if node is None else records.untext(records.decode(node.data), "payload")
            left = [held for held in left if held.version is not None]
        due = [held.settlement.due_us for held in left if _TARGETS[held.settlement.event] == _SCHEDULED]
        await self.session.ensure({paths.minute(paths.DELAYED, due_us) for due_us in due})
        return left

    async def _settle(self, left: list[Held]) -> list[Held]:
        """Write the settlements, and return those that have to be retried."""
        jobs = [settled(held.settlement, held.payload) for held in left]
        who = self.session.who
        entries = [settlement_entry(held, job, who) for held, job in zip(left, jobs, strict=True)]
        retry = []
        notices = [_notice(held.settlement, job) for held, job in zip(left, jobs, strict=True)]
        verdicts = await transaction.commit(self.session, list(map(Happening, entries, jobs, notices)))
        for held, job, verdict in zip(left, jobs, verdicts, strict=True):
            if verdict is None:
                self._settled(held, job)
            elif isinstance(verdict, Fenced):
                self.fenced.add((job.id, held.settlement.job.term))
            elif isinstance(verdict, StoreError):
                self.failed[job.id, held.settlement.job.term] = verdict
            elif self._overtaken(held, verdict):
                retry.append(held)
        return retry

    def _settled(self, held: Held, job: Job) -> None:
        self.session.assignments.pop(job.id, None)
        if job.state >= _SUCCEEDED:
            self._completed.append(Completion(held.task, job, held.handle, held.record))
        elif job.state == _PENDING:
            self._waiting.append(Waiting(held.task, job, held.record))
        if job.expires_us:
            self.session.late.pop(paths.expiring(held.task, job.expires_us, job.id), None)

    def _overtaken(self, held: Held, conflict: Conflict) -> bool:
        """Return whether a settlement may be retried after a conflict; False if the job is no longer held."""
        job = held.settlement.job
        if conflict.at == 0:
            self.session.assignments.pop(job.id, None)
            if conflict.why is Refusal.NO_NODE:
                self._drop(held)
                return False
            held.version = None
        elif conflict.at == 1:
            self._drop(held)
            return False
        elif job.expires_us and conflict.path == paths.expiring(held.task, job.expires_us, job.id):
            held.is_unmarked = True
        elif conflict.why is Refusal.NO_NODE:
            self.session.forget(paths.minute(paths.DELAYED, held.settlement.due_us))
        return True

    def _drop(self, held: Held) -> None:
        self.stale.add((held.settlement.job.id, held.settlement.job.term))


async def settle(session: Session, operations: Sequence[ops.Settle]) -> list[set[int] | StoreError]:
    """Settle held jobs; see ``Settle``."""
    first, repeated = ops.each_once(operations)
    await session.flush_progress()  # the progress of a job is delivered before its end
    settling = Settling(session)
    await settling.run([*first.values()])
    stale, fenced = settling.stale, settling.fenced
    if not stale and not fenced and not settling.failed:
        return list(repeated)
    outcomes: list[set[int] | StoreError] = []
    for operation, stale_ids in zip(operations, repeated, strict=True):
        job_terms = {(one.job.id, one.job.term) for one in operation.settlements}
        if job_terms & fenced:
            outcomes.append(session.over())
        elif failed := job_terms & settling.failed.keys():
            outcomes.append(settling.failed[min(failed)])
        else:
            outcomes.append(stale_ids | {job_id for job_id, _ in job_terms & stale})
    return outcomes


# ---- records of running jobs ----


async def assign(session: Session, operations: Sequence[ops.Assign]) -> list[StoreError | None]:
    """Record running jobs; see ``Assign``."""
    last = {(job.id, job.term): job for operation in operations for job in operation.jobs}
    left = _still_held(session, last)
    await session.meet([number for job_term in left for number in (job_term[0], job_term[1] * TERM_SPAN)])
    left = [job_term for job_term in left if job_term[0] // TERM_SPAN in session.nodes and job_term[1] in session.nodes]
    own = {job_term: session.assignments.get(job_term[0]) for job_term in left if job_term[1] == session.term}
    versions = {job_term: version for job_term, version in own.items() if version is not None}
    at: dict[JobTerm, str] = {}
    for job_term in left:
        job = last[job_term]
        task = paths.task_name(job.function, job.unique, job.id)
        at[job_term] = paths.assignment(session.worker_of(job_term[1]), task)
    while left := _still_held(session, left):
        unknown = [job_term for job_term in left if job_term not in versions]
        nodes = await session.get_many([at[job_term] for job_term in unknown])
        for job_term, node in zip(unknown, nodes, strict=True):
            if node is not None and records.decode(node.data)["id"] == job_term[0]:
                versions[job_term] = node.version
        left = [job_term for job_term in _still_held(session, left) if job_term in versions]
        happenings = []
        for job_term in left:
            job = last[job_term]
            change = Write(at[job_term], running(job, session.handle(job.id)), versions[job_term])
            happenings.append(Happening(Entry([change]), job, Started.of(job)))
        retry = []
        for job_term, verdict in zip(left, await transaction.commit(session, happenings), strict=True):
            if isinstance(verdict, Fenced):
                return [session.over()] * len(operations)
            if isinstance(verdict, StoreError):
                return [verdict] * len(operations)
            version = versions.pop(job_term)
            if verdict is not None:
                retry.append(job_term)
            elif job_term[1] == session.term:
                session.assignments[job_term[0]] = version + 1
        left = retry
    return [None] * len(operations)


def _still_held(session: Session, job_terms: Iterable[JobTerm]) -> list[JobTerm]:
    """Return the jobs that may still have the delivery that an operation of the current group is about.

    This node's own jobs have to be in memory: a job that it has returned may have been assigned to it again, and not arrived.
    """
    return [
        (job_id, term)
        for job_id, term in job_terms
        if term > 0 and (term != session.term or (job_id in session.assignments and job_id not in session.new))
    ]


HANDLERS: Handlers = {
    ops.Settle: settle,
    ops.Assign: assign,
}
