"""The master's assignment loop: it reads the workers' requests and the pending tasks, writes assignments and notices.

This node's own requests, pending tasks and assignments go through memory. Watches report changes of other nodes; a bucket that
has changed is listed at once if a worker is starved, and otherwise after a delay.

The open requests of all nodes get equal shares, within their limits. Each assignment is written as a whole, and the notice to
its worker in the same batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import structlog

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.claiming import Claims
from mainspring.engines.zookeeper.committer import Conflict, Entry, Verdict
from mainspring.engines.zookeeper.master_index import (
    LIST_PAUSE,
    PRIORITY_COUNT,
    Buckets,
    Index,
    OpenRequest,
    Task,
    Worker,
    Workers,
    task_of_job,
)
from mainspring.engines.zookeeper.records import encode_notice, held_by, leased, mark_of
from mainspring.engines.zookeeper.sessions import DeposedError, Leadership, Waiting
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Refusal, Write, run_steps
from mainspring.events import Message, Pending
from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mainspring.jobs.store import ClaimRequest

if TYPE_CHECKING:
    Assignment = tuple[OpenRequest, Task]

BATCH: Final = 2000
"""Tasks that are assigned in one round: other claims wait for its answer."""
SCAN_LIMIT: Final = 1000
"""Tasks without a matching request, of each function and priority, after which the requested slots are scanned directly."""
NO_VERSION: Final = 2**31 - 1
"""A version that no node has."""

log = structlog.get_logger("mainspring.zookeeper")


def assign(index: Index, requests: Iterable[OpenRequest], most: int = BATCH) -> list[tuple[OpenRequest, Task]]:
    """Reserve tasks of the index for open requests, by priority and age, and return the assignments.

    Nodes with requests for the same tasks get equal numbers, as long as each requests more.
    """
    assignments: list[tuple[OpenRequest, Task]] = []
    by_function: dict[bytes, list[OpenRequest]] = {}
    for request in requests:
        if request.is_open and index.waiting(request.function):
            by_function.setdefault(request.function, []).append(request)
    for function, some in by_function.items():
        distribution = _Distribution(index, some, assignments, most)
        for priority in range(PRIORITY_COUNT):
            distribution.assign_oldest(function, priority)
            distribution.assign_by_slots(function, priority)
    return assignments


class _Distribution:
    """The distribution of one function's tasks to its requests."""

    def __init__(
        self, index: Index, requests: list[OpenRequest], assignments: list[tuple[OpenRequest, Task]], most: int
    ) -> None:
        self._index = index
        self._requests = requests
        self._results = assignments
        self._most = most
        self._shares = {request.worker: 0 for request in requests}

    def assign_oldest(self, function: bytes, priority: int) -> None:
        """Assign the oldest tasks, until `SCAN_LIMIT` of them matched no request."""
        skipped = 0
        for task in self._index.walk(function, priority):
            if not self._has_more() or skipped > SCAN_LIMIT:
                break
            able = [request for request in self._requests if request.is_open and request.fits(task)]
            if able:
                self._assign(min(able, key=self._rank), task)
            else:
                skipped += 1

    def assign_by_slots(self, function: bytes, priority: int) -> None:
        """Assign tasks that are queued behind many of other slots, one for each request in turn."""
        turns = [
            (request, self._index.walk(function, priority, request.slots))
            for request in self._requests
            if request.is_open and request.slots
        ]
        while turns and self._has_more():
            following = []
            for request, tasks in sorted(turns, key=lambda turn: self._rank(turn[0])):
                task = next(tasks, None) if request.is_open and self._has_more() else None
                if task is not None:
                    self._assign(request, task)
                    following.append((request, tasks))
            turns = following

    def _has_more(self) -> bool:
        return len(self._results) < self._most and any(request.is_open for request in self._requests)

    def _rank(self, request: OpenRequest) -> tuple[int, str]:
        return self._shares[request.worker], request.worker.who

    def _assign(self, request: OpenRequest, task: Task) -> None:
        self._index.reserve(task)
        self._shares[request.worker] += 1
        request.left -= 1
        request.worker.capacity -= 1
        request.worker.in_flight += 1
        self._results.append((request, task))


class AssignmentWriter:
    """Writes assignments. Afterwards the reserved tasks are gone from the index, or put back."""

    def __init__(self, leadership: Leadership, workers: Workers, index: Index) -> None:
        self._leadership = leadership
        self._session = leadership.session
        self._workers = workers
        self._index = index
        self._claims = self._session.memory(Claims)
        self._assignments = 0
        """The number of assignments of this master."""

    async def write(self, assignments: Sequence[Assignment]) -> list[Task]:
        """Write assignments, and return the tasks that had changed since they were read.

        Raises DeposedError, StoreFencedError.
        """
        by_worker: dict[str, list[Assignment]] = {}
        for request, task in assignments:
            by_worker.setdefault(request.worker.who, []).append((request, task))
        found = await asyncio.gather(*(self._write_counted(who, some) for who, some in by_worker.items()))
        return [task for some in found for task in some]

    async def _write_counted(self, who: str, assignments: list[Assignment]) -> list[Task]:
        try:
            return await self._write_for(who, assignments)
        finally:
            for request, _ in assignments:
                request.worker.in_flight -= 1

    async def _write_for(self, who: str, assignments: list[Assignment]) -> list[Task]:
        worker = self._workers.living.get(who)
        data = await self._records([task for _, task in assignments])
        if worker is None:
            for request, task in assignments:
                self._return(request, task)
            return []
        existing = [(request, task, data[task.name]) for request, task in assignments if task.name in data]
        for request, task in assignments:
            if task.name not in data:
                self._free(request)
                self._index.settle(task, back=False)
        checks = await self._identity_checks([record for _, _, record in existing], [task for _, task, _ in existing])
        for request, task, _ in existing:
            if task.name in checks and checks[task.name] is None:
                # It stays reserved, so that this master ignores it.
                log.warning("the name or the result of a pending task cannot be decoded: it is ignored", task=task.name)
                self._free(request)
        existing = [one for one in existing if checks.get(one[1].name, ()) is not None]
        held = [self._assigned_record(record, worker.term) for _, _, record in existing]
        entries = [
            assignment_entry(who, task, record, checks.get(task.name) or ())
            for (_, task, _), record in zip(existing, held, strict=True)
        ]
        verdicts = await self._commit(worker, entries, [task.name for _, task, _ in existing])
        changed = [
            task
            for (request, task, _), verdict in zip(existing, verdicts, strict=True)
            if self._apply_verdict(request, task, verdict)
        ]
        if worker is self._workers.own:
            jobs = [
                (task.name, records.decode_job(record), mark_of(record))
                for (_, task, _), record in zip(existing, held, strict=True)
            ]
            arrived = [job for job, verdict in zip(jobs, verdicts, strict=True) if verdict is None]
            await self._session.meet(job.id for _, job, _ in arrived)
            self._claims.arrive(arrived)
        return changed

    def _assigned_record(self, record: bytes, term: int) -> dict[str, Any]:
        """Return the record of a task with its new assignment."""
        self._assignments += 1
        return held_by(term, records.decode(record), (self._leadership.version, self._assignments))

    async def _commit(self, worker: Worker, entries: list[Entry], tasks: list[str]) -> list[Verdict]:
        """Write a worker's tasks and the notice to it. This node itself needs no notice: its tasks come through memory."""
        if not entries:
            return []
        if worker is self._workers.own:
            return await self._leadership.commit(entries)
        worker.answered = worker.asked
        notice = worker.next_notice(self._leadership.version, tasks)
        notice_entry = Entry([Write(paths.queue(worker.who), encode_notice(notice))])
        return (await self._leadership.commit([*entries, notice_entry], [Check(paths.worker(worker.who))]))[:-1]

    def _apply_verdict(self, request: OpenRequest, task: Task, verdict: Verdict) -> bool:
        """Apply the verdict on an assignment, and return whether the task has changed since it was read."""
        if verdict is None:
            self._index.settle(task, back=False)
            return False
        if isinstance(verdict, Conflict) and not (verdict.at == 2 and verdict.why is Refusal.NO_NODE):
            if verdict.at in {1, 2}:
                log.error("a task is in two places", task=task.name, path=verdict.path)
            self._free(request)
            self._index.settle(task, back=False)
            return True
        self._workers.remove(request.worker.who)
        self._return(request, task)
        return False

    @staticmethod
    def _free(request: OpenRequest) -> None:
        """Give back the place of a task that is not assigned."""
        request.left += 1
        request.worker.capacity += 1

    def _return(self, request: OpenRequest, task: Task) -> None:
        """Put a task back into the index: the worker has ended."""
        request.left = 0
        self._index.settle(task, back=True)

    async def _records(self, tasks: Sequence[Task]) -> dict[str, bytes]:
        """Return the records of tasks; those that are not in memory are read. The write refuses tasks that have changed."""
        found = {task.name: task.data for task in tasks if task.data is not None}
        missing = [task.name for task in tasks if task.data is None]
        if missing:
            nodes = await self._session.get_many([*map(paths.pending, missing)])
            found.update({name: node.data for name, node in zip(missing, nodes, strict=True) if node is not None})
        return found

    async def _identity_checks(self, data: Sequence[bytes], tasks: Sequence[Task]) -> dict[str, list[Check] | None]:
        """Return the checks that tasks with a unique still belong to the jobs that were read; None if that is unreadable.

        A job may have ended, and another one of the same name be pending with the same version: then the delete would hit the
        wrong job. The name shows that until the publication, the result from then on.
        """
        named = [
            (task, records.decode(record))
            for task, record in zip(tasks, data, strict=True)
            if not task.name.endswith(f":~{task.id}")
        ]
        if not named:
            return {}
        at = [paths.name(task.name) for task, _ in named]
        at += [f"{paths.block(task.id)}/{record['handle']}" for task, record in named]
        nodes = await self._session.get_many(at)
        checks: dict[str, list[Check] | None] = {}
        for number, (task, _) in enumerate(named):
            name, result = nodes[number], nodes[number + len(named)]
            try:
                same = name is not None and records.decode(name.data).get("id") == task.id
                live = result is not None and not records.is_published(records.decode(result.data))
            except (ValueError, TypeError, AttributeError):
                checks[task.name] = None
                continue
            checks[task.name] = [
                Check(at[number], name.version if name is not None and same else NO_VERSION),
                Check(at[number + len(named)], result.version if result is not None and live else NO_VERSION),
            ]
        return checks


def assignment_entry(who: str, task: Task, record: dict[str, Any], same: Sequence[Check] = ()) -> Entry:
    """Return the entry that assigns a pending task to a worker, with the checks ``same``."""
    held = leased(record["id"], record["handle"], record.get("attempt", 0))
    return Entry(
        [
            Delete(paths.pending(task.name), task.version),
            Create(paths.running(task.name), records.encode(record)),
            Create(paths.assignment(who, task.name), held),
            *same,
        ],
        [(task.function, State.PENDING, task.priority, -1), (task.function, State.LEASED, task.priority, 1)],
    )


HINT_DELAY: Final = 0.05
"""Seconds until the hint for a function that no node requests is repeated; doubled each time."""
MAX_HINT_DELAY: Final = 5.0


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
        await run_steps(self.step, self._changed)

    async def step(self) -> float | None:
        """Scan, assign, answer and send hints; return the seconds until the next step, None: when something has changed."""
        self._changed.clear()
        now = self._loop.time()
        await self.workers.refresh()
        self._has_unlisted = self._has_unlisted or not self.workers.is_single
        if now >= self._refreshed + CAPACITY_INTERVAL:
            self._refreshed = now
            await self.workers.refresh_capacities()
        self._is_scanning = True
        # The scan is short, so priority and age order only what it finds; at the start that is all of a small tree.
        until = self._started + INITIAL_SCAN_TIME if self.buckets.fresh else now + SCAN_TIME
        while await self._scan_tasks(now) and self._loop.time() < until:
            pass
        self._is_scanning = False
        await self._assign()
        await self._answer(now)
        waiting = self.index.functions() - self._requested()
        self._hints.send(waiting, self.workers.living.values(), now)
        return self._next(self._loop.time())

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
