"""The new jobs of a slice's transaction: stored, or joined to a live job with the same unique.

If the job with that unique has ended and is not published yet, the new job gets its name. The result of the ended job is then
written without a change, so that the publisher has to read the name.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper import locating, paths, records
from mainspring.engines.zookeeper.session import Waiting
from mainspring.engines.zookeeper.submitting import NewJob, joining, submission
from mainspring.engines.zookeeper.transaction import OvertakenError
from mainspring.engines.zookeeper.tree import Create
from mainspring.jobs.model import State
from mainspring.jobs.owners import owner
from mainspring.jobs.store import Found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.locating import Name
    from mainspring.engines.zookeeper.session import Session
    from mainspring.engines.zookeeper.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Owner

_ON_DEMAND: Final = (f"{paths.RESULTS}/", f"{paths.DELAYED}/", f"{paths.EXPIRING}/")
"""Roots whose children are parents that are created on demand."""


class Parents:
    """Creates parents that many transactions need at once, each only once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = asyncio.Lock()

    async def ensure(self, found: set[str]) -> None:
        """Create missing parents."""
        async with self._lock:
            for path in sorted(found):
                await self._session.ensure(path)


class NewJobs:
    """The new jobs of one transaction."""

    def __init__(self, session: Session, transaction: Transaction) -> None:
        self._session = session
        self._transaction = transaction
        self._stored: dict[str, Job] = {}
        """The stored jobs, by their tasks."""
        self._ending: Job | None = None
        self.owners: dict[int, Owner] = {}
        """The owners of jobs that were stored or joined."""
        self._waiting: list[Waiting] = []

    def ends(self, job: Job) -> None:
        """Set the job that ends in this transaction."""
        self._ending = job

    async def submit(self, jobs: Sequence[Job]) -> dict[int, Found]:
        """Store jobs, or join; see ``Submit``."""
        tasks = [paths.task_name(job.function, job.unique, job.id) for job in jobs]
        named = [paths.name(task) for task, job in zip(tasks, jobs, strict=True) if job.unique]
        nodes = dict(zip(named, await self._transaction.get_many(named, check=False), strict=True))
        joined: dict[int, Found] = {}
        for task, job in zip(tasks, jobs, strict=True):
            rival = self._stored.get(task)
            node = nodes.get(paths.name(task))
            name = None if node is None else locating.name_of(node)
            if rival is not None:
                joined[job.id] = Found.of(rival)
            elif name is None or not name.id:
                await self._store(job, task, name)
            elif self._ending is not None and name.id == self._ending.id:
                await self._store(job, task, await self._freed(name, self._ending))
            elif (found := await self._join(job, task)) is not None:
                joined[job.id] = found
        return joined

    async def _store(self, job: Job, task: str, name: Name | None) -> None:
        entry, record = submission(NewJob(job, task, 0, 0), self._session.handle(job.id), self._session.who, name)
        created = (
            change.path for change in entry.changes if isinstance(change, Create) and change.path.startswith(_ON_DEMAND)
        )
        await self._session.memory(Parents).ensure({path.rpartition("/")[0] for path in created})
        for change in entry.changes:
            self._transaction.include(change)
        for count in entry.counts:
            self._transaction.count(*count)
        self._stored[task] = job
        self._note_owner(job)
        if job.state == State.PENDING:
            self._waiting.append(Waiting(task, job, record))

    async def _freed(self, name: Name, ended: Job) -> Name:
        """Return a name without its ended job, and touch that job's result: its publisher then reads the name."""
        await self._session.meet([ended.id])
        result = self._session.result(ended.id)
        if await self._transaction.get(result) is None:
            raise OvertakenError
        self._transaction.touch(result)
        data = locating.name_after(name, ended, name.handle)
        return name._replace(kept=None if data is None else records.decode(data)["kept"])

    async def _join(self, job: Job, task: str) -> Found | None:
        """Join the job that has the task, and check its location in the write.

        Return None if that job has ended; then the new one is stored.
        """
        location = (await locating.locate(self._session, [task])).get(task)
        if location is None or not location.path:
            raise OvertakenError
        self._transaction.expect(location.path, location.version)
        other = records.decode_job(location.record)
        if location.state.ended:
            await self._store(job, task, await self._freed(location.name, other))
            return None
        seen = (await locating.look(self._session, [other.id])).get(other.id)
        if seen is None or seen.location is None or seen.location.path != location.path:
            raise OvertakenError
        entry = joining(NewJob(job, task, 0, 0), seen.path, seen.version, seen.data)
        for change in () if entry is None else entry.changes:
            self._transaction.include(change)
        self._note_owner(other)
        return Found(other.id, int(location.state), location.attempt)

    def _note_owner(self, job: Job) -> None:
        whose = owner(job.options)
        if whose is not None:
            self.owners[job.id] = whose

    def report(self) -> None:
        """Report the stored pending tasks after the write."""
        self._session.waiting(self._waiting)
