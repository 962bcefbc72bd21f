"""The background work of one term of a node: its claims, the election, and the master's loops while it is elected.

The master wakes delayed tasks and ends waiting ones that expire, without polling. It watches the minutes up to the first that
contains a task: a watch reports earlier entries.

It cleans up the journals of ended workers: their counts are moved to the total, and after a day they are deleted. Until then a
worker that was cut off can read in its journal whether its last batch was committed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.engines.zookeeper import changing, cluster, paths, records
from mainspring.engines.zookeeper.cancellation import run_loops, wait_or_timeout
from mainspring.engines.zookeeper.claiming import Claims
from mainspring.engines.zookeeper.committer import RETRY_DELAY, TOTAL, Entry, journal_data, total
from mainspring.engines.zookeeper.master.dispatching import Dispatcher
from mainspring.engines.zookeeper.master.leadership import DeposedError, await_election, resign, until_deposed
from mainspring.engines.zookeeper.master.publishing import Publisher
from mainspring.engines.zookeeper.recovering import abandoned
from mainspring.engines.zookeeper.sessions import LocalMaster
from mainspring.engines.zookeeper.tree import Create, Delete, SessionEndedError, Write
from mainspring.errors import StoreFencedError, StoreUnavailableError
from mainspring.events import Abandoned
from mainspring.jobs import store as ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.zookeeper.master.leadership import Leadership
    from mainspring.engines.zookeeper.sessions import Session
    from mainspring.engines.zookeeper.tree import Change, Node
    from mainspring.events import Message

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
        (woken,) = await changing.wake(self._session, [ops.Wake(now_us, BATCH)])
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
