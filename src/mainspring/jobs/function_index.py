"""The functions of a node: those in its memory, and those that are rows of its store alone.

If there are very many functions, most have no workers: their jobs are only rows of the store, and the store alone counts them.
When a worker registers for such a function, or a client waits for a job of it, the node reads its counts from the store
(`Counting`).

Pages of functions are built on request (`Roster`). The counts and the busiest of the store's functions are read periodically:
page by page, and at long intervals, because no request waits for them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from mainspring.access.caller import LOCAL
from mainspring.jobs.held import FunctionQueue
from mainspring.jobs.model import State
from mainspring.jobs.store import Count, Redrive, ShowCounts, Submit
from mainspring.log_limit import LogLimit
from mainspring.namespaces import namespace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mainspring.access.caller import Caller
    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.jobs.assignment import Assigner
    from mainspring.jobs.dispatch import Dispatch
    from mainspring.jobs.store import Counted
    from mainspring.jobs.table import Context
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.engine import Operation
    from mainspring.storage.reads import Reads

STARTUP_GRACE: Final = 2.0
"""Seconds after a node's start for which the result is unknown: workers may still be starting or connecting."""
_NOWHERE: Final[frozenset[bytes]] = frozenset()


def nobody() -> frozenset[bytes]:
    """Return the functions of other nodes' workers for a node without other nodes."""
    return _NOWHERE


class Registered:
    """The functions that connected workers have registered.

    ``elsewhere`` returns those of the other nodes' workers, as of the nodes' last heartbeats, or None while they are unknown.
    A node whose store is not shared has no other nodes.
    """

    def __init__(
        self, dispatch: Dispatch, clock: Clock, elsewhere: Callable[[], frozenset[bytes] | None] = nobody
    ) -> None:
        self._dispatch = dispatch
        self._clock = clock
        self._settled = clock.monotonic() + STARTUP_GRACE
        self.elsewhere = elsewhere

    def has(self, function: bytes) -> bool | None:
        """Return whether any worker has registered a function; None if that is unknown.

        Workflows count as registered: their runs begin without a worker.
        """
        queue = self._dispatch.queues.get(function)
        if queue is not None and (queue.workers or queue.is_root):
            return True
        if self._clock.monotonic() < self._settled:
            return None
        elsewhere = self.elsewhere()
        return None if elsewhere is None else function in elsewhere

    def of_others(self) -> frozenset[bytes] | None:
        """Return the functions of the other nodes' workers; None while they are unknown."""
        return self.elsewhere()

    def names(self) -> Iterator[bytes]:
        """Return each function that workers have registered once; other nodes' functions only if they are known."""
        queues = self._dispatch.queues
        yield from (name for name, queue in queues.items() if queue.workers)
        yield from (name for name in self.elsewhere() or _NOWHERE if name not in queues or not queues[name].workers)


RETRY_DELAY: Final = 0.25
"""Seconds after which a failed query is repeated."""
FUNCTIONS_PER_COUNT: Final = 250
"""Functions of one query: it takes a few milliseconds."""


class Counting:
    """Reads counts of queues from the store. Until then nothing is claimed for them, and new jobs go behind stored ones."""

    def __init__(self, context: Context, assigner: Assigner, reads: Reads) -> None:
        self._dispatch, self._commits, self._timers = context.dispatch, context.commits, context.timers
        self._clock = context.clock
        self._assigner = assigner
        self._reads = reads
        self._next: dict[bytes, FunctionQueue] = {}
        """The queues of the next query."""
        self._asking = False

    def begin(self, then: Callable[[], None], failed: Callable[[StoreError], None], after: bytes = b"") -> None:
        """Count the jobs of all functions, or of as many as are kept in memory. Called before anything else is counted."""

        def counted(page: Counted) -> None:
            for (function, state, priority), number in page.counts.items():
                queue = self._dispatch.tracked(function)
                if queue is not None:
                    queue.count(state, priority, number)
            if page.next is not None and self._dispatch.complete:
                self.begin(then, failed, page.next)
            else:
                then()

        self._reads.ask(ShowCounts(after=after), counted, failed)

    def ask(self, queue: FunctionQueue) -> None:
        """Count the stored jobs of a new queue."""
        queue.counted = False
        queue.claiming = True
        self._next[queue.name] = queue
        if not self._asking:
            self._ask()

    def _ask(self) -> None:
        asked = dict(islice(self._next.items(), FUNCTIONS_PER_COUNT))
        self._asking = bool(asked)
        for name in asked:
            del self._next[name]
        if asked:
            self._commits.put(
                Count(list(asked)),
                lambda counts: self._commits.after_answers(lambda: self._learn(asked, counts)),
                lambda error: self._not_counted(asked, error),
            )

    def _learn(self, asked: Mapping[bytes, FunctionQueue], counts: Mapping[tuple[bytes, int, int], int]) -> None:
        """Set the counts, which include all operations of the same group."""
        self._ask()
        for queue in asked.values():
            queue.backlog[:] = 0, 0, 0
            queue.away = 0
        for (name, state, priority), number in counts.items():
            asked[name].count(state, priority, number)
        for queue in asked.values():
            queue.away = max(queue.away - queue.leased, 0)
        count_in_flight(self._commits.waiting, asked)
        assigner = self._assigner
        for queue in asked.values():
            queue.counted = True
            queue.claiming = False
            assigner.serve(queue)
            assigner.answer(queue)

    def _not_counted(self, asked: Mapping[bytes, FunctionQueue], error: StoreError) -> None:
        del error  # every operation with a waiting client reports it to the service
        self._ask()

        def retry() -> None:
            for queue in asked.values():
                if self._dispatch.queues.get(queue.name) is queue:
                    self.ask(queue)

        for queue in asked.values():
            queue.claiming = False
            self._assigner.answer(queue)
        self._timers.at(self._clock.monotonic() + RETRY_DELAY, retry)


def count_in_flight(waiting: Iterable[Operation], queues: Mapping[bytes, FunctionQueue]) -> None:
    """Count the jobs of later groups again: they were counted when they came, and the new counts do not include them."""
    for operation in waiting:
        if isinstance(operation, Submit):
            for job in operation.jobs:
                queue = queues.get(job.function)
                if queue is None:
                    continue
                if job.state == State.PENDING:
                    queue.backlog[job.priority] += 1
                elif job.state == State.SCHEDULED:
                    queue.away += 1
        elif isinstance(operation, Redrive):
            queue = queues.get(operation.function)
            if queue is not None:
                queue.away += 1


PAGE_SIZE: Final = 500
"""The most functions of a page: it is built in about a millisecond."""
BUSIEST: Final = 1000
"""Functions of the store that are listed by name: those with the most waiting jobs."""
READ_INTERVAL: Final = 5.0
"""The shortest time in seconds between two readings."""
PAUSE_FACTOR: Final = 20
"""The pause after a reading, as a multiple of the duration of the reading."""
LOG_INTERVAL: Final = 60.0
"""Seconds between two log lines about refused functions."""

_serial = attrgetter("serial")
log = structlog.get_logger("mainspring.functions")


class Page(NamedTuple):
    """A page of functions. Rows of the store are represented by new queues."""

    functions: Sequence[FunctionQueue]
    next: Place | None
    """Where the next page begins; None on the last page."""


class Place(NamedTuple):
    """A place between two pages. The functions in memory come first, by their serials."""

    serial: int = 0
    """The last function in memory before the place."""
    row: bytes | None = None
    """The last row of the store before the place, if all functions in memory, up to ``serial``, are before it."""


class JobNumbers(NamedTuple):
    """Numbers of live and of waiting jobs."""

    jobs: int = 0
    waiting: int = 0

    def plus(self, row: FunctionQueue) -> JobNumbers:
        """Return the sum with the jobs of a function."""
        return JobNumbers(self.jobs + row.live, self.waiting + row.waiting())

    def minus(self, row: FunctionQueue) -> JobNumbers:
        """Return the difference."""
        return JobNumbers(self.jobs - row.live, self.waiting - row.waiting())


FIRST_PLACE: Final = Place()


class Roster:
    """Builds pages of functions, and counts functions.

    A function that exists from the first page to the last is on one of them, unless it moves meanwhile. Counts of rows
    are as of the last reading; if all functions are in memory, nothing is read.
    """

    def __init__(self, dispatch: Dispatch, commits: CommitQueue, reads: Reads, clock: Clock) -> None:
        self._dispatch = dispatch
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._refusals = LogLimit(LOG_INTERVAL)
        self._next = float("-inf")
        """The monotonic time of the next reading; infinite while one is in progress."""
        self._rows: dict[bytes, FunctionQueue] = {}
        self.jobs = self.waiting = 0
        """The numbers of live and of waiting jobs of the functions that are rows of the store alone."""
        self._unlisted: dict[str, JobNumbers] = {}
        """The same by namespace, without those of the functions that `functions` returns."""

    # ---- pages ----

    @property
    def moved(self) -> int:
        """How often functions have become rows of the store alone: pages of rows that were read before may lack them."""
        return self._dispatch.moved

    @property
    def short(self) -> bool:
        """Whether all functions are in memory, and few."""
        return self._dispatch.complete and len(self._dispatch.order) <= PAGE_SIZE

    async def page(self, place: Place, limit: int = PAGE_SIZE) -> Page:
        """Return the page that begins at a place; one of functions in memory at once."""
        if place.row is None:
            return self._in_memory(place.serial, limit)
        outcome = await self._reads.read(ShowCounts(after=place.row, limit=limit))
        queues = self._dispatch.queues
        rows = [
            queues.get(row.name, row)
            for row in _rows_of(outcome.counts)
            if row.name not in queues or queues[row.name].serial > place.serial
        ]
        return Page(rows, None if outcome.next is None else Place(place.serial, outcome.next))

    def _in_memory(self, serial: int, limit: int) -> Page:
        order, queues = self._dispatch.order, self._dispatch.queues
        start = bisect_right(order, serial, key=_serial)
        met = order[start : start + limit]
        functions = [queue for queue in met if queues.get(queue.name) is queue]
        serial = met[-1].serial if met else serial
        if start + limit < len(order):
            return Page(functions, Place(serial))
        return Page(functions, None if self._dispatch.complete else Place(serial, b""))

    async def find(self, names: Sequence[bytes]) -> Mapping[bytes, FunctionQueue]:
        """Look functions up; the result has those that are in memory or have stored jobs."""
        queues = self._dispatch.queues
        here = {name: queues[name] for name in names if name in queues}
        others = [name for name in names if name not in here]
        if self._dispatch.complete or not others:
            return here
        counts: dict[tuple[bytes, int, int], int] = await self._commits.committed(Count(others))
        return {row.name: row for row in _rows_of(counts)} | here

    # ---- counts ----

    def functions(self) -> Iterator[FunctionQueue]:
        """Return the functions in memory, and the busiest of the others."""
        queues = self._dispatch.queues
        yield from queues.values()
        for name, row in self._rows.items():
            if name not in queues:
                yield row

    def unlisted_jobs(self, namespace: str) -> JobNumbers:
        """Return the numbers of the jobs of a namespace whose functions `functions` does not return."""
        return self._unlisted.get(namespace, JobNumbers())

    @property
    def number(self) -> int:
        """The approximate number of functions."""
        return self._dispatch.number

    def too_many(self, name: bytes, caller: Caller = LOCAL) -> str:
        """Return the reason for refusing a new function, and log it for the operator."""
        dispatch, namespace = self._dispatch, namespace_of(name)
        most, mine = dispatch.most, dispatch.number_of(namespace)
        if self._refusals.left_out(self._clock.monotonic()) is not None:
            log.warning(
                "new functions are refused",
                functions=dispatch.number,
                namespace=namespace,
                of_namespace=mine,
                max_functions=most,
                do="look at `mainspring functions list` for names that programs make up, or raise --max-functions",
            )
        number = dispatch.number
        if mine == number:
            return f"this server has {number} functions, and takes no more (--max-functions): use fewer names"
        others = ", or a token for this namespace alone" if caller.spans_namespaces else ""
        return (
            f"the namespace {namespace} has {mine} functions, all have {number} of {most} (--max-functions), and the rest is for"
            f" other namespaces: use fewer names{others}"
        )

    def tick(self, now: float) -> None:
        """Begin a reading if it is time."""
        if not self._dispatch.complete and now >= self._next:
            self._next = float("inf")
            self._dispatch.rows.begin()
            self._read(_Sums(now), b"")

    def _read(self, sums: _Sums, after: bytes) -> None:
        self._reads.ask(ShowCounts(after=after), lambda page: self._add(sums, page), self._not_read)

    def _add(self, sums: _Sums, page: Counted) -> None:
        queues = self._dispatch.queues
        rows = [row for row in _rows_of(page.counts) if row.name not in queues]
        sums.add(rows)
        for row in rows:
            self._dispatch.rows.met(row.name)
        if page.next is not None:
            self._read(sums, page.next)
            return
        self._rows = {row.name: row for row in sums.busiest()}
        self._dispatch.read_rows()
        self.jobs, self.waiting = sums.jobs, sums.waiting
        self._unlisted = sums.without(self._rows.values())
        ended = self._clock.monotonic()
        self._next = ended + max(READ_INTERVAL, PAUSE_FACTOR * (ended - sums.began))

    def _not_read(self, error: StoreError) -> None:
        del error  # the figures stay as they are
        self._dispatch.rows.give_up()
        self._next = self._clock.monotonic() + READ_INTERVAL


class _Sums:
    """The sums of a reading so far."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.jobs = self.waiting = 0
        self._rows: list[FunctionQueue] = []
        self._by_namespace: dict[str, JobNumbers] = {}

    def add(self, rows: list[FunctionQueue]) -> None:
        """Add the functions of a page."""
        self.jobs += sum(row.live for row in rows)
        self.waiting += sum(row.waiting() for row in rows)
        for row in rows:
            namespace = namespace_of(row.name)
            self._by_namespace[namespace] = self._by_namespace.get(namespace, JobNumbers()).plus(row)
        self._rows += rows
        if len(self._rows) > 4 * BUSIEST:
            self._rows = self.busiest()

    def busiest(self) -> list[FunctionQueue]:
        """Return the functions with the most waiting jobs."""
        return heapq.nlargest(BUSIEST, self._rows, key=lambda row: row.waiting())

    def without(self, rows: Iterable[FunctionQueue]) -> dict[str, JobNumbers]:
        """Return the sums by namespace without some of the functions."""
        sums = dict(self._by_namespace)
        for row in rows:
            namespace = namespace_of(row.name)
            sums[namespace] = sums[namespace].minus(row)
        return sums


def _rows_of(counts: Mapping[tuple[bytes, int, int], int]) -> list[FunctionQueue]:
    """Return new queues with the store's counts of functions, in its order."""
    rows: dict[bytes, FunctionQueue] = {}
    for (name, state, priority), number in counts.items():
        row = rows.get(name)
        if row is None:
            row = rows[name] = FunctionQueue(name)
        row.count(state, priority, number)
    return list(rows.values())
