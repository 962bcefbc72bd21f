"""Publication: the outcome of a completed task is written to the job's result, and waiting nodes are notified.

One entry does it: it deletes the completed task, writes the result and frees the name. A completion has these effects once, since
its node can be deleted only once. The completions of this node come through memory, and are published without a read: a result
that is unchanged since its creation has version 0, so only its own node can be waiting for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.cancellation import wait_or_timeout
from mainspring.engines.zookeeper.committer import Conflict, Entry
from mainspring.engines.zookeeper.master.index import Buckets
from mainspring.engines.zookeeper.queries import Name, name_after, name_of
from mainspring.engines.zookeeper.tree import Create, Delete, Refusal, Write
from mainspring.events import Settled
from mainspring.ids import TERM_SPAN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.engines.zookeeper.master.leadership import Leadership
    from mainspring.engines.zookeeper.sessions import Completion
    from mainspring.engines.zookeeper.tree import Change
    from mainspring.jobs.model import Job

BATCH: Final = 1000
"""Tasks of one round of publication."""
LIST_RATE: Final = 50_000.0
"""Names listed per second."""
SINGLE_NODE_DELAY: Final = 5.0
"""Seconds between lists if there is only one node."""
IDS_PER_MESSAGE: Final = 500
"""Ids in one message."""

log = structlog.get_logger("mainspring.zookeeper")


class CompletedTask(NamedTuple):
    """A completed task to publish."""

    task: str
    job: Job
    handle: str
    data: bytes
    """The record in ``completed_tasks``, which becomes the result."""

    @property
    def result(self) -> str:
        """The path of its result."""
        return f"{paths.block(self.job.id)}/{self.handle}"


UNTOUCHED: Final = Name(0, 0, "", 0, None)
"""A name that is unchanged since its job created it."""


def entry(one: CompletedTask, result: int | None, name: Name | None = UNTOUCHED) -> Entry:
    """Return the entry that publishes a task.

    ``result`` is the version of its result; None: there is none. ``name`` is its name; None: the name is not of this job.
    The first change is refused if the task is published already, another one if a client has started to wait in the meantime.
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
    """Publishes completed tasks during one leadership."""

    def __init__(self, leadership: Leadership, is_single: Callable[[], bool]) -> None:
        """``is_single`` returns whether there is no other node: then all completions come through memory."""
        self._leadership = leadership
        self._session = leadership.session
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._changed.set()
        self._own: deque[Completion] = deque()
        self._is_single = is_single
        self.buckets = Buckets(leadership.session, paths.COMPLETED, self._changed.set)
        self.published = 0

    def completions(self, completed: Sequence[Completion]) -> None:
        """Add this node's completions."""
        self._own.extend(completed)
        self._changed.set()

    def wake(self) -> None:
        """Wake the loop: nodes have started or ended."""
        self._changed.set()

    async def run(self) -> None:
        """Publish until cancelled. Raises DeposedError, StoreFencedError."""
        while True:
            wait = await self.step()
            await wait_or_timeout(self._changed, wait)

    async def step(self) -> float | None:
        """Publish this node's completions and the listed ones; return the seconds until the next step, None: when woken."""
        self._changed.clear()
        while self._own:
            await self._publish_own([self._own.popleft() for _ in range(min(len(self._own), BATCH))])
        now = self._loop.time()
        if self.buckets.dirty and now >= self._due():
            listed = await self.buckets.list_names(LIST_RATE)
            tasks = [task for names in listed.values() for task in names]
            for start in range(0, len(tasks), BATCH):
                await self._publish(tasks[start : start + BATCH])
        if self._own:
            return 0.0
        return max(self._due() - self._loop.time(), 0.0) if self.buckets.dirty else None

    def _due(self) -> float:
        if self.buckets.fresh:
            return 0.0
        return self.buckets.next_list_at + (SINGLE_NODE_DELAY if self._is_single() else 0.0)

    # ---- completions of this node ----

    async def _publish_own(self, completed: Sequence[Completion]) -> None:
        """Publish this node's own jobs blind, relying on version checks; those that are refused, and others, after a read."""
        session = self._session
        endings = [
            CompletedTask(task, job, session.handle(job.id), data)
            for task, job, data in completed
            if job.id // TERM_SPAN == session.term
        ]
        verdicts = await self._leadership.commit([entry(one, 0) for one in endings])
        self.published += verdicts.count(None)
        others = [task for task, job, _ in completed if job.id // TERM_SPAN != session.term]
        others += [one.task for one, verdict in zip(endings, verdicts, strict=True) if verdict is not None]
        await self._publish(others)

    # ---- completions of other nodes ----

    async def _publish(self, tasks: Sequence[str]) -> None:
        """Read completed tasks and their waiting nodes, publish, and notify the nodes; repeat for tasks that have changed."""
        while tasks:
            endings, waiters, entries = await self._prepare(tasks)
            verdicts = await self._leadership.commit(entries)
            published = [one for one, verdict in zip(endings, verdicts, strict=True) if verdict is None]
            self.published += len(published)
            self._notify((one.job.id, waiters[one.task]) for one in published)
            changed = [(one, verdict) for one, verdict in zip(endings, verdicts, strict=True) if verdict is not None]
            for one, verdict in changed:
                if isinstance(verdict, Conflict) and verdict.why is Refusal.NO_NODE and verdict.path == one.result:
                    self._session.forget(paths.block(one.job.id))  # it was deleted, empty, after its end of retention
            tasks = [one.task for one, _ in changed]

    async def _prepare(self, tasks: Sequence[str]) -> tuple[list[CompletedTask], dict[str, list[int]], list[Entry]]:
        nodes = await self._session.get_many([*map(paths.completed, tasks)])
        found = [(task, node.data) for task, node in zip(tasks, nodes, strict=True) if node is not None]
        endings = [one for task, data in found if (one := self._read(task, data)) is not None]
        results = await self._session.get_many([one.result for one in endings])
        names = await self._session.get_many([paths.name(one.task) for one in endings])
        # A node that returns a job to pending writes its result; perhaps between the read of its end and that of its result.
        written = [one for one, result in zip(endings, results, strict=True) if result is not None and result.version]
        reread = await self._session.get_many([paths.completed(one.task) for one in written])
        returned = {
            one.task for one, node in zip(written, reread, strict=True) if node is None or node.data != one.data
        }
        waiters: dict[str, list[int]] = {}
        entries = []
        prepared = []
        for one, result, node in zip(endings, results, names, strict=True):
            try:
                record = {} if result is None else records.decode(result.data)
                name = None if node is None else name_of(node)
                is_changed = records.is_published(record) or one.task in returned
            except (ValueError, TypeError, AttributeError):
                log.warning(
                    "the name or the result of a completed task cannot be decoded: it is ignored", task=one.task
                )
                continue
            if is_changed:
                continue  # between the reads; if it has completed a second time, its bucket is dirty
            if result is None:
                log.error("a completed task has no result node", task=one.task, path=one.result)
                await self._session.ensure(paths.block(one.job.id))
            waiters[one.task] = record.get("waiters", [])
            mine = name if name is not None and name.id == one.job.id else None
            entries.append(entry(one, None if result is None else result.version, mine))
            prepared.append(one)
        return prepared, waiters, entries

    def _read(self, task: str, data: bytes) -> CompletedTask | None:
        try:
            record = records.decode(data)
            return CompletedTask(task, records.decode_job(record), record["handle"], data)
        except (ValueError, KeyError, TypeError):
            log.warning("a completed task cannot be decoded and is ignored", path=paths.completed(task))
            return None

    def _notify(self, published: Iterable[tuple[int, list[int]]]) -> None:
        """Notify the nodes whose clients wait; this one too, for jobs that other nodes have completed."""
        by_term: dict[int, list[int]] = {}
        for job_id, terms in published:
            for term in terms:
                by_term.setdefault(term, []).append(job_id)
        for term, ids in by_term.items():
            for start in range(0, len(ids), IDS_PER_MESSAGE):
                self._leadership.send(term, Settled(ids[start : start + IDS_PER_MESSAGE]))
