"""Publication: the outcome of a completed task goes to where its job is looked up, and whoever waits for it is told.

One entry does it: the completed task goes, the result is written, and the name is free. A completion happens on that only once,
for its node can be deleted only once. What this node has completed comes through memory, and is written without reading: a result
that nobody has touched since it was created has version 0, so nobody waits for it but its own node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.cancellation import wait_or_timeout
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.locating import Name, name_after, name_of
from mainspring.engines.zookeeper.master.buckets import Buckets
from mainspring.engines.zookeeper.tree import Create, Delete, Write
from mainspring.events.relay import Settled
from mainspring.ids import TERM_SPAN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.engines.zookeeper.master.leadership import Leadership
    from mainspring.engines.zookeeper.session import Completion
    from mainspring.engines.zookeeper.tree import Change
    from mainspring.jobs.model import Job

MOST: Final = 1000
"""Tasks that are published in one go."""
RATE: Final = 50_000.0
"""Names that are listed in a second."""
ALONE: Final = 5.0
"""Seconds between lists where there is one node."""
TOLD: Final = 500
"""Ids in one message."""

log = structlog.get_logger("mainspring.zookeeper")


class Ending(NamedTuple):
    """A completed task, as it is published."""

    task: str
    job: Job
    handle: str
    data: bytes
    """The record in ``completed_tasks``, which becomes the result."""

    @property
    def result(self) -> str:
        """Where its result is."""
        return f"{paths.block(self.job.id)}/{self.handle}"


UNTOUCHED: Final = Name(0, 0, "", 0, None)
"""What a name says that nobody has written since a job created it."""


def entry(one: Ending, result: int | None, name: Name | None = UNTOUCHED) -> Entry:
    """Return what publishes a task.

    ``result`` is the version that its result has; None: there is none. ``name`` is what its name says; None: nothing of this job.
    Refused in its first change where it was published already, and in another one where somebody has begun to wait meanwhile.
    """
    changes: list[Change] = [
        Delete(paths.completed(one.task)),
        Create(one.result, one.data) if result is None else Write(one.result, one.data, result),
    ]
    if name is not None:
        after = name_after(name, one.job, one.handle)
        path = paths.name(one.task)
        changes.append(Delete(path, name.version) if after is None else Write(path, after, name.version))
    return Entry(changes)


class Publisher:
    """Publishes while one reign lasts."""

    def __init__(self, leadership: Leadership, alone: Callable[[], bool]) -> None:
        """``alone`` says whether there is no other node: then nothing is completed of which this one does not know."""
        self._reign = leadership
        self._session = leadership.session
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._news.set()
        self._own: deque[Completion] = deque()
        self._alone = alone
        self.buckets = Buckets(leadership.session, paths.COMPLETED, self._news.set)
        self.published = 0

    def completions(self, completed: Sequence[Completion]) -> None:
        """Take in what this node has completed."""
        self._own.extend(completed)
        self._news.set()

    def look(self) -> None:
        """Look again: other nodes have come, or gone."""
        self._news.set()

    async def run(self) -> None:
        """Publish until cancelled. Raises DeposedError, StoreFencedError."""
        while True:
            wait = await self.step()
            await wait_or_timeout(self._news, wait)

    async def step(self) -> float | None:
        """Publish what is known, and look for more; returns the seconds until the next look, None: when something changes."""
        self._news.clear()
        while self._own:
            await self._publish_own([self._own.popleft() for _ in range(min(len(self._own), MOST))])
        now = self._loop.time()
        if self.buckets.dirty and now >= self._due():
            listed = await self.buckets.names(RATE)
            tasks = [task for names in listed.values() for task in names]
            for start in range(0, len(tasks), MOST):
                await self._publish(tasks[start : start + MOST])
        if self._own:
            return 0.0
        return max(self._due() - now, 0.0) if self.buckets.dirty else None

    def _due(self) -> float:
        if self.buckets.fresh:
            return 0.0
        return self.buckets.rested + (ALONE if self._alone() else 0.0)

    # ---- what this node has completed ----

    async def _publish_own(self, completed: Sequence[Completion]) -> None:
        """Publish without reading what nobody else has touched: the usual case; the others after a look."""
        session = self._session
        endings = [
            Ending(task, job, session.handle(job.id), data)
            for task, job, data in completed
            if job.id // TERM_SPAN == session.term
        ]
        verdicts = await self._reign.commit([entry(one, 0) for one in endings])
        self.published += verdicts.count(None)
        others = [task for task, job, _ in completed if job.id // TERM_SPAN != session.term]
        others += [one.task for one, verdict in zip(endings, verdicts, strict=True) if verdict is not None]
        await self._publish(others)

    # ---- what others have completed ----

    async def _publish(self, tasks: Sequence[str]) -> None:
        """Read completed tasks and who waits for them, publish them and tell; again where somebody was faster."""
        while tasks:
            endings, waiters, entries = await self._look(tasks)
            verdicts = await self._reign.commit(entries)
            published = [one for one, verdict in zip(endings, verdicts, strict=True) if verdict is None]
            self.published += len(published)
            self._tell((one.job.id, waiters[one.task]) for one in published)
            tasks = [one.task for one, verdict in zip(endings, verdicts, strict=True) if verdict is not None]

    async def _look(self, tasks: Sequence[str]) -> tuple[list[Ending], dict[str, list[int]], list[Entry]]:
        nodes = await self._session.get_many([*map(paths.completed, tasks)])
        found = [(task, node.data) for task, node in zip(tasks, nodes, strict=True) if node is not None]
        endings = [one for task, data in found if (one := self._read(task, data)) is not None]
        results = await self._session.get_many([one.result for one in endings])
        names = await self._session.get_many([paths.name(one.task) for one in endings])
        # Whoever puts a job back writes its result, perhaps after its end was read here and before its result was.
        written = [one for one, result in zip(endings, results, strict=True) if result is not None and result.version]
        again = await self._session.get_many([paths.completed(one.task) for one in written])
        undone = {one.task for one, node in zip(written, again, strict=True) if node is None or node.data != one.data}
        waiters: dict[str, list[int]] = {}
        entries = []
        still = []
        for one, result, node in zip(endings, results, names, strict=True):
            said = {} if result is None else records.decode(result.data)
            if records.is_published(said) or one.task in undone:
                continue  # between the first read and the second; where it has ended once more, its bucket has changed
            if result is None:
                log.error("a completed task has no result to be written", task=one.task, path=one.result)
                await self._session.ensure(paths.block(one.job.id))
            name = None if node is None else name_of(node)
            waiters[one.task] = said.get("waiters", [])
            mine = name if name is not None and name.id == one.job.id else None
            entries.append(entry(one, None if result is None else result.version, mine))
            still.append(one)
        return still, waiters, entries

    def _read(self, task: str, data: bytes) -> Ending | None:
        try:
            record = records.decode(data)
            return Ending(task, records.decode_job(record), record["handle"], data)
        except (ValueError, KeyError, TypeError):
            log.warning("a completed task cannot be read, and is left alone", path=paths.completed(task))
            return None

    def _tell(self, published: Iterable[tuple[int, list[int]]]) -> None:
        """Tell the nodes whose clients wait; this one too, for what it has not completed itself."""
        by_term: dict[int, list[int]] = {}
        for job_id, terms in published:
            for term in terms:
                by_term.setdefault(term, []).append(job_id)
        for term, ids in by_term.items():
            for start in range(0, len(ids), TOLD):
                self._reign.tell(term, Settled(ids[start : start + TOLD]))
