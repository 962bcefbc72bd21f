"""The submission of new jobs, and the joins on their names.

A job is one entry: its name, its result's node, and its task in the place of its state. The entry is written blind: the creation
of the name fails if the name is in use. Then the name is read, and the job that has it is joined.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.zookeeper import paths, queries, records
from mainspring.engines.zookeeper.committer import RETRY_DELAY, Conflict, Entry, Fenced, NotAttempted, Verdict
from mainspring.engines.zookeeper.records import leased
from mainspring.engines.zookeeper.sessions import Handlers, Session, Waiting
from mainspring.engines.zookeeper.tree import Change, Create, Refusal, SessionEndedError, Write
from mainspring.errors import StoreCorruptError, StoreError, StoreUnavailableError
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import NO_UNIQUE, Job, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mainspring.engines.zookeeper.queries import Name, TaskLocation

PUBLICATION_TIMEOUT: Final = 2.0
"""Seconds to wait for the publication of a task that this node has completed: a client that submits it again has seen its end,
and expects a new job. If there is no master for so long, the job joins the completed one."""
_PENDING, _SCHEDULED, _LEASED = int(State.PENDING), int(State.SCHEDULED), int(State.LEASED)


@dataclass(slots=True, eq=False)
class NewJob:
    """A new job, with those behind it that have the same name."""

    job: Job
    task: str
    foreground: bool
    operation: int = 0
    """Its place among the operations."""
    waiters: tuple[int, ...] = ()
    """The terms of the nodes whose clients wait for it."""
    behind: list[NewJob] | None = None

    def gather(self) -> None:
        """Combine the waiters and foreground flags of all jobs that share this one."""
        for other in self.behind or ():
            self.foreground = self.foreground and other.foreground
            self.waiters = tuple(dict.fromkeys((*self.waiters, *other.waiters)))


# ---- planning ----


def submission(new: NewJob, handle: str, who: str, name: Name | None = None) -> tuple[Entry, bytes]:
    """Return the entry that stores a job, and the record of its task; ``name`` is the existing name, if any."""
    job, task = new.job, new.task
    bucket = paths.bucket(task)
    record = records.encode_job(job, handle)
    kept = None if name is None else name.kept
    due_us = job.due_us if job.state == _SCHEDULED else 0
    name_record = queries.name_data(job.id, handle, kept, due_us)
    path = f"{paths.NAMES}/{bucket}/{task}"
    changes: list[Change] = [
        Create(path, name_record) if name is None else Write(path, name_record, name.version),
        Create(f"{paths.block(job.id)}/{handle}", live_result(job.id, task, new.waiters, foreground=new.foreground)),
    ]
    if job.state == _PENDING:
        changes.append(Create(f"{paths.PENDING}/{bucket}/{task}", record))
    elif job.state == _SCHEDULED:
        changes.append(Create(paths.delayed(task, due_us, job.id), record))
    else:
        changes.append(Create(f"{paths.RUNNING}/{bucket}/{task}", record))
        changes.append(Create(paths.assignment(who, task), leased(job.id, handle, job.attempt)))
    if job.expires_us:
        changes.append(Create(paths.expiring(task, job.expires_us, job.id)))
    return Entry(changes, ((job.function, job.state, job.priority, 1),)), record


def live_result(job_id: int, task: str, waiters: Iterable[int], *, foreground: bool) -> bytes:
    """Return the data of a live job's result node: its waiters, and whether it is dropped without them (foreground)."""
    data: dict[str, Any] = {"id": job_id, "task": task}
    if waiters:
        data["waiters"] = sorted(waiters)
    if foreground:
        data["foreground"] = True
    return records.encode(data)


def satisfied(job: Job, kept: dict[str, Any] | None) -> bool:
    """Return whether a job joins the last success of its name, unless another one is live."""
    keep = job.options.keep_unique if job.options else None
    return keep is not None and kept is not None and kept["ended_us"] > rules.kept_since(job.created_us, keep)


def joining(new: NewJob, path: str, version: int, data: dict[str, Any]) -> Entry | None:
    """Return the update of a joined job's result for a new job; None if it needs none."""
    waiters = set(data.get("waiters", ())).union(new.waiters)
    foreground = data.get("foreground", False) and new.foreground
    if len(waiters) == len(data.get("waiters", ())) and foreground == data.get("foreground", False):
        return None
    return Entry([Write(path, live_result(data["id"], data["task"], waiters, foreground=foreground), version)])


# ---- storing ----


class Submission:
    """The submission of one group's new jobs."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.joined: dict[int, ops.Found] = {}
        self.failed: dict[int, StoreError] = {}
        """The errors of failed operations, by their places."""
        self.waiting: list[Waiting] = []
        """The tasks that became pending."""
        self._until = 0.0
        """The end of the wait for publications; 0 before the first wait."""

    async def run(self, new_jobs: list[NewJob]) -> None:
        """Store or join all."""
        unknown = new_jobs
        try:
            unknown = await self._try(new_jobs)
            while unknown:
                unknown = await self._race(unknown)
        except StoreError as error:
            for new in unknown:
                self._fail(new, error)
        finally:
            self.session.waiting(self.waiting)

    async def _try(self, new_jobs: list[NewJob]) -> list[NewJob]:
        """Store jobs blind; return those whose names are in use, and all after the first conflict."""
        return await self._store(new_jobs, {}, until_conflict=True)

    async def _store(
        self, new_jobs: list[NewJob], locations: Mapping[str, TaskLocation], *, until_conflict: bool = False
    ) -> list[NewJob]:
        """Store jobs with the names that were read; return those that had a conflict."""
        await self.session.ensure({path for new in new_jobs for path in parents(new.job)})
        planned = []
        for new in new_jobs:
            location = locations.get(new.task)
            name = None if location is None else location.name
            planned.append(submission(new, self.session.handle(new.job.id), self.session.who, name))
        committer, entries = self.session.committer, [entry for entry, _ in planned]
        write = committer.commit_until_conflict if until_conflict else committer.commit
        verdicts: Sequence[Verdict | NotAttempted] = await write(entries)
        return [
            new
            for new, verdict, (_, record) in zip(new_jobs, verdicts, planned, strict=True)
            if not self._decided(new, verdict, record)
        ]

    async def _race(self, new_jobs: list[NewJob]) -> list[NewJob]:
        """Read the names, and store or join the jobs; return those that had a conflict."""
        locations = await queries.locate(self.session, [new.task for new in new_jobs])
        storing: list[NewJob] = []
        joining: list[tuple[NewJob, TaskLocation]] = []
        for new in new_jobs:
            location = locations.get(new.task)
            if location is None:
                storing.append(new)
            elif location.path:
                joining.append((new, location))
            else:
                rest = self._join_kept(new, location.name)
                if rest is not None:
                    storing.append(rest)
        return await self._join(joining) + await self._store(storing, locations)

    def _decided(self, new: NewJob, verdict: Verdict | NotAttempted, record: bytes) -> bool:
        """Apply the verdict on a job's entry; return False if it has to be retried."""
        job = new.job
        if verdict is None:
            if job.state == _PENDING:
                self.waiting.append(Waiting(new.task, job, record))
            elif job.state == _LEASED:
                self.session.assignments[job.id] = 0
            found = ops.Found.of(job)
            for other in new.behind or ():
                self.joined[other.job.id] = found
            return True
        if isinstance(verdict, Fenced):
            self._fail(new, self.session.over())
            return True
        if isinstance(verdict, Conflict):
            if verdict.why is Refusal.NO_NODE:
                for path in parents(job):
                    self.session.forget(path)
            elif verdict.at:
                self._fail(new, StoreCorruptError(f"{verdict.path} exists without a name"))
                return True
        return False

    def _fail(self, new: NewJob, error: StoreError) -> None:
        for one in (new, *(new.behind or ())):
            self.failed[one.operation] = error

    # ---- joining ----

    def _join_kept(self, new: NewJob, name: Name) -> NewJob | None:
        """Join jobs with ``keep_unique`` to the last success of their name; return the first that has to be stored."""
        line: list[NewJob] = [new, *(new.behind or ())]
        for place, one in enumerate(line):
            if not satisfied(one.job, name.kept):
                if place:
                    one.behind = line[place + 1 :]
                    one.gather()
                return one
            assert name.kept is not None
            kept = ops.Found(name.kept["id"], int(State.SUCCEEDED), name.kept["attempt"])
            self.joined[one.job.id] = kept
        return None

    async def _join(self, new_jobs: list[tuple[NewJob, TaskLocation]]) -> list[NewJob]:
        """Join jobs whose names are in use; return those whose rivals have ended in the meantime."""
        left: list[NewJob] = []
        noting: list[NewJob] = []
        for new, location in new_jobs:
            if location.state.ended and await self._is_awaited(location):
                left.append(new)
            elif new.waiters or (location.record.get("foreground", False) and not new.foreground):
                noting.append(new)
            else:
                self._found(new, location)
        if noting:
            left += await self._note(noting, {new.task: location.name.id for new, location in new_jobs})
        return left

    async def _note(self, new_jobs: list[NewJob], ids: dict[str, int]) -> list[NewJob]:
        """Join unpublished jobs, and store the waiters; return those that had a conflict."""
        seen = await queries.read_jobs(self.session, [ids[new.task] for new in new_jobs])
        left: list[NewJob] = []
        noting: list[tuple[NewJob, TaskLocation, Entry]] = []
        for new in new_jobs:
            one = seen.get(ids[new.task])
            if one is None or one.location is None:
                left.append(new)
            elif (entry := joining(new, one.path, one.version, one.data)) is None:
                self._found(new, one.location)
            else:
                noting.append((new, one.location, entry))
        verdicts = await self.session.committer.commit([entry for _, _, entry in noting])
        for (new, location, _), verdict in zip(noting, verdicts, strict=True):
            if verdict is None:
                self._found(new, location)
            elif isinstance(verdict, Fenced):
                self._fail(new, self.session.over())
            else:
                left.append(new)
        return left

    def _found(self, new: NewJob, location: TaskLocation) -> None:
        found = ops.Found(location.name.id, int(location.state), location.attempt)
        for one in (new, *(new.behind or ())):
            self.joined[one.job.id] = found

    async def _is_awaited(self, location: TaskLocation) -> bool:
        """Wait for the publication of a task that this node has completed; return False if it may be joined."""
        if location.record.get("worker") != self.session.who:
            return False
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + PUBLICATION_TIMEOUT
        return now < self._until and await published(self.session, location, self._until - now)


async def published(session: Session, location: TaskLocation, seconds: float) -> bool:
    """Wait until a completed task is gone, or may be; return False if it still exists after ``seconds``."""
    changed = asyncio.Event()
    try:
        async with asyncio.timeout(seconds):
            if await session.tree.get(location.path, changed.set) is not None:
                await changed.wait()
    except TimeoutError:
        return False
    except (StoreUnavailableError, SessionEndedError):
        await asyncio.sleep(RETRY_DELAY)
    return True


def parents(job: Job) -> tuple[str, ...]:
    """Return the parents of a job's nodes that are created on demand."""
    found = [paths.block(job.id)]
    if job.state == _SCHEDULED:
        found.append(paths.minute(paths.DELAYED, job.due_us))
    if job.expires_us:
        found.append(paths.minute(paths.EXPIRING, job.expires_us))
    return tuple(found)


async def _submit(session: Session, operations: Sequence[ops.Submit]) -> list[dict[int, ops.Found] | StoreError]:
    new_jobs: list[NewJob] = []
    first: dict[str, NewJob] = {}
    for place, operation in enumerate(operations):
        waiters = (operation.waiter,) if operation.waiter else ()
        for job in operation.jobs:
            task = paths.task_name(job.function, job.unique, job.id)
            new = NewJob(job, task, job.foreground, place, waiters)
            if job.unique != NO_UNIQUE and (other := first.setdefault(new.task, new)) is not new:
                if other.behind is None:
                    other.behind = []
                other.behind.append(new)
            else:
                new_jobs.append(new)
    for new in first.values():
        if new.behind is not None:
            new.gather()
    submission = Submission(session)
    await submission.run(new_jobs)
    joined, failed = submission.joined, submission.failed
    outcomes: list[dict[int, ops.Found] | StoreError] = []
    for place, operation in enumerate(operations):
        if place in failed:
            outcomes.append(failed[place])
        else:
            outcomes.append({job.id: joined[job.id] for job in operation.jobs if job.id in joined} if joined else {})
    return outcomes


HANDLERS: Handlers = {ops.Submit: _submit}
