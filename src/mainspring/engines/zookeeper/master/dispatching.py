"""The master's loop of assignments: it reads what workers want and what waits, writes who gets what, and tells them.

What this node itself wants, leaves pending and is given goes through memory. Of what the others do, watches tell; a bucket that
has changed is listed soon where somebody waits for work, and otherwise after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.cancellation import wait_or_timeout
from mainspring.engines.zookeeper.claiming import Claims
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.master.assigning import AssignmentWriter, assign
from mainspring.engines.zookeeper.master.buckets import REST, Buckets
from mainspring.engines.zookeeper.master.index import Index, task_of_job
from mainspring.engines.zookeeper.master.leadership import DeposedError
from mainspring.engines.zookeeper.master.workers import WakeupHints, Workers
from mainspring.engines.zookeeper.records import encode_notice
from mainspring.engines.zookeeper.tree import Write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mainspring.engines.zookeeper.master.leadership import Leadership
    from mainspring.engines.zookeeper.master.workers import Worker
    from mainspring.engines.zookeeper.session import Waiting
    from mainspring.jobs.store import ClaimRequest

READ: Final = 1000
"""Records that are read at once."""
ENOUGH: Final = 3000
"""Tasks of a function that are known, where there are very many."""
AHEAD: Final = 200
"""The same of functions that nobody waits for at this moment, so that the oldest and most urgent are known when somebody does."""
RECENT: Final = 10.0
"""Seconds for which a function is read ahead after somebody has wanted it."""
HUNGRY: Final = 100_000.0
"""Names that are listed in a second while somebody waits for work."""
IDLE_RATE: Final = 20_000.0
"""The same while nobody does."""
LATER: Final = 0.2
"""Seconds more between lists while nobody does."""
ALONE: Final = 5.0
"""Seconds between lists where there is one node: it knows what waits, unless another one left something behind."""
LOOK: Final = 0.1
"""Seconds for which tasks are looked for before those that were found are assigned."""
START: Final = 0.7
"""The same at the start, when all buckets are listed: a small tree is known by then."""
ANSWER: Final = 1.0
"""Seconds after which a claim is answered although not all has been looked at."""
REFRESH: Final = 1.0
"""Seconds after which the rooms of workers whose queues are full are read again."""

log = structlog.get_logger("mainspring.zookeeper")


class Dispatcher:
    """Assigns while one reign lasts."""

    def __init__(self, leadership: Leadership, *, index: Index | None = None) -> None:
        self._reign = leadership
        self._session = leadership.session
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._news.set()
        self.index = index or Index()
        self.workers = Workers(leadership.session, self._news.set)
        self.buckets = Buckets(leadership.session, paths.PENDING, self._news.set)
        self._giver = AssignmentWriter(leadership, self.workers, self.index)
        self._nudges = WakeupHints(leadership.tell)
        self._own = self.workers.own
        self._asked: dict[str, tuple[int, float, int]] = {}
        """The claims that wait for an answer: their number, since when, and how much had changed by then."""
        self._refreshed = 0.0
        self._recent: dict[bytes, float] = {}
        """When somebody has wanted each function last."""
        self._others = True
        """Whether others may have left something pending of which this node does not know."""
        self._looking = False
        self._claims = self._session.memory(Claims)
        self._began = self._loop.time()

    # ---- from this node, in memory ----

    def waiting(self, tasks: Sequence[Waiting]) -> None:
        """Take in what this node has left pending."""
        for name, job, data in tasks:
            self.index.put(task_of_job(name, job, data))
        if tasks:
            self._news.set()

    async def claim(self, wants: Mapping[bytes, Sequence[ClaimRequest]], asked: int) -> bool:
        """Take in what this node wants, and assign what is known before returning.

        Says whether that is all there is. Otherwise what others have left pending, or is past the index, is looked for, and
        ``Claims.answered`` is called with ``asked``. Raises StoreFencedError.
        """
        own = self._own
        for function, some in wants.items():
            own.want(function, some)
        self.workers.own_room()
        self._news.set()
        unread = bool(self.index.unread(self._short(), 1))
        if not self.buckets.fresh and not unread:
            with contextlib.suppress(DeposedError):  # the loop will learn it as well
                await self._assign()
        if unread or self._looking or (self._others and self.buckets.dirty):
            own.asked = max(own.asked, asked)
            return False
        return True

    # ---- the loop ----

    async def run(self) -> None:
        """Assign until cancelled. Raises DeposedError, StoreFencedError."""
        while True:
            wait = await self.step()
            await wait_or_timeout(self._news, wait)

    async def step(self) -> float | None:
        """Do what is to be done now; returns the seconds after which there is more, None: when something has changed."""
        self._news.clear()
        now = self._loop.time()
        await self._look_at_workers(now)
        self._looking = True
        # In the order of priority and age as far as can be seen in a moment; at the start that is all of a small tree.
        until = self._began + START if self.buckets.fresh else now + LOOK
        while await self._look_at_tasks(now) and self._loop.time() < until:
            pass
        self._looking = False
        await self._assign()
        await self._answer(now)
        await self._nudge(now)
        return self._next(now)

    async def _look_at_workers(self, now: float) -> None:
        await self.workers.look()
        self._others = self._others or not self.workers.alone
        if now >= self._refreshed + REFRESH:
            self._refreshed = now
            await self.workers.look_at_rooms()

    # ---- what waits ----

    async def _look_at_tasks(self, now: float) -> bool:
        """List and read a part of what has changed; returns whether there is more of it, to be looked at without a rest."""
        index, wanted = self.index, sorted(self._wanted())
        if index.has_room:
            for bucket in index.more:
                self.buckets.touch(bucket)
        starved = self._hungry()
        if index.is_full and starved:
            index.forget_unwanted(wanted)
        if self.buckets.dirty and (self.buckets.fresh or now >= self._due(starved=starved)):
            since = index.moment
            for bucket, names in (await self.buckets.names(HUNGRY if starved else IDLE_RATE)).items():
                index.listed(bucket, names, since)
            if not self.buckets.dirty and self.workers.alone:
                self._others = False
        self._recent.update(dict.fromkeys(wanted, now))
        names = index.unread(self._short(), READ) or index.unread(self._ahead(now), AHEAD)
        if names:
            await self._read(names)
        more = bool(self.buckets.fresh or index.unread(self._short(), 1))
        if more:
            self._news.set()
        return more

    async def _read(self, names: Sequence[str]) -> None:
        nodes = await self._session.get_many([*map(paths.pending, names)])
        for name, node in zip(names, nodes, strict=True):
            if not self.index.read(name, node):
                log.warning("a pending task cannot be read, and is left alone", path=paths.pending(name))

    def _ahead(self, now: float) -> list[bytes]:
        """Return the functions that somebody has wanted a short time ago."""
        for function, at in [*self._recent.items()]:
            if at < now - RECENT:
                del self._recent[function]
        return sorted(self._recent)

    def _short(self) -> list[bytes]:
        """Return the wanted functions of which more is to be read before anything of them is assigned.

        Of few tasks all are read, so that they are assigned in their order; of very many so many that nobody waits for a read.
        """
        index = self.index
        return sorted(
            name for name in self._wanted() if index.listed_only(name) <= READ or index.waiting(name) < ENOUGH
        )

    def _wanted(self) -> set[bytes]:
        return {want.function for want in self.workers.wants()}

    def _hungry(self) -> bool:
        """Return whether somebody would take a task and there was none, after what is known was assigned."""
        return any(want.slots is None or want.slots for want in self.workers.wants())

    def _due(self, *, starved: bool) -> float:
        """Return the loop's time at which dirty buckets are listed."""
        rested = self.buckets.rested
        if not self._others:
            return rested + ALONE
        return rested if starved or self._asked else rested + LATER

    def _next(self, now: float) -> float | None:
        times = self._nudges.times()
        if self.buckets.dirty:
            times.append(now if self.buckets.fresh else self._due(starved=self._hungry()))
        if self.index.unread(self._ahead(now), 1):
            times.append(now + REST)
        times += [since + ANSWER for _, since, _ in self._asked.values()]
        if any(worker.room <= 0 and worker.wants for worker in self.workers.known.values()):
            times.append(self._refreshed + REFRESH)
        return max(min(times) - now, 0.0) if times else None

    # ---- assignments ----

    async def _assign(self) -> None:
        """Assign what is known to those who want it, and wait until it is written."""
        while given := assign(self.index, self.workers.wants()):
            for task in await self._giver.give(given):
                # Somebody was faster, or has changed it: what is there now is listed again.
                self.buckets.touch(paths.bucket(task.name))

    # ---- answers ----

    async def _answer(self, now: float) -> None:
        """Answer the claims for which all was looked at, or that have waited for long enough.

        What the last master has answered is answered again: whoever was assigned something by it, and not told, looks now.
        """
        answered = []
        for gone in self._asked.keys() - self.workers.known.keys():
            del self._asked[gone]
        unread = bool(self.index.unread(self._short(), 1))
        for who, worker in self.workers.known.items():
            asked = self._asked.get(who)
            if worker.asked <= worker.answered:
                self._asked.pop(who, None)
            elif asked is None or asked[0] != worker.asked:
                asked = self._asked[who] = worker.asked, now, self.buckets.changes
            if asked is not None and who in self._asked:
                _, since, changes = asked
                if now >= max(since + ANSWER, self._began + START) or (self.buckets.listed(changes) and not unread):
                    worker.answered = worker.asked
                    answered.append(worker)
        await self._tell(answered)

    async def _tell(self, workers: Sequence[Worker]) -> None:
        """Write notices without tasks."""
        entries = []
        for worker in workers:
            notice = worker.tell(self._reign.version, [])
            if worker is not self._own:
                entries.append(Entry([Write(paths.queue(worker.who), encode_notice(notice))]))
            if worker.answered == worker.asked:
                self._asked.pop(worker.who, None)
                if worker is self._own:
                    self._claims.answered(worker.answered)
        await self._reign.commit(entries)

    async def _nudge(self, now: float) -> None:
        """Tell nodes of what waits and was not asked for."""
        waiting = self.index.functions() - self._wanted()
        self._nudges.tell(waiting, self.workers.known.values(), now)
