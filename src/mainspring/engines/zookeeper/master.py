"""The background work of one term of a node: its claims, the election, and the master's loops while it is elected.

The master wakes delayed tasks and ends waiting ones that expire, without polling. It watches the minutes up to the first that
contains a task: a watch reports earlier entries.

It cleans up the journals of ended workers: their counts are moved to the total, and after a day they are deleted. Until then a
worker that was cut off can read in its journal whether its last batch was committed.

Publication: the outcome of a completed task is written to the job's result, and waiting nodes are notified.

One entry does it: it deletes the completed task, writes the result and frees the name. A completion has these effects once, since
its node can be deleted only once. The completions of this node come through memory, and are published without a read: a result
that is unchanged since its creation has version 0, so only its own node can be waiting for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.engines.zookeeper import changing, cluster, paths, records
from mainspring.engines.zookeeper.claiming import Claims
from mainspring.engines.zookeeper.committer import RETRY_DELAY, TOTAL, Conflict, Entry, journal_data, total
from mainspring.engines.zookeeper.master_dispatching import Dispatcher
from mainspring.engines.zookeeper.master_index import Buckets
from mainspring.engines.zookeeper.queries import Name, name_after, name_of
from mainspring.engines.zookeeper.recovering import abandoned
from mainspring.engines.zookeeper.sessions import (
    Completion,
    DeposedError,
    LocalMaster,
    Session,
    await_election,
    resign,
    until_deposed,
)
from mainspring.engines.zookeeper.tree import (
    Create,
    Delete,
    Refusal,
    SessionEndedError,
    Write,
    run_loops,
    run_steps,
    wait_or_timeout,
)
from mainspring.errors import StoreFencedError, StoreUnavailableError
from mainspring.events import Abandoned, Message, Settled
from mainspring.ids import TERM_SPAN
from mainspring.jobs import store as ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.engines.zookeeper.sessions import Leadership
    from mainspring.engines.zookeeper.tree import Change, Node


SINGLE_NODE_DELAY: Final = 5.0
"""Seconds between lists if there is only one node."""
IDS_PER_MESSAGE: Final = 500
"""Ids in one message."""


UNTOUCHED: Final = Name(0, 0, "", 0, None)
"""A name that is unchanged since its job created it."""


def entry(one: Completion, result: int | None, name: Name | None = UNTOUCHED) -> Entry:
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
        await run_steps(self.step, self._changed)

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
        endings = [one for one in completed if one.job.id // TERM_SPAN == session.term]
        verdicts = await self._leadership.commit([entry(one, 0) for one in endings])
        self.published += verdicts.count(None)
        others = [one.task for one in completed if one.job.id // TERM_SPAN != session.term]
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

    async def _prepare(self, tasks: Sequence[str]) -> tuple[list[Completion], dict[str, list[int]], list[Entry]]:
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
                await self._session.ensure([paths.block(one.job.id)])
            waiters[one.task] = record.get("waiters", [])
            mine = name if name is not None and name.id == one.job.id else None
            entries.append(entry(one, None if result is None else result.version, mine))
            prepared.append(one)
        return prepared, waiters, entries

    def _read(self, task: str, data: bytes) -> Completion | None:
        try:
            record = records.decode(data)
            return Completion(task, records.decode_job(record), record["handle"], data)
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


log = structlog.get_logger("mainspring.zookeeper")

RESEND_INTERVAL: Final = 2.0
"""Seconds until the list of tasks of lost workers is sent to this node again, while there are any."""
RESIGN_PAUSE: Final = 5.0
"""Seconds after a resignation until this node stands for election again: another node may not have the defect."""
TERM_ERRORS: Final = (DeposedError, SessionEndedError, StoreFencedError)
"""Errors that end a leadership or a term."""


class Master:
    """One term of a node."""

    def __init__(
        self,
        session: Session,
        send: Callable[[int, Message], None],
    ) -> None:
        """``send`` sends a message to the node that has a term."""
        self._session = session
        self._send = send
        self.claims = session.memory(Claims)
        self.leadership: Leadership | None = None
        self.dispatcher: Dispatcher | None = None
        self.publisher: Publisher | None = None
        """While this node is the master."""

    async def run(self) -> None:
        """Claim, run for election, and be the master while elected, until cancelled or the term has ended."""
        try:
            await run_loops({"zookeeper claims": self.claims.run(), "zookeeper election": self._lead()})
        except* TERM_ERRORS as errors:
            log.info("the term is over", worker=self._session.who, why=str(errors.exceptions[0]))

    async def _lead(self) -> None:
        """Be the master whenever this node is elected. After a defect in one of the master's loops it resigns for a while.

        Its term goes on: otherwise one unreadable node of the tree would cost each node in turn its jobs.
        """
        while True:
            leadership = await await_election(self._session, self._send)
            log.info("this node is the master", worker=self._session.who, version=leadership.version)
            try:
                await self._serve(leadership)
            except* TERM_ERRORS as errors:
                log.warning("this node is no longer the master", worker=self._session.who, why=_first(errors))
                if self._session.committer.fenced or errors.subgroup((SessionEndedError, StoreFencedError)):
                    raise StoreFencedError(f"the term of {self._session.who} is over") from errors
            except* Exception as errors:
                log.error(  # noqa: TRY400
                    "a defect in the store's code: this node resigns as the master",
                    worker=self._session.who,
                    exc_info=errors,
                )
                await resign(leadership)
                await asyncio.sleep(RESIGN_PAUSE)

    async def _serve(self, leadership: Leadership) -> None:
        """Run the master's loops, until one of them finds that this node is no longer the master."""
        session = self._session
        dispatcher = Dispatcher(leadership)
        publisher = Publisher(leadership, lambda: dispatcher.workers.is_single)
        self.leadership, self.dispatcher, self.publisher = leadership, dispatcher, publisher
        session.elect(LocalMaster(publisher.completions, dispatcher.waiting, dispatcher.claim))
        works = {
            "zookeeper leadership": until_deposed(leadership),
            "zookeeper publications": publisher.run(),
            "zookeeper losses": self._watch(leadership, dispatcher, publisher),
            "zookeeper assignments": self._dispatch(dispatcher),
            "zookeeper waking": Waker(session).run(),
        }
        try:
            await run_loops(works)
        finally:
            self.leadership = self.dispatcher = self.publisher = None
            session.elect(None)
            self.claims.rewrite()

    async def _watch(self, leadership: Leadership, dispatcher: Dispatcher, publisher: Publisher) -> None:
        """Report the tasks of lost workers to this node, which returns them; at the start and whenever a worker ends."""
        changed = dispatcher.workers.members_changed
        while True:
            changed.clear()
            publisher.wake()
            try:
                lost = await abandoned(leadership.tree)
                if lost:
                    leadership.send(leadership.session.term, Abandoned(lost))
                await clean(leadership)
            except StoreUnavailableError:
                await asyncio.sleep(RETRY_DELAY)
            else:
                await wait_or_timeout(changed, RESEND_INTERVAL if lost else None)

    async def _dispatch(self, dispatcher: Dispatcher) -> None:
        await self.claims.catch_up()
        await dispatcher.claim(self.claims.requests, self.claims.asked)
        await dispatcher.run()


def _first(errors: BaseExceptionGroup[BaseException]) -> str:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


STEP_PAUSE: Final = 0.05
"""The least seconds between steps: other nodes add tasks to the watched minutes."""
LIST_RATE: Final = 50_000.0
"""Names listed per second."""
MAX_PAUSE: Final = 30.0
"""The most seconds until the next step while a task has a time: clocks drift."""
BATCH: Final = 1000
"""Tasks woken at once."""


class Waker:
    """Wakes and expires tasks during one leadership."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._offset = 0.0
        """The ensemble's wall time minus the loop's time."""
        self._offset_read_at = float("-inf")
        self._listed = 0

    async def run(self) -> None:
        """Wake until cancelled. Raises SessionEndedError, StoreFencedError."""
        while True:
            try:
                wait = await self.step()
                await asyncio.sleep(max(STEP_PAUSE, self._listed / LIST_RATE))
            except StoreUnavailableError:
                continue
            await wait_or_timeout(self._changed, wait)

    async def step(self) -> float | None:
        """Wake the due tasks; return the seconds until the next step, None: when something has changed."""
        self._changed.clear()
        self._listed = 0
        times = [time_us for root in (paths.DELAYED, paths.EXPIRING) if (time_us := await self._first(root))]
        if not times:
            return None
        now_us = await self._now_us()
        wait = (min(times) - now_us) / 1_000_000
        if wait > 0:
            return min(wait, MAX_PAUSE)
        woken = await changing.wake(self._session, ops.Wake(now_us, BATCH))
        return 0.0 if woken.due or woken.expired else MAX_PAUSE

    async def _first(self, root: str) -> int | None:
        """Return the first due time of a root's tasks, and watch for earlier ones."""
        for minute in paths.minutes_of(await self._session.children(root, self._changed.set)):
            parent = f"{root}/{minute}"
            names = await self._session.children(parent, self._changed.set)
            self._listed += len(names)
            times = [one.time_us for one in paths.timed_of(parent, names) if one.path not in self._session.late]
            if times:
                return min(times)
        return None

    async def _now_us(self) -> int:
        """Return the ensemble's wall time."""
        if self._loop.time() - self._offset_read_at > MAX_PAUSE:
            self._offset = await cluster.now(self._session.tree, self._session.who) - self._loop.time()
            self._offset_read_at = self._loop.time()
        return round((self._offset + self._loop.time()) * 1_000_000)


JOURNAL_RETENTION_US: Final = 24 * 3600 * 1_000_000
"""Microseconds for which the journal of an ended worker is kept."""


def folded(journals: Sequence[tuple[str, Node]], into: Node | None) -> Entry | None:
    """Return the entry that moves the counts of journals into the total; None if they have none."""
    decoded = [(path, node, records.decode(node.data)) for path, node in journals]
    changes: list[Change] = []
    for path, node, record in decoded:
        if "." in path.rpartition("-")[2]:  # the overflow of a journal: its batch number is never read
            changes.append(Delete(path, node.version))
        elif record.get("counts"):
            changes.append(Write(path, journal_data(record["batch"], {}), node.version))
    if not changes:
        return None
    before = [] if into is None else [into.data]
    data = journal_data(0, total([*before, *(node.data for _, node in journals)]))
    changes.append(Create(TOTAL, data) if into is None else Write(TOTAL, data, into.version))
    return Entry(changes)


async def clean(leadership: Leadership) -> None:
    """Fold the journals of ended workers into the total, and delete those past their retention.

    Raises DeposedError, StoreUnavailableError, SessionEndedError.
    """
    tree = leadership.tree
    # In this order: a journal is created together with its worker.
    names = paths.journals_of(await tree.children(paths.JOURNALS))
    living = await tree.children(paths.WORKERS) or ()
    gone = sorted(name for name in names if name != "total" and _worker_of(name) not in living)
    for name in {_worker_of(name) for name in gone}:
        places = [paths.journal(one) for one in gone if _worker_of(one) == name]
        nodes = await tree.get_many([*places, TOTAL])
        journals = [(path, node) for path, node in zip(places, nodes[:-1], strict=True) if node is not None]
        entry = folded(journals, nodes[-1])
        if entry is not None:
            await leadership.commit([entry])
    await _delete_expired([paths.journal(name) for name in gone], leadership)


async def _delete_expired(places: list[str], leadership: Leadership) -> None:
    if not places:
        return
    now_us = round(await cluster.now(leadership.tree, leadership.session.who) * 1_000_000)
    entries = []
    for path, node in zip(places, await leadership.tree.get_many(places), strict=True):
        if (
            node is not None
            and node.mtime_us < now_us - JOURNAL_RETENTION_US
            and not records.decode(node.data).get("counts")
        ):
            entries.append(Entry([Delete(path, node.version)]))
    await leadership.commit(entries)


def _worker_of(journal: str) -> str:
    """Return the worker of a journal: ``n1-7`` also for ``n1-7.3``. Names of nodes may have dots themselves."""
    node, _, term = journal.rpartition("-")
    return f"{node}-{term.partition('.')[0]}"
