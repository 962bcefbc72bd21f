"""The master's assignment loop: it reads the workers' requests and the pending tasks, writes assignments and notices.

This node's own requests, pending tasks and assignments go through memory. Watches report changes of other nodes; a bucket that
has changed is listed at once if a worker is starved, and otherwise after a delay.
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
from mainspring.engines.zookeeper.master.buckets import LIST_PAUSE, Buckets
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

READ_BATCH: Final = 1000
"""Records read at once."""
READ_TARGET: Final = 3000
"""Tasks of a function that are read before an assignment, if there are very many."""
READ_AHEAD: Final = 200
"""The same for functions without an open request at the moment, so that the oldest and most urgent tasks are ready for one."""
RECENT_SECONDS: Final = 10.0
"""Seconds for which a function is read ahead after a node has requested it."""
STARVED_RATE: Final = 100_000.0
"""Names listed per second while a worker is starved."""
IDLE_RATE: Final = 20_000.0
"""The same while none is."""
IDLE_DELAY: Final = 0.2
"""Additional seconds between lists while no worker is starved."""
SINGLE_NODE_DELAY: Final = 5.0
"""Seconds between lists if there is one node: it has all pending tasks in memory, but for those that another node left."""
SCAN_TIME: Final = 0.1
"""Seconds for which tasks are scanned before the found ones are assigned."""
INITIAL_SCAN_TIME: Final = 0.7
"""The same at the start, when all buckets are listed: enough to read a small tree."""
ANSWER_TIMEOUT: Final = 1.0
"""Seconds after which a claim is answered although not all tasks have been scanned."""
CAPACITY_INTERVAL: Final = 1.0
"""Seconds after which the sizes of full queues are read again."""

log = structlog.get_logger("mainspring.zookeeper")


class Dispatcher:
    """Assigns tasks during one leadership."""

    def __init__(self, leadership: Leadership, *, index: Index | None = None) -> None:
        self._leadership = leadership
        self._session = leadership.session
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._changed.set()
        self.index = index or Index()
        self.workers = Workers(leadership.session, self._changed.set)
        self.buckets = Buckets(leadership.session, paths.PENDING, self._changed.set)
        self._writer = AssignmentWriter(leadership, self.workers, self.index)
        self._hints = WakeupHints(leadership.send)
        self._own = self.workers.own
        self._open_claims: dict[str, tuple[int, float, int]] = {}
        """The unanswered claim of each worker: its number, its time, and the number of changes by then."""
        self._refreshed = 0.0
        self._recent: dict[bytes, float] = {}
        """The time of the last request for each function."""
        self._has_unlisted = True
        """Whether other nodes may have left pending tasks that are not in the index."""
        self._is_scanning = False
        self._claims = self._session.memory(Claims)
        self._started = self._loop.time()

    # ---- from this node, in memory ----

    def waiting(self, tasks: Sequence[Waiting]) -> None:
        """Add the tasks that this node has left pending."""
        for name, job, data in tasks:
            self.index.put(task_of_job(name, job, data))
        if tasks:
            self._changed.set()

    async def claim(self, requests: Mapping[bytes, Sequence[ClaimRequest]], asked: int) -> bool:
        """Set this node's requests, and assign the tasks of the index before returning. Raises StoreFencedError.

        Return whether these are all tasks. Otherwise the loop scans for tasks of other nodes, and those that did not fit into
        the index, and calls ``Claims.answered`` with ``asked``.
        """
        own = self._own
        for function, some in requests.items():
            own.set_requests(function, some)
        self.workers.update_own_capacity()
        self._changed.set()
        unread = bool(self.index.unread(self._to_read_first(), 1))
        if not self.buckets.fresh and not unread:
            with contextlib.suppress(DeposedError):  # the loop will get it as well
                await self._assign()
        if unread or self._is_scanning or (self._has_unlisted and self.buckets.dirty):
            own.asked = max(own.asked, asked)
            return False
        return True

    # ---- the loop ----

    async def run(self) -> None:
        """Assign until cancelled. Raises DeposedError, StoreFencedError."""
        while True:
            wait = await self.step()
            await wait_or_timeout(self._changed, wait)

    async def step(self) -> float | None:
        """Scan, assign, answer and send hints; return the seconds until the next step, None: when something has changed."""
        self._changed.clear()
        now = self._loop.time()
        await self._refresh_workers(now)
        self._is_scanning = True
        # The scan is short, so priority and age order only what it finds; at the start that is all of a small tree.
        until = self._started + INITIAL_SCAN_TIME if self.buckets.fresh else now + SCAN_TIME
        while await self._scan_tasks(now) and self._loop.time() < until:
            pass
        self._is_scanning = False
        await self._assign()
        await self._answer(now)
        await self._send_hints(now)
        return self._next(self._loop.time())

    async def _refresh_workers(self, now: float) -> None:
        await self.workers.refresh()
        self._has_unlisted = self._has_unlisted or not self.workers.is_single
        if now >= self._refreshed + CAPACITY_INTERVAL:
            self._refreshed = now
            await self.workers.refresh_capacities()

    # ---- pending tasks ----

    async def _scan_tasks(self, now: float) -> bool:
        """List dirty buckets and read one batch of tasks; return whether there is more to read at once."""
        index, requested = self.index, sorted(self._requested())
        if index.has_room:
            for bucket in index.more:
                self.buckets.touch(bucket)
        starved = self._is_starved()
        if index.is_full and starved:
            index.evict_unrequested(requested)
        if self.buckets.dirty and (self.buckets.fresh or now >= self._due(starved=starved)):
            since = index.revision
            for bucket, names in (await self.buckets.list_names(STARVED_RATE if starved else IDLE_RATE)).items():
                index.update_bucket(bucket, names, since)
            if not self.buckets.dirty and self.workers.is_single:
                self._has_unlisted = False
        self._recent.update(dict.fromkeys(requested, now))
        names = index.unread(self._to_read_first(), READ_BATCH) or index.unread(self._ahead(now), READ_AHEAD)
        if names:
            await self._read(names)
        more = bool(self.buckets.fresh or index.unread(self._to_read_first(), 1))
        if more:
            self._changed.set()
        return more

    async def _read(self, names: Sequence[str]) -> None:
        nodes = await self._session.get_many([*map(paths.pending, names)])
        for name, node in zip(names, nodes, strict=True):
            if not self.index.read(name, node):
                log.warning("a pending task cannot be decoded and is ignored", path=paths.pending(name))

    def _ahead(self, now: float) -> list[bytes]:
        """Return the functions that were requested in the last `RECENT_SECONDS`."""
        for function, at in [*self._recent.items()]:
            if at < now - RECENT_SECONDS:
                del self._recent[function]
        return sorted(self._recent)

    def _to_read_first(self) -> list[bytes]:
        """Return the requested functions that need more reads before their tasks are assigned.

        Few tasks are all read, so that they are assigned in order. Of very many, only enough are read that claims do not wait.
        """
        index = self.index
        return sorted(
            name
            for name in self._requested()
            if index.unread_count(name) <= READ_BATCH or index.waiting(name) < READ_TARGET
        )

    def _requested(self) -> set[bytes]:
        return {request.function for request in self.workers.requests()}

    def _is_starved(self) -> bool:
        """Return whether a request is still open after all tasks of the index were assigned."""
        return any(request.slots is None or request.slots for request in self.workers.requests())

    def _due(self, *, starved: bool) -> float:
        """Return the loop's time of the next list of dirty buckets."""
        next_list_at = self.buckets.next_list_at
        if not self._has_unlisted:
            return next_list_at + SINGLE_NODE_DELAY
        return next_list_at if starved or self._open_claims else next_list_at + IDLE_DELAY

    def _next(self, now: float) -> float | None:
        times = self._hints.times()
        if self.buckets.dirty:
            times.append(now if self.buckets.fresh else self._due(starved=self._is_starved()))
        if self.index.unread(self._ahead(now), 1):
            times.append(now + LIST_PAUSE)
        times += [since + ANSWER_TIMEOUT for _, since, _ in self._open_claims.values()]
        if any(worker.capacity <= 0 and worker.requests for worker in self.workers.living.values()):
            times.append(self._refreshed + CAPACITY_INTERVAL)
        return max(min(times) - now, 0.0) if times else None

    # ---- assignments ----

    async def _assign(self) -> None:
        """Assign the tasks of the index to open requests, and write the assignments."""
        while assignments := assign(self.index, self.workers.requests()):
            changed = await self._writer.write(assignments)  # by other nodes
            for bucket in {paths.bucket(task.name) for task in changed} | self.index.pop_missed():
                self.buckets.touch(bucket)

    # ---- answers ----

    async def _answer(self, now: float) -> None:
        """Answer the claims for which all tasks were scanned, or that have waited for `ANSWER_TIMEOUT`.

        A new master answers again: a worker that the last master gave tasks without a notice then reads its queue.
        """
        answered = []
        for gone in self._open_claims.keys() - self.workers.living.keys():
            del self._open_claims[gone]
        unread = bool(self.index.unread(self._to_read_first(), 1))
        for who, worker in self.workers.living.items():
            asked = self._open_claims.get(who)
            if worker.asked <= worker.answered:
                self._open_claims.pop(who, None)
            elif asked is None or asked[0] != worker.asked:
                asked = self._open_claims[who] = worker.asked, now, self.buckets.changes
            if asked is not None and who in self._open_claims:
                _, since, changes = asked
                if now >= max(since + ANSWER_TIMEOUT, self._started + INITIAL_SCAN_TIME) or (
                    self.buckets.listed(changes) and not unread
                ):
                    worker.answered = worker.asked
                    answered.append(worker)
        await self._notify(answered)

    async def _notify(self, workers: Sequence[Worker]) -> None:
        """Write notices without tasks."""
        entries = []
        for worker in workers:
            notice = worker.next_notice(self._leadership.version, [])
            if worker is not self._own:
                entries.append(Entry([Write(paths.queue(worker.who), encode_notice(notice))]))
            if worker.answered == worker.asked:
                self._open_claims.pop(worker.who, None)
                if worker is self._own:
                    self._claims.answered(worker.answered)
        await self._leadership.commit(entries)

    async def _send_hints(self, now: float) -> None:
        """Send hints of functions that have tasks and no request."""
        waiting = self.index.functions() - self._requested()
        self._hints.send(waiting, self.workers.living.values(), now)
