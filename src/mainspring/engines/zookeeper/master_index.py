"""The master's index of pending tasks, in the order of those that may be requested soon, and its view of the workers.

The index is bounded. A task that does not fit stays in the tree, and its bucket is marked for another list once there is
space. So priority and age order only the tasks that the index contains.

`Buckets` has the dirty buckets of a root: however many watches fire, each bucket is listed once, and then there is a pause.
"""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.records import Notice, decode_requests
from mainspring.jobs import rules
from mainspring.nodes.model import NodeRow

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from mainspring.engines.zookeeper.sessions import Session
    from mainspring.engines.zookeeper.tree import Node
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import ClaimRequest


LIST_PAUSE: Final = 0.02
"""The least seconds between rounds of lists."""
LIST_COST: Final = 30
"""The cost of a list in names, in addition to the names it returns."""
CONCURRENT_LISTS: Final = 64
"""Lists in flight at once."""


class Buckets:
    """The buckets of one root. Each list sets a watch, which reports one change; the next list sets it again."""

    def __init__(self, session: Session, root: str, changed: Callable[[], None]) -> None:
        """``changed`` is called when a bucket that was clean becomes dirty."""
        self._session = session
        self._root = root
        self._changed = changed
        self.dirty: dict[str, int] = dict.fromkeys(paths.BUCKETS, 0)
        """The dirty buckets, the oldest change first, each with the number of its change."""
        self.changes = 0
        """The number of changes so far."""
        self.fresh = set(paths.BUCKETS)
        """The buckets that were never listed: these are listed one after the other, without a pause."""
        self.next_list_at = 0.0
        """The loop's time of the next list at the earliest."""

    def touch(self, bucket: str) -> None:
        """Mark a bucket as changed."""
        if bucket not in self.dirty:
            self.changes += 1
            self.dirty[bucket] = self.changes
            self._changed()

    def listed(self, changes: int) -> bool:
        """Return whether all changes up to a number have been listed."""
        return next(iter(self.dirty.values()), changes + 1) > changes

    async def list_names(self, rate: float, most: int = CONCURRENT_LISTS) -> dict[str, list[str]]:
        """List the buckets that have been dirty for longest, and set the next list's time for about ``rate`` names a second."""
        chosen = list(self.dirty)[:most]
        for bucket in chosen:
            del self.dirty[bucket]
        found = await asyncio.gather(*map(self._list, chosen))
        listed = dict(zip(chosen, found, strict=True))
        now = asyncio.get_running_loop().time()
        cost = sum(len(names) + LIST_COST for names in found) / rate
        if self.fresh.issuperset(chosen):
            self.next_list_at = now
        else:
            self.next_list_at = now + (cost if self.dirty else max(LIST_PAUSE, cost))
        self.fresh.difference_update(chosen)
        return listed

    async def _list(self, bucket: str) -> list[str]:
        path = f"{self._root}/{bucket}"
        return await self._session.children(path, lambda: self.touch(bucket))


MAX_NAMES: Final = 100_000
MAX_TASKS: Final = 50_000
MAX_BYTES: Final = 64 * 2**20
"""Bytes of records in memory; further records are read again when their tasks are assigned."""
PRIORITY_COUNT: Final = 3


class Task(NamedTuple):
    """A pending task that was read."""

    name: str
    function: bytes
    priority: int
    id: int
    slot: int
    since_us: int
    """The time of its creation, or its due time if that is later."""
    version: int
    data: bytes | None
    """Its record; None if it has to be read again."""


def task_of_job(name: str, job: Job, data: bytes) -> Task:
    """Return the task of a job that was created on this node."""
    slot = rules.slot(job)
    return Task(name, job.function, job.priority, job.id, slot, max(job.created_us, job.due_us), 0, data)


def task_of_node(name: str, node: Node) -> Task:
    """Return the task that a node of the tree contains."""
    record = records.decode(node.data)
    return task_of_job(name, records.decode_job(record), node.data)._replace(version=node.version)


_Item = tuple[int, int, str]
"""A task's id, which sorts items by age; how many items there were before; and the name."""


@dataclass(slots=True, eq=False)
class _TaskQueue:
    """The tasks of one function and one priority, the oldest first. Items of removed tasks are skipped."""

    order: list[_Item] = field(default_factory=list)
    slots: dict[int, list[_Item]] | None = None
    """The same by hash slots, since the first request for slots."""
    live: int = 0


class Index:
    """The pending tasks, as many as fit."""

    def __init__(self, *, max_names: int = MAX_NAMES, max_tasks: int = MAX_TASKS, max_bytes: int = MAX_BYTES) -> None:
        self._max_names = max_names
        self._max_tasks = max_tasks
        self._max_bytes = max_bytes
        self._names_of: dict[str, set[str]] = {bucket: set() for bucket in paths.BUCKETS}
        self._names = 0
        self._unread: dict[bytes | None, dict[str, None]] = {}
        """Names that were listed and not read, by their function; None: the name does not contain it."""
        self._tasks: dict[str, Task] = {}
        self._items: dict[str, _Item] = {}
        """The valid item of each task: a task that was removed and added again may have left older ones."""
        self._last_item = 0
        self._bytes = 0
        self._queues: dict[bytes, list[_TaskQueue]] = {}
        self._busy: set[str] = set()
        self._skipped: set[str] = set()
        """The busy names that a list has contained meanwhile: they may be pending again."""
        self._missed: set[str] = set()
        """The buckets of such names whose reservation has ended: no watch will report them, so they are listed again."""
        self.more: set[str] = set()
        """Buckets with tasks that did not fit."""

    # ---- size ----

    def __len__(self) -> int:
        return self._names

    @property
    def has_room(self) -> bool:
        """Whether there is space for another list of the buckets in `more`."""
        return self._names <= self._max_names // 2

    @property
    def is_full(self) -> bool:
        """Whether no more tasks may be read."""
        return len(self._tasks) >= self._max_tasks

    def functions(self) -> set[bytes]:
        """Return the functions with pending tasks."""
        return {name for name in self._unread if name is not None} | {
            name for name, queues in self._queues.items() if any(queue.live for queue in queues)
        }

    def waiting(self, function: bytes) -> int:
        """Return how many tasks of a function could be assigned now."""
        return sum(queue.live for queue in self._queues.get(function, ()))

    # ---- names ----

    @property
    def revision(self) -> int:
        """A number that rises with each task that is put."""
        return self._last_item

    def update_bucket(self, bucket: str, names: Iterable[str], since: int | None = None) -> int:
        """Replace a bucket's names by a list of them, and return how many are new.

        ``since`` is the `revision` before the list was requested: tasks that were put later may be missing in it.
        """
        names_there = self._names_of[bucket]
        there = set(names)
        for gone in names_there - there:
            item = self._items.get(gone)
            if since is None or item is None or item[1] <= since:
                self.forget(gone)
        new = 0
        self.more.discard(bucket)
        self._skipped |= there & self._busy
        for name in there - names_there - self._busy:
            if self._names >= self._max_names:
                self.more.add(bucket)
                break
            names_there.add(name)
            self._names += 1
            self._unread.setdefault(paths.function_of(name), {})[name] = None
            new += 1
        return new

    def unread_count(self, function: bytes) -> int:
        """Return the number of a function's names that were listed and not read."""
        return len(self._unread.get(function, ()))

    def unread(self, requested: Collection[bytes], number: int) -> list[str]:
        """Return up to ``number`` names to read next: of the requested functions, and those that do not contain theirs."""
        chosen: list[str] = []
        if self.is_full:
            return chosen
        for function in (*requested, None):
            for name in self._unread.get(function, ()):
                if len(chosen) >= number:
                    return chosen
                chosen.append(name)
        return chosen

    def read(self, name: str, node: Node | None) -> bool:
        """Add the task that was read under a name; None: it is gone. Return False if it is no record, which is ignored then."""
        if name in self._busy:
            return True
        self.forget(name)
        if node is None:
            return True
        try:
            task = task_of_node(name, node)
        except (ValueError, KeyError, TypeError):
            self._busy.add(name)
            return False
        self.put(task)
        return True

    # ---- tasks ----

    def put(self, task: Task) -> None:
        """Add a task, or replace it, if there is space."""
        bucket = paths.bucket(task.name)
        names_there = self._names_of[bucket]
        if task.name in names_there:
            self._drop(task.name)
        if self.is_full or self._names >= self._max_names:
            names_there.discard(task.name)
            self.more.add(bucket)
            return
        names_there.add(task.name)
        self._names += 1
        if self._bytes + len(task.data or b"") > self._max_bytes:
            task = task._replace(data=None)
        self._bytes += len(task.data or b"")
        self._tasks[task.name] = task
        queues = self._queues.get(task.function)
        if queues is None:
            queues = self._queues[task.function] = [_TaskQueue() for _ in range(PRIORITY_COUNT)]
        queue = queues[task.priority]
        if len(queue.order) > 2 * queue.live + 64:
            self._tidy(queue)  # here and not in `_drop`: no `walk` is in progress now
        queue.live += 1
        self._last_item += 1
        item = self._items[task.name] = task.id, self._last_item, task.name
        heapq.heappush(queue.order, item)
        if queue.slots is not None:
            heapq.heappush(queue.slots.setdefault(task.slot, []), item)

    def forget(self, name: str) -> None:
        """Remove a task."""
        bucket = self._names_of[paths.bucket(name)]
        if name in bucket:
            self._drop(name)
            bucket.discard(name)

    def evict_unrequested(self, requested: Collection[bytes]) -> None:
        """Remove the tasks of functions that no node requests; they stay in the tree."""
        for task in [task for task in self._tasks.values() if task.function not in requested]:
            self.forget(task.name)
            self.more.add(paths.bucket(task.name))

    def reserve(self, task: Task) -> None:
        """Remove a task that is being assigned: until `settle`, lists do not add it again."""
        self.forget(task.name)
        self._busy.add(task.name)

    def settle(self, task: Task, *, back: bool) -> None:
        """End the reservation of a task, and put it back or not."""
        self._busy.discard(task.name)
        if task.name in self._skipped:
            self._skipped.discard(task.name)
            self._missed.add(paths.bucket(task.name))
        if back:
            self.put(task)

    def pop_missed(self) -> set[str]:
        """Return the buckets that have to be listed again, once: a list has skipped a task that was reserved at the time."""
        missed, self._missed = self._missed, set()
        return missed

    def _drop(self, name: str) -> None:
        self._names -= 1
        task = self._tasks.pop(name, None)
        if task is None:
            function = paths.function_of(name)
            unread = self._unread.get(function)
            if unread is not None:
                unread.pop(name, None)
                if not unread:
                    del self._unread[function]
            return
        del self._items[name]
        self._bytes -= len(task.data or b"")
        queue = self._queues[task.function][task.priority]
        queue.live -= 1
        if not queue.live and not any(queue.live for queue in self._queues[task.function]):
            del self._queues[task.function]

    def _tidy(self, queue: _TaskQueue) -> None:
        queue.order = [item for item in queue.order if self._live(item) is not None]
        heapq.heapify(queue.order)
        queue.slots = None

    def _live(self, item: _Item) -> Task | None:
        name = item[2]
        return self._tasks[name] if self._items.get(name) == item else None

    # ---- in order ----

    def walk(self, function: bytes, priority: int, slots: frozenset[int] | None = None) -> Iterator[Task]:
        """Yield the tasks of a function and a priority, the oldest first; with ``slots`` only those of some hash slots.

        The caller may reserve a task before it requests the next one. Several walks may be interleaved.
        """
        queues = self._queues.get(function)
        if queues is None:
            return
        queue = queues[priority]
        if slots is None:
            yield from self._merge([queue.order])
        else:
            if queue.slots is None:
                queue.slots = {}
                for item in queue.order:
                    task = self._live(item)
                    if task is not None:
                        queue.slots.setdefault(task.slot, []).append(item)
                for heap in queue.slots.values():
                    heapq.heapify(heap)
            by_slot = queue.slots
            yield from self._merge([by_slot[slot] for slot in slots if slot in by_slot])

    def _merge(self, heaps: list[list[_Item]]) -> Iterator[Task]:
        heads = [(heap[0], at) for at, heap in enumerate(heaps) if heap]
        heapq.heapify(heads)
        skipped: list[tuple[int, _Item]] = []
        try:
            while heads:
                item, at = heapq.heappop(heads)
                heap = heaps[at]
                is_head = bool(heap) and heap[0] == item
                if is_head:
                    heapq.heappop(heap)
                if heap:
                    heapq.heappush(heads, (heap[0], at))
                task = self._live(item) if is_head else None
                if task is not None:
                    skipped.append((at, item))
                    yield task
                    if self._live(item) is None:
                        skipped.pop()
        finally:
            for at, item in skipped:
                if self._live(item) is not None:
                    heapq.heappush(heaps[at], item)


_row: Final = msgspec.json.Decoder(NodeRow).decode
QUEUE_LIMIT: Final = 20_000
"""Tasks in the queue of one worker: their names have to fit into one answer of the ensemble."""
NOTICE_TASKS: Final = 300
"""Task names in one notice. A worker that has missed more lists its queue."""

log = structlog.get_logger("mainspring.zookeeper")


@dataclass(slots=True, eq=False)
class Worker:
    """A living worker."""

    who: str
    capacity: int = 0
    """How many more tasks its queue may hold."""
    in_flight: int = 0
    """How many tasks are being written into its queue."""
    leaving: bool = False
    """It drains by itself."""
    drain_requested: bool = False
    """It drains by request of an operator."""
    requests: dict[bytes, list[OpenRequest]] = field(default_factory=dict)
    asked: int = 0
    answered: int = 0
    notice: Notice | None = None
    """The last notice of this master to it."""

    @property
    def term(self) -> int:
        """Its term."""
        return paths.term_of(self.who)

    @property
    def draining(self) -> bool:
        """Whether it drains."""
        return self.leaving or self.drain_requested

    @property
    def accepts(self) -> bool:
        """Whether it may get tasks."""
        return self.capacity > 0 and not self.draining

    def measure(self, queued: int) -> None:
        """Compute its capacity; ``queued`` is the number of tasks in its queue."""
        self.capacity = QUEUE_LIMIT - queued - self.in_flight

    def set_requests(self, function: bytes, requests: Iterable[ClaimRequest]) -> None:
        """Replace its open requests for a function."""
        self.requests[function] = [OpenRequest(self, function, *request[1:]) for request in requests]

    def next_notice(self, master: int, tasks: list[str]) -> Notice:
        """Return its next notice, with the tasks that are assigned to it in the same batch."""
        before = self.notice or Notice(master)
        last = [*before.tasks, *tasks][-NOTICE_TASKS:]
        self.notice = Notice(master, self.answered, before.number + len(tasks), last)
        return self.notice


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A worker's request for tasks of a function, open until the worker replaces it."""

    worker: Worker
    function: bytes
    left: int
    slots: frozenset[int] | None = None
    """Only tasks of these hash slots; None: all."""
    overdue_us: int = 0
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
        rows, requests = self._stale_rows & self.living.keys(), self._stale_requests & self.living.keys()
        self._stale_rows.clear()
        self._stale_requests.clear()
        await asyncio.gather(*map(self._read_row, rows), *map(self._read_requests, requests))

    def update_own_capacity(self) -> None:
        """Compute the capacity of this node itself."""
        self.own.measure(len(self._session.assignments))

    async def refresh_capacities(self) -> None:
        """Read the sizes of the full queues again."""
        self.update_own_capacity()
        full = [one for one in self.living.values() if one.capacity <= 0 and one.requests and one is not self.own]
        queues = [paths.queue(one.who) for one in full]
        if queues:
            for one, queue in zip(full, await self._session.get_many(queues), strict=True):
                one.measure(QUEUE_LIMIT if queue is None else queue.children)

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

    def _on_list(self) -> None:
        self._stale_list = True
        self._changed()

    def _on_change(self, stale: set[str], who: str) -> None:
        stale.add(who)
        self._changed()

    async def _read_row(self, who: str) -> None:
        node = await self._session.get(paths.worker(who), partial(self._on_change, self._stale_rows, who))
        worker = self.living.get(who)
        if node is not None and worker is not None:
            try:
                row = _row(node.data)
            except ValueError:
                log.warning("the row of a worker cannot be decoded and is ignored", path=paths.worker(who))
                return
            worker.leaving = row.draining

    async def _read_requests(self, who: str) -> None:
        node = await self._session.get(paths.wants(who), partial(self._on_change, self._stale_requests, who))
        queue = await self._session.get(paths.queue(who))
        worker = self.living.get(who)
        if node is None or queue is None or worker is None:
            return
        worker.measure(queue.children)
        try:
            asked = decode_requests(node.data)
        except (ValueError, KeyError, TypeError, AttributeError):
            log.warning("the requests of a worker cannot be decoded and are ignored", path=paths.wants(who))
            return
        worker.asked = asked.asked
        worker.requests.clear()
        for function, requests in asked.requests.items():
            worker.set_requests(function, requests)
