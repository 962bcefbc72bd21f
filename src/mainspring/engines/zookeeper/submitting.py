"""New jobs, and the joins on their names.

A job is one entry: its name, its result's node, and its task where its state says. Nothing is read before: that the name is
free is what the name's creation says. Where it is not, the name is read, and whoever has it is joined.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.zookeeper import locating, paths, records
from mainspring.engines.zookeeper.committer import RETRY_DELAY, Conflict, Entry, Fenced, NotAttempted
from mainspring.engines.zookeeper.records import leased
from mainspring.engines.zookeeper.session import Waiting
from mainspring.engines.zookeeper.tree import Create, Refusal, SessionEndedError, Write
from mainspring.errors import StoreCorruptError, StoreError, StoreUnavailableError
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import NO_UNIQUE, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.engines.zookeeper.committer import Verdict
    from mainspring.engines.zookeeper.locating import Name, TaskLocation
    from mainspring.engines.zookeeper.session import Handlers, Session
    from mainspring.engines.zookeeper.tree import Change
    from mainspring.jobs.model import Job

PUBLISHED_IN: Final = 2.0
"""Seconds to wait for the publication of what this node itself has completed: who submits it again after that has seen its end,
and wants another one. Where there is no master for so long, it is joined after all."""
_PENDING, _SCHEDULED, _LEASED = int(State.PENDING), int(State.SCHEDULED), int(State.LEASED)


class New:
    """A job on its way in, with those behind it that have the same name."""

    __slots__ = ("behind", "foreground", "job", "operation", "task", "waiters")

    def __init__(self, job: Job, task: str, operation: int, waiter: int) -> None:
        self.job = job
        self.task = task
        self.operation = operation
        """Its place among the operations."""
        self.waiters: tuple[int, ...] = (waiter,) if waiter else ()
        """The terms of the nodes whose clients wait for it."""
        self.foreground = job.foreground
        self.behind: list[New] | None = None

    def gather(self) -> None:
        """Take over what those behind it want of the job that all of them share."""
        for other in self.behind or ():
            self.foreground = self.foreground and other.foreground
            self.waiters = tuple(dict.fromkeys((*self.waiters, *other.waiters)))


# ---- planning ----


def submission(new: New, handle: str, who: str, name: Name | None = None) -> tuple[Entry, bytes]:
    """Return what stores a job, and the record of its task; ``name`` is what is known of its name, where it is there."""
    job, task = new.job, new.task
    bucket = paths.bucket(task)
    record = records.encode_job(job, handle)
    kept = None if name is None else name.kept
    due_us = job.due_us if job.state == _SCHEDULED else 0
    said = locating.name_data(job.id, handle, kept, due_us)
    path = f"{paths.NAMES}/{bucket}/{task}"
    changes: list[Change] = [
        Create(path, said) if name is None else Write(path, said, name.version),
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
    """Return what is said of a job where its result will be: who waits, and whether it is dropped when nobody does."""
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


def joining(new: New, path: str, version: int, data: dict[str, Any]) -> Entry | None:
    """Return what a joined job's result has to say for a new one's sake; None where it says it already."""
    waiters = set(data.get("waiters", ())).union(new.waiters)
    foreground = data.get("foreground", False) and new.foreground
    if len(waiters) == len(data.get("waiters", ())) and foreground == data.get("foreground", False):
        return None
    return Entry([Write(path, live_result(data["id"], data["task"], waiters, foreground=foreground), version)])


# ---- storing ----


class Submission:
    """New jobs of one group on their way into the tree."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.joined: dict[int, ops.Found] = {}
        self.failed: dict[int, StoreError] = {}
        """Operations that have failed, by their places."""
        self.waiting: list[Waiting] = []
        """What became pending."""
        self._until = 0.0
        """When to wait no longer for publications; 0 before any was waited for."""

    async def run(self, wait_or_timeout: list[New]) -> None:
        """Store or join all."""
        unknown = wait_or_timeout
        try:
            unknown = await self._try(wait_or_timeout)
            while unknown:
                unknown = await self._race(unknown)
        except StoreError as error:
            for new in unknown:
                self._fail(new, error)
        finally:
            self.session.waiting(self.waiting)

    async def _try(self, wait_or_timeout: list[New]) -> list[New]:
        """Store what has a name that is free; returns those of which that is not known, and whatever came after the first."""
        await self._parents(wait_or_timeout)
        handle, who = self.session.handle, self.session.who
        planned = [submission(new, handle(new.job.id), who) for new in wait_or_timeout]
        verdicts = await self.session.committer.commit_until_conflict([entry for entry, _ in planned])
        return [
            new
            for new, verdict, (_, record) in zip(wait_or_timeout, verdicts, planned, strict=True)
            if not self._decided(new, verdict, record)
        ]

    async def _race(self, wait_or_timeout: list[New]) -> list[New]:
        """Read the names, and store or join what can be; returns those that were overtaken."""
        spots = await locating.locate(self.session, [new.task for new in wait_or_timeout])
        storing: list[New] = []
        joining: list[tuple[New, TaskLocation]] = []
        left: list[New] = []
        for new in wait_or_timeout:
            spot = spots.get(new.task)
            if spot is None:
                storing.append(new)
            elif spot.path:
                joining.append((new, spot))
            else:
                rest = self._join_kept(new, spot.name)
                if rest is not None:
                    storing.append(rest)
        left += await self._join(joining)
        await self._parents(storing)
        planned = []
        for new in storing:
            spot = spots.get(new.task)
            handle = self.session.handle(new.job.id)
            planned.append(submission(new, handle, self.session.who, None if spot is None else spot.name))
        verdicts = await self.session.committer.commit([entry for entry, _ in planned])
        for new, verdict, (_, record) in zip(storing, verdicts, planned, strict=True):
            if not self._decided(new, verdict, record):
                left.append(new)
        return left

    async def _parents(self, wait_or_timeout: Iterable[New]) -> None:
        """See to it that the parents are there that are made when they are needed."""
        for path in {path for new in wait_or_timeout for path in _parents(new.job)}:
            await self.session.ensure(path)

    def _decided(self, new: New, verdict: Verdict | NotAttempted, record: bytes) -> bool:
        """Take what became of a job's entry; False where it has to be tried again."""
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
                for path in _parents(job):
                    self.session.forget(path)
            elif verdict.at:
                self._fail(new, StoreCorruptError(f"{verdict.path} is there, and no name for it was"))
                return True
        return False

    def _fail(self, new: New, error: StoreError) -> None:
        for one in (new, *(new.behind or ())):
            self.failed[one.operation] = error

    # ---- joining ----

    def _join_kept(self, new: New, name: Name) -> New | None:
        """Let those join the last success of their name that want that; returns the first that has to be stored."""
        line: list[New] = [new, *(new.behind or ())]
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

    async def _join(self, wait_or_timeout: list[tuple[New, TaskLocation]]) -> list[New]:
        """Join jobs whose names are taken; returns those that were overtaken by the ends of these."""
        left: list[New] = []
        noting: list[New] = []
        for new, spot in wait_or_timeout:
            if spot.state.ended and await self._is_awaited(spot):
                left.append(new)
            elif new.waiters or (spot.record.get("foreground", False) and not new.foreground):
                noting.append(new)
            else:
                self._found(new, spot)
        if noting:
            left += await self._note(noting, {new.task: spot.name.id for new, spot in wait_or_timeout})
        return left

    async def _note(self, wait_or_timeout: list[New], ids: dict[str, int]) -> list[New]:
        """Join jobs that are not published, and note with them who waits; returns those that were overtaken."""
        seen = await locating.look(self.session, [ids[new.task] for new in wait_or_timeout])
        left: list[New] = []
        noting: list[tuple[New, TaskLocation, Entry]] = []
        for new in wait_or_timeout:
            one = seen.get(ids[new.task])
            if one is None or one.spot is None:
                left.append(new)
            elif (entry := joining(new, one.path, one.version, one.data)) is None:
                self._found(new, one.spot)
            else:
                noting.append((new, one.spot, entry))
        verdicts = await self.session.committer.commit([entry for _, _, entry in noting])
        for (new, spot, _), verdict in zip(noting, verdicts, strict=True):
            if verdict is None:
                self._found(new, spot)
            elif isinstance(verdict, Fenced):
                self._fail(new, self.session.over())
            else:
                left.append(new)
        return left

    def _found(self, new: New, spot: TaskLocation) -> None:
        found = ops.Found(spot.name.id, int(spot.state), spot.attempt)
        for one in (new, *(new.behind or ())):
            self.joined[one.job.id] = found

    async def _is_awaited(self, spot: TaskLocation) -> bool:
        """Wait a moment for the publication of what this node has completed; False where it may be joined."""
        if spot.record.get("worker") != self.session.who:
            return False
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + PUBLISHED_IN
        return now < self._until and await published(self.session, spot, self._until - now)


async def published(session: Session, spot: TaskLocation, seconds: float) -> bool:
    """Wait until a completed task has gone, or may have; False where it is still there after so many seconds."""
    changed = asyncio.Event()
    try:
        async with asyncio.timeout(seconds):
            if await session.tree.get(spot.path, changed.set) is not None:
                await changed.wait()
    except TimeoutError:
        return False
    except (StoreUnavailableError, SessionEndedError):
        await asyncio.sleep(RETRY_DELAY)
    return True


def _parents(job: Job) -> tuple[str, ...]:
    """Return the parents of a job's nodes that are made when they are needed."""
    parents = [paths.block(job.id)]
    if job.state == _SCHEDULED:
        parents.append(paths.minute(paths.DELAYED, job.due_us))
    if job.expires_us:
        parents.append(paths.minute(paths.EXPIRING, job.expires_us))
    return tuple(parents)


async def submit(session: Session, operations: Sequence[ops.Submit]) -> list[dict[int, ops.Found] | StoreError]:
    """Store new jobs; see ``Submit``."""
    wait_or_timeout: list[New] = []
    first: dict[str, New] = {}
    for place, operation in enumerate(operations):
        waiter = operation.waiter
        for job in operation.jobs:
            new = New(job, paths.task_name(job.function, job.unique, job.id), place, waiter)
            if job.unique != NO_UNIQUE and (other := first.setdefault(new.task, new)) is not new:
                if other.behind is None:
                    other.behind = []
                other.behind.append(new)
            else:
                wait_or_timeout.append(new)
    for new in first.values():
        if new.behind is not None:
            new.gather()
    submission = Submission(session)
    await submission.run(wait_or_timeout)
    joined, failed = submission.joined, submission.failed
    outcomes: list[dict[int, ops.Found] | StoreError] = []
    for place, operation in enumerate(operations):
        if place in failed:
            outcomes.append(failed[place])
        else:
            outcomes.append({job.id: joined[job.id] for job in operation.jobs if job.id in joined} if joined else {})
    return outcomes


HANDLERS: Handlers = {ops.Submit: submit}
