"""The master's view of the workers: which ones live, their open requests, and the notices to them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.records import Notice, decode_requests
from mainspring.events import Pending
from mainspring.nodes.model import NodeRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.engines.zookeeper.master_index import Task
    from mainspring.engines.zookeeper.sessions import Session
    from mainspring.events import Message
    from mainspring.jobs.store import ClaimRequest

_row: Final = msgspec.json.Decoder(NodeRow).decode
QUEUE_LIMIT: Final = 20_000
"""Tasks in the queue of one worker: their names have to fit into one answer of the ensemble."""
NOTICE_TASKS: Final = 300
"""Task names in one notice. A worker that has missed more lists its queue."""
HINT_DELAY: Final = 0.05
"""Seconds until the hint for a function that no node requests is repeated; doubled each time."""
MAX_HINT_DELAY: Final = 5.0

log = structlog.get_logger("mainspring.zookeeper")


class Worker:
    """A living worker."""

    __slots__ = (
        "answered",
        "asked",
        "capacity",
        "drain_requested",
        "draining",
        "in_flight",
        "leaving",
        "notice",
        "requests",
        "term",
        "who",
    )  # fmt: skip

    def __init__(self, who: str, capacity: int = 0) -> None:
        self.who = who
        self.term = paths.term_of(who)
        self.capacity = capacity
        """How many more tasks its queue may hold."""
        self.in_flight = 0
        """How many tasks are being written into its queue."""
        self.draining = False
        self.leaving = self.drain_requested = False
        """It drains by itself, or by request of an operator."""
        self.requests: dict[bytes, list[OpenRequest]] = {}
        self.asked = self.answered = 0
        self.notice: Notice | None = None
        """The last notice of this master to it."""

    @property
    def accepts(self) -> bool:
        """Whether it may get tasks."""
        return self.capacity > 0 and not self.draining

    def set_requests(self, function: bytes, requests: Iterable[ClaimRequest]) -> None:
        """Replace its open requests for a function."""
        self.requests[function] = [OpenRequest(self, function, *request[1:]) for request in requests]

    def next_notice(self, master: int, tasks: list[str]) -> Notice:
        """Return its next notice, with the tasks that are assigned to it in the same batch."""
        before = self.notice or Notice(master)
        last = [*before.tasks, *tasks][-NOTICE_TASKS:]
        self.notice = Notice(master, self.answered, before.number + len(tasks), last)
        return self.notice


class OpenRequest:
    """A worker's request for tasks of a function, open until the worker replaces it."""

    __slots__ = ("function", "left", "overdue_us", "slots", "worker")

    def __init__(
        self, worker: Worker, function: bytes, limit: int, slots: frozenset[int] | None = None, overdue_us: int = 0
    ) -> None:
        self.worker = worker
        self.function = function
        self.left = limit
        self.slots = slots
        """Only tasks of these hash slots; None: all."""
        self.overdue_us = overdue_us
        """Tasks that were created or due before this time fit whatever their slot."""

    @property
    def is_open(self) -> bool:
        """Whether it admits one more task."""
        return self.left > 0 and self.worker.accepts

    def fits(self, task: Task) -> bool:
        """Return whether a task matches it."""
        return self.slots is None or task.slot in self.slots or task.since_us < self.overdue_us


class Workers:
    """All living workers. `refresh` reads those that have changed."""

    def __init__(self, session: Session, changed: Callable[[], None]) -> None:
        self._session = session
        self._changed = changed
        self.own = Worker(session.who)
        """The master's own node: its requests come through memory."""
        self.living: dict[str, Worker] = {self.own.who: self.own}
        self._stale_list = True
        self._stale_rows = {self.own.who}
        self._stale_requests: set[str] = set()
        self.members_changed = asyncio.Event()
        """A worker has started or ended: the tasks of a lost one have to be returned."""

    @property
    def is_single(self) -> bool:
        """Whether the master's own node is the only one."""
        return self.living.keys() <= {self.own.who}

    def requests(self) -> list[OpenRequest]:
        """Return all open requests."""
        return [
            request
            for one in self.living.values()
            for some in one.requests.values()
            for request in some
            if request.is_open
        ]

    def remove(self, who: str) -> None:
        """Remove a worker that has ended before its node in the tree was read again."""
        if self.living.pop(who, None) is not None:
            self._stale_list = True
            self.members_changed.set()
            self._changed()

    async def refresh(self) -> None:
        """Read the workers, rows and requests that have changed."""
        if self._stale_list:
            await self._list()
        rows, self._stale_rows = self._stale_rows & self.living.keys(), set()
        requests, self._stale_requests = self._stale_requests & self.living.keys(), set()
        await asyncio.gather(*map(self._read_row, rows), *map(self._read_requests, requests))

    def update_own_capacity(self) -> None:
        """Compute the capacity of this node itself."""
        self.own.capacity = QUEUE_LIMIT - len(self._session.assignments) - self.own.in_flight

    async def refresh_capacities(self) -> None:
        """Read the sizes of the full queues again."""
        self.update_own_capacity()
        full = [one for one in self.living.values() if one.capacity <= 0 and one.requests and one is not self.own]
        queues = [paths.queue(one.who) for one in full]
        if queues:
            for one, queue in zip(full, await self._session.get_many(queues), strict=True):
                one.capacity = QUEUE_LIMIT - queue.children - one.in_flight if queue is not None else 0

    async def _list(self) -> None:
        self._stale_list = False
        draining, names = await asyncio.gather(
            self._session.children(paths.DRAINING, self._on_list),
            self._session.children(paths.WORKERS, self._on_list),
        )
        there = {*paths.workers_of(names), self.own.who}
        if strangers := sorted(set(names) - there):
            log.warning("nodes among the workers have foreign names and are ignored", names=strangers[:10])
        gone, new = self.living.keys() - there, there - self.living.keys()
        for who in gone:
            del self.living[who]
        if gone or new:  # and not for a list that a refreshed watch has asked for
            self.members_changed.set()
        for who in new:
            self.living[who] = Worker(who)
        self._stale_rows |= new
        self._stale_requests |= new
        for who, worker in self.living.items():
            worker.drain_requested = who.rpartition("-")[0] in draining
            worker.draining = worker.leaving or worker.drain_requested

    def _on_list(self) -> None:
        self._stale_list = True
        self._changed()

    async def _read_row(self, who: str) -> None:
        def on_change() -> None:
            self._stale_rows.add(who)
            self._changed()

        node = await self._session.get(paths.worker(who), on_change)
        worker = self.living.get(who)
        if node is not None and worker is not None:
            try:
                row = _row(node.data)
            except ValueError:
                log.warning("the row of a worker cannot be decoded and is ignored", path=paths.worker(who))
                return
            worker.leaving = row.draining
            worker.draining = worker.leaving or worker.drain_requested

    async def _read_requests(self, who: str) -> None:
        def on_change() -> None:
            self._stale_requests.add(who)
            self._changed()

        node = await self._session.get(paths.wants(who), on_change)
        queue = await self._session.get(paths.queue(who))
        worker = self.living.get(who)
        if node is None or queue is None or worker is None:
            return
        worker.capacity = QUEUE_LIMIT - queue.children - worker.in_flight
        try:
            asked = decode_requests(node.data)
        except (ValueError, KeyError, TypeError, AttributeError):
            log.warning("the requests of a worker cannot be decoded and are ignored", path=paths.wants(who))
            return
        worker.asked = asked.asked
        worker.requests.clear()
        for function, requests in asked.requests.items():
            worker.set_requests(function, requests)


class WakeupHints:
    """Notifies nodes of pending tasks that no node requests: at once, and then at doubling intervals.

    Times are seconds of the loop's clock.
    """

    def __init__(self, send: Callable[[int, Message], None]) -> None:
        self._send = send
        self._due: dict[bytes, tuple[float, float]] = {}
        """Of each function without a request: the time of the next hint, and the delay after that."""

    def times(self) -> list[float]:
        """Return the times of the next hints."""
        return [due for due, _ in self._due.values()]

    def send(self, waiting: set[bytes], workers: Iterable[Worker], now: float) -> None:
        """Send all workers the functions that have tasks and no request: the rows report late which worker serves which."""
        for function in self._due.keys() - waiting:
            del self._due[function]
        due = [function for function in waiting if self._due.get(function, (now, HINT_DELAY))[0] <= now]
        for function in due:
            pause = self._due.get(function, (now, HINT_DELAY))[1]
            self._due[function] = now + pause, min(pause * 2, MAX_HINT_DELAY)
        for worker in workers if due else ():
            if not worker.draining:
                self._send(worker.term, Pending(sorted(due)))
