"""What the master knows of the pending tasks: their names, and of those that somebody may want soon their order.

It is bounded. A task that does not fit is left in the tree, and its bucket is marked to be listed again once there is room; so
the order of priority and age is that of the tasks which the master has looked at.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.engines.zookeeper import paths, records
from mainspring.ids import slot_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from mainspring.engines.zookeeper.tree import Node
    from mainspring.jobs.model import Job

MOST_NAMES: Final = 100_000
MOST_TASKS: Final = 50_000
MOST_BYTES: Final = 64 * 2**20
"""Records in memory; those of the tasks beyond that are read again when the tasks are assigned."""
PRIORITIES: Final = 3


class Task(NamedTuple):
    """A pending task that was read."""

    name: str
    function: bytes
    priority: int
    id: int
    slot: int
    since_us: int
    """When it was created or due."""
    version: int
    data: bytes | None
    """Its record; None where it has to be read again."""


def task_of_job(name: str, job: Job, data: bytes) -> Task:
    """Return a task that was created on this node."""
    slot = slot_of(job.namespace, job.function, job.unique, job.id)
    return Task(name, job.function, job.priority, job.id, slot, max(job.created_us, job.due_us), 0, data)


def task_of_node(name: str, node: Node) -> Task:
    """Return a task as it was read."""
    record = records.decode(node.data)
    return task_of_job(name, records.decode_job(record), node.data)._replace(version=node.version)


_Item = tuple[int, int, str]
"""A task's id, which sorts items by age; how many items there were before; and the name."""


class _TaskQueue:
    """The tasks of one function and one priority, the oldest first. Items of tasks that have gone are passed over."""

    __slots__ = ("live", "order", "slots")

    def __init__(self) -> None:
        self.order: list[_Item] = []
        self.slots: dict[int, list[_Item]] | None = None
        """The same by hash slots, once somebody has asked for some."""
        self.live = 0


class Index:
    """The pending tasks, as far as they are known."""

    def __init__(
        self, *, most_names: int = MOST_NAMES, most_tasks: int = MOST_TASKS, most_bytes: int = MOST_BYTES
    ) -> None:
        self._most_names = most_names
        self._most_tasks = most_tasks
        self._most_bytes = most_bytes
        self._known: dict[str, set[str]] = {bucket: set() for bucket in paths.BUCKETS}
        self._names = 0
        self._unread: dict[bytes | None, dict[str, None]] = {}
        """Names that were listed only, by their function where the name tells it."""
        self._tasks: dict[str, Task] = {}
        self._items: dict[str, _Item] = {}
        """The item that stands for each task: a task that has gone and come again may have left others."""
        self._last_item = 0
        self._bytes = 0
        self._lines: dict[bytes, list[_TaskQueue]] = {}
        self._busy: set[str] = set()
        self.more: set[str] = set()
        """Buckets that contain tasks which did not fit."""

    # ---- what is there ----

    def __len__(self) -> int:
        return self._names

    @property
    def has_room(self) -> bool:
        """Whether buckets of which something did not fit are worth another list."""
        return self._names <= self._most_names // 2

    @property
    def is_full(self) -> bool:
        """Whether no more tasks may be read."""
        return len(self._tasks) >= self._most_tasks

    def functions(self) -> set[bytes]:
        """Return the functions of which something is known to wait."""
        return {name for name in self._unread if name is not None} | {
            name for name, lines in self._lines.items() if any(line.live for line in lines)
        }

    def waiting(self, function: bytes) -> int:
        """Return how many tasks of a function could be assigned now."""
        return sum(line.live for line in self._lines.get(function, ()))

    # ---- names ----

    @property
    def moment(self) -> int:
        """A number that rises with each task that is put."""
        return self._last_item

    def listed(self, bucket: str, names: Iterable[str], since: int | None = None) -> int:
        """Take in what a bucket contains; returns how many names are new.

        ``since`` is the `moment` at which it was asked for: what was put after that may have come too late to be listed.
        """
        known = self._known[bucket]
        there = set(names)
        for gone in known - there:
            item = self._items.get(gone)
            if since is None or item is None or item[1] <= since:
                self.forget(gone)
        new = 0
        self.more.discard(bucket)
        for name in there - known - self._busy:
            if self._names >= self._most_names:
                self.more.add(bucket)
                break
            known.add(name)
            self._names += 1
            self._unread.setdefault(paths.function_of(name), {})[name] = None
            new += 1
        return new

    def listed_only(self, function: bytes) -> int:
        """Return how many names of a function are known of which nothing was read."""
        return len(self._unread.get(function, ()))

    def unread(self, wanted: Collection[bytes], number: int) -> list[str]:
        """Return names to be read next, at most so many: of the wanted functions, and those that do not tell theirs."""
        chosen: list[str] = []
        if self.is_full:
            return chosen
        for function in (*wanted, None):
            for name in self._unread.get(function, ()):
                if len(chosen) >= number:
                    return chosen
                chosen.append(name)
        return chosen

    def read(self, name: str, node: Node | None) -> bool:
        """Take in what was read under a name; None: it has gone. False where it is no record: it is left alone from now on."""
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
        """Take in a task, or another state of it, if there is room."""
        bucket = paths.bucket(task.name)
        known = self._known[bucket]
        if task.name in known:
            self._drop(task.name)
        if self.is_full or self._names >= self._most_names:
            known.discard(task.name)
            self.more.add(bucket)
            return
        known.add(task.name)
        self._names += 1
        if self._bytes + len(task.data or b"") > self._most_bytes:
            task = task._replace(data=None)
        self._bytes += len(task.data or b"")
        self._tasks[task.name] = task
        lines = self._lines.get(task.function)
        if lines is None:
            lines = self._lines[task.function] = [_TaskQueue() for _ in range(PRIORITIES)]
        line = lines[task.priority]
        if len(line.order) > 2 * line.live + 64:
            self._tidy(line)  # here and not where one goes: nobody walks along it at this moment
        line.live += 1
        self._last_item += 1
        item = self._items[task.name] = task.id, self._last_item, task.name
        heapq.heappush(line.order, item)
        if line.slots is not None:
            heapq.heappush(line.slots.setdefault(task.slot, []), item)

    def forget(self, name: str) -> None:
        """Know nothing more of a task."""
        bucket = self._known[paths.bucket(name)]
        if name in bucket:
            self._drop(name)
            bucket.discard(name)

    def forget_unwanted(self, wanted: Collection[bytes]) -> None:
        """Make room where the index is full of tasks that nobody wants; they stay in the tree."""
        for task in [task for task in self._tasks.values() if task.function not in wanted]:
            self.forget(task.name)
            self.more.add(paths.bucket(task.name))

    def take(self, task: Task) -> None:
        """Take a task out: it is being assigned, and stays unknown until `settle`, whoever lists it."""
        self.forget(task.name)
        self._busy.add(task.name)

    def settle(self, task: Task, *, back: bool) -> None:
        """The assignment of a task is over: it has gone, or is put back."""
        self._busy.discard(task.name)
        if back:
            self.put(task)

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
        line = self._lines[task.function][task.priority]
        line.live -= 1
        if not line.live and not any(line.live for line in self._lines[task.function]):
            del self._lines[task.function]

    def _tidy(self, line: _TaskQueue) -> None:
        line.order = [item for item in line.order if self._live(item) is not None]
        heapq.heapify(line.order)
        line.slots = None

    def _live(self, item: _Item) -> Task | None:
        name = item[2]
        return self._tasks[name] if self._items.get(name) == item else None

    # ---- in order ----

    def walk(self, function: bytes, priority: int, slots: frozenset[int] | None = None) -> Iterator[Task]:
        """Go through the tasks of a function and a priority, the oldest first; those of some hash slots only.

        Whoever takes a task takes it before the next one is asked for. Several may walk side by side.
        """
        lines = self._lines.get(function)
        if lines is None:
            return
        line = lines[priority]
        if slots is None:
            yield from self._merge([line.order])
        else:
            if line.slots is None:
                line.slots = {}
                for item in line.order:
                    task = self._live(item)
                    if task is not None:
                        line.slots.setdefault(task.slot, []).append(item)
                for heap in line.slots.values():
                    heapq.heapify(heap)
            by_slot = line.slots
            yield from self._merge([by_slot[slot] for slot in slots if slot in by_slot])

    def _merge(self, heaps: list[list[_Item]]) -> Iterator[Task]:
        heads = [(heap[0], at) for at, heap in enumerate(heaps) if heap]
        heapq.heapify(heads)
        passed: list[tuple[int, _Item]] = []
        try:
            while heads:
                item, at = heapq.heappop(heads)
                heap = heaps[at]
                mine = bool(heap) and heap[0] == item
                if mine:
                    heapq.heappop(heap)
                if heap:
                    heapq.heappush(heads, (heap[0], at))
                task = self._live(item) if mine else None
                if task is not None:
                    passed.append((at, item))
                    yield task
                    if self._live(item) is None:
                        passed.pop()
        finally:
            for at, item in passed:
                if self._live(item) is not None:
                    heapq.heappush(heaps[at], item)
