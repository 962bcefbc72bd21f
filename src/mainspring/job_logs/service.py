"""The logs of the jobs of a node: lines on their way to the store, and readers that wait for more of them.

Readers may be here and at other nodes of the store.

The port of the logs of jobs: what engines that keep them do (``storage.engine.Engine.logs``).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mainspring.events import FollowLog, Logged
from mainspring.job_logs.model import Chunk, HeadAndTail, hides_nothing, parts_of, redate
from mainspring.storage.engine import Operation, PageQuery, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.job_logs.model import Line
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.engine import Page
    from mainspring.storage.reads import Reads


class AppendLogs(Operation):
    """Store chunks, and delete others of the same jobs, each given by its job and id. Outcome: None.

    Nobody waits for it, and it touches no row of a job.
    """

    phase = Phase.LOGS
    chunks: Sequence[Chunk]
    dropped: Sequence[tuple[int, int]] = ()

    def __post_init__(self) -> None:
        self.rows = len(self.chunks) + len(self.dropped)
        self.size = sum(chunk.size for chunk in self.chunks)
        self.urgent = False


class SweepLogs(Operation):
    """Delete chunks with ids below ``before``, the lowest ones first and at most ``limit``. Outcome: their number."""

    phase = Phase.LOGS
    before: int
    limit: int = 500

    def __post_init__(self) -> None:
        self.rows = self.limit
        self.urgent = False


class ReadLogs(PageQuery[Chunk], frozen=True, kw_only=True):
    """Read the chunks of a job of a namespace in the order of their ids; ``after`` and `Page.next` are ids.

    ``attempt``: only this one. ``levels``: only chunks with one of these bits. ``backward``: in the opposite order.
    """

    namespace: str
    job: int
    attempt: int | None = None
    levels: int = -1
    backward: bool = False


WAKE_INTERVAL: Final = 1.0
"""Seconds after which a reader that waits looks again: its job may have ended."""
ASK_INTERVAL: Final = 1.0
"""Seconds between two requests to the node that holds a job."""
FOLLOWED_FOR: Final = 3.0
"""Seconds for which such a request holds."""
MOST_TAPPED: Final = 64
"""Chunks that a tap keeps for a reader that is slow."""


class Tap:
    """The chunks of one job that this node has written since `restart`, so that a reader need not read them from the store."""

    def __init__(self) -> None:
        self._claim: object = None
        self._chunks: list[Chunk] = []
        self._is_whole = False
        self._has_everything_before = False

    @property
    def is_whole(self) -> bool:
        """Whether the reader has or gets from `take` each chunk of this node."""
        return self._is_whole and self._has_everything_before

    def check(self, claim: object) -> None:
        """Keep nothing if the job is not under the claim of the last `restart`: another node may have written lines meanwhile.

        ``claim`` is the job in this node's memory, another object after each claim; None if this node does not hold it.
        """
        if claim is None or claim is not self._claim:
            self.drop()

    def restart(self, claim: object) -> None:
        """Keep what is written from now on. Call it before a read of the store."""
        self._claim, self._chunks = claim, []
        self._is_whole, self._has_everything_before = True, False

    def caught_up(self) -> None:
        """Note that the reader has everything that was stored at the last `restart`."""
        self._has_everything_before = True

    def add(self, chunk: Chunk) -> None:
        """Keep a chunk; forget all if there are too many, and the reader has to read the store."""
        if len(self._chunks) >= MOST_TAPPED:
            self.drop()
        elif self._is_whole:
            self._chunks.append(chunk)

    def take(self) -> list[Chunk]:
        """Return the kept chunks, and keep them no longer."""
        taken, self._chunks = self._chunks, []
        return taken

    def drop(self) -> None:
        """Keep nothing until `restart`."""
        self._claim, self._chunks = None, []
        self._is_whole = False


class LogReaders:
    """The waiting readers of a node.

    ``send`` sends a message to the node of a term; None: no other node shares the store.
    """

    def __init__(
        self, monotonic: Callable[[], float], send: Callable[[int, FollowLog | Logged], object] | None = None
    ) -> None:
        self._monotonic = monotonic
        self._send = send
        self._waiters: dict[int, list[Callable[[], None]]] = {}
        self._taps: dict[int, list[Tap]] = {}
        self._asked: dict[int, float] = {}
        """The monotonic times of the last requests, by job."""
        self._elsewhere: dict[int, dict[int, float]] = {}
        """The terms of the nodes with readers, by job, and the monotonic times until which they are to get reports."""

    def tap(self, job: int) -> tuple[Tap, Callable[[], None]]:
        """Return a new tap for the lines of a job, and the function that ends it."""
        tap = Tap()
        taps = self._taps.setdefault(job, [])
        taps.append(tap)

        def end() -> None:
            taps.remove(tap)
            if not taps and self._taps.get(job) is taps:
                del self._taps[job]

        return tap, end

    def wait(self, job: int, then: Callable[[], None]) -> Callable[[], None]:
        """Call a function once there may be more lines of a job. Return a function that calls it now, if it still waits."""
        waiters = self._waiters.setdefault(job, [])

        def give_up() -> None:
            if then in waiters:
                waiters.remove(then)
                if not waiters and self._waiters.get(job) is waiters:
                    del self._waiters[job]
                then()

        waiters.append(then)
        return give_up

    def ask(self, job: int, holder: int, term: int) -> None:
        """Request reports of new lines from the node with the term ``holder``, unless it is this one, which has ``term``."""
        if self._send is None or holder in {0, term}:
            return
        now = self._monotonic()
        if now - self._asked.get(job, -ASK_INTERVAL) >= ASK_INTERVAL:
            if len(self._asked) > 1000:
                self._asked = {one: at for one, at in self._asked.items() if now - at < ASK_INTERVAL}
            self._asked[job] = now
            self._send(holder, FollowLog(job, term))

    def received(self, message: FollowLog | Logged) -> None:
        """Process a message of another node."""
        if isinstance(message, Logged):
            for job in message.ids:
                self._wake(job)
        else:
            self._elsewhere.setdefault(message.id, {})[message.by] = self._monotonic() + FOLLOWED_FOR

    def written(self, chunks: Iterable[Chunk]) -> None:
        """Wake the readers of jobs whose lines are stored now."""
        reports: dict[int, list[int]] = {}
        now = self._monotonic()
        jobs: dict[int, None] = {}
        for chunk in chunks:
            jobs[chunk.job] = None
            for tap in self._taps.get(chunk.job, ()):
                tap.add(chunk)
        for job in jobs:
            self._wake(job)
            for term, until in self._elsewhere.get(job, {}).items():
                if until > now:
                    reports.setdefault(term, []).append(job)
        for term, ids in reports.items():
            if self._send is not None:
                self._send(term, Logged(ids))

    def tidy(self) -> None:
        """Forget the readers of other nodes that have left. Call it from time to time."""
        now = self._monotonic()
        kept = {job: {term: at for term, at in terms.items() if at > now} for job, terms in self._elsewhere.items()}
        self._elsewhere = {job: terms for job, terms in kept.items() if terms}

    def _wake(self, job: int) -> None:
        waiters = self._waiters.pop(job, [])
        woken = waiters[:]
        waiters.clear()
        for then in woken:
            then()


BUFFER_BYTES: Final = 4 * 2**20
"""Bytes of lines that wait for the store."""
OPERATION_BYTES: Final = 128 * 1024
OPERATION_ROWS: Final = 256
PAUSE: Final = 0.1
"""Seconds between two operations."""
BUSY_PAUSE: Final = 0.5
"""The same while the node commits many groups: a group with lines takes longer than one with jobs alone."""
QUIET_GROUPS: Final = 10
"""Groups between two operations above which a node is busy."""
RETRY_PAUSE: Final = 1.0
"""Seconds after an operation that has failed."""
BUSY_BYTES: Final = 2 * 2**20
"""Bytes that wait for a commit in a store that is busy."""
EXPECTED_FOR: Final = 10.0
"""Seconds for which readers wait for lines that follow a commit under way."""
FORGET_AFTER: Final = 2.0
"""Seconds without a line after which a delivery that has ended is forgotten."""
SWEEP_INTERVAL: Final = 60.0


class Delivery:
    """The log of one delivery, as long as lines of it may come. ``owner`` is the connection that may send them."""

    __slots__ = ("attempt", "delivery_us", "function", "hides", "job", "keeping", "namespace", "owner", "received_at")

    def __init__(
        self,
        owner: object,
        job: int,
        namespace: str,
        function: bytes,
        attempt: int,
        delivery_us: int,
        hides: Callable[[str], bool] = hides_nothing,
    ) -> None:
        self.owner = owner
        self.job = job
        self.namespace = namespace
        self.function = function
        self.attempt = attempt
        self.delivery_us = delivery_us
        self.keeping = HeadAndTail()
        self.hides = hides
        """Returns whether the values of a field are redacted."""
        self.received_at = 0.0
        """The monotonic time of its last lines."""


class LogService:
    """Writes lines, deletes them ``retention`` seconds later (looking every ``sweep_interval`` seconds), and reads them.

    ``later`` calls a function after some seconds. ``readers`` are woken by new lines. ``term`` returns the term of this node.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        later: Callable[[float, Callable[[], None]], object],
        readers: LogReaders,
        term: Callable[[], int],
        *,
        retention: float,
        sweep_interval: float = SWEEP_INTERVAL,
        is_held: Callable[[int], bool],
        root_of: Callable[[int], int] = lambda run: run,
        type_of: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._later = later
        self.readers = readers
        """Those that wait for lines."""
        self._term = term
        self._retention = retention
        self._sweep_interval = sweep_interval
        self._is_held = is_held
        self.root_of = root_of
        """Returns the job of a run of a workflow, which has the lines of its code and steps."""
        self.type_of = type_of
        """Returns the workflow of a run; None if that is unknown."""
        self._expected: dict[int, float] = {}
        """The monotonic times up to which readers of these jobs wait for more lines."""
        self._deliveries: dict[tuple[bytes, bytes], Delivery] = {}
        self._last_id = 0
        self._waiting: deque[Chunk] = deque()
        self._waiting_bytes = 0
        self._under_way: Sequence[Chunk] = ()
        self._unneeded: set[tuple[int, int]] = set()
        """The stored chunks of the middle of long logs, by job and id."""
        self._is_scheduled = False
        self._written_at = float("-inf")
        """The monotonic time of the last operation."""
        self._groups = 0
        """The number of the node's groups at the last operation."""
        self._is_sweeping = False
        self._swept = clock.monotonic()
        self.lines = 0
        """The number of lines that have been received."""
        self.dropped = 0
        """The number of lines that were dropped because the store was too slow."""

    # ---- writing ----

    def delivery(self, key: tuple[bytes, bytes], owner: object) -> Delivery | None:
        """Return the delivery with a handle and a token that has sent lines over the same connection before."""
        found = self._deliveries.get(key)
        return found if found is not None and found.owner is owner else None

    def begin(self, key: tuple[bytes, bytes], delivery: Delivery) -> Delivery:
        """Accept lines of a delivery."""
        self._deliveries[key] = delivery
        return delivery

    def expect(self, delivery: Delivery) -> None:
        """Note that lines of a delivery follow a commit, unless it fails: they may be the last ones of their job."""
        self._expected[delivery.job] = self._clock.monotonic() + EXPECTED_FOR

    def committed(self, delivery: Delivery, first: int, lines: Sequence[Line]) -> None:
        """Store the expected lines of a delivery; none if the commit has failed."""
        self._expected.pop(delivery.job, None)
        if lines:
            self.append(self.begin((b"", b"%d" % delivery.delivery_us), delivery), first, lines)

    def next_delivery(self) -> int:
        """Return the time of a delivery that begins now, which no other one has."""
        return self._next_id()

    def append(self, delivery: Delivery, first: int, lines: Sequence[Line], sent_us: int = 0) -> None:
        """Store consecutive lines soon, without redacted fields. The first one has the number ``first``.

        ``sent_us`` is the time at which they were sent, as in `redate`.
        """
        redate(lines, sent_us, round(self._clock.wall() * 1_000_000))
        delivery.received_at = self._clock.monotonic()
        self.lines += len(lines)
        for part in parts_of(first, lines, delivery.hides):
            chunk = Chunk(
                self._next_id(),
                delivery.job,
                delivery.namespace,
                delivery.function,
                delivery.attempt,
                delivery.delivery_us,
                *part,
            )
            if self._waiting_bytes + chunk.size > BUFFER_BYTES:
                self.dropped += chunk.lines
                continue
            self._waiting.append(chunk)
            self._waiting_bytes += chunk.size
            self._unneeded.update((chunk.job, chunk_id) for chunk_id in delivery.keeping.add(chunk))
        self._schedule(0.0)

    def _next_id(self) -> int:
        self._last_id = max(self._last_id + 1, round(self._clock.wall() * 1_000_000))
        return self._last_id

    def _schedule(self, pause: float) -> None:
        if not self._is_scheduled and not self._under_way:
            self._is_scheduled = True
            self._later(max(pause, self._next_at() - self._clock.monotonic()), self._write)

    def _next_at(self) -> float:
        """Return the monotonic time of the next operation."""
        is_busy = self._commits.groups - self._groups > QUIET_GROUPS
        return self._written_at + (BUSY_PAUSE if is_busy else PAUSE)

    def _write(self) -> None:
        """Put the next operation, unless the store is busy with jobs."""
        self._is_scheduled = False
        early = self._next_at() - self._clock.monotonic()
        if early > 0 or self._commits.bytes > BUSY_BYTES:
            self._schedule(max(early, PAUSE))
            return
        chunks: list[Chunk] = []
        size = 0
        while self._waiting and size < OPERATION_BYTES and len(chunks) < OPERATION_ROWS:
            chunk = self._waiting.popleft()
            self._waiting_bytes -= chunk.size
            if (chunk.job, chunk.id) in self._unneeded:
                self._unneeded.remove((chunk.job, chunk.id))
                continue
            size += chunk.size
            chunks.append(chunk)
        waiting = {(chunk.job, chunk.id) for chunk in self._waiting} if self._unneeded else set()
        dropped = sorted(self._unneeded - waiting)[:OPERATION_ROWS]
        self._unneeded.difference_update(dropped)
        if chunks or dropped:
            self._under_way = chunks
            self._written_at, self._groups = self._clock.monotonic(), self._commits.groups
            self._commits.put(
                AppendLogs(chunks, dropped), lambda _: self._written(), lambda _: self._not_written(dropped)
            )

    def _written(self) -> None:
        chunks, self._under_way = self._under_way, ()
        self.readers.written(chunks)
        if self._waiting or self._unneeded:
            self._schedule(0.0)

    def _not_written(self, dropped: Sequence[tuple[int, int]]) -> None:
        """Keep the lines of an operation that has failed for another attempt."""
        chunks, self._under_way = self._under_way, ()
        self._unneeded.update(dropped)
        self._waiting.extendleft(reversed(chunks))
        self._waiting_bytes += sum(chunk.size for chunk in chunks)
        self._schedule(RETRY_PAUSE)

    # ---- periodic work ----

    def check(self, now: float) -> None:
        """Forget deliveries that have ended, and delete old lines. Call it about every second."""
        for key, delivery in list(self._deliveries.items()):
            if now - delivery.received_at >= FORGET_AFTER and not self._is_held(delivery.job):
                del self._deliveries[key]
        if self._expected:
            self._expected = {job: until for job, until in self._expected.items() if until > now}
        if now - self._swept >= self._sweep_interval and not self._is_sweeping:
            self._swept = now
            self.readers.tidy()
            self._sweep()

    def _sweep(self) -> None:
        operation = SweepLogs(round((self._clock.wall() - self._retention) * 1_000_000))

        def swept(number: int) -> None:
            self._is_sweeping = False
            if number == operation.rows:
                self._is_sweeping = True
                self._later(PAUSE, self._sweep)

        def failed(_: StoreError) -> None:
            self._is_sweeping = False

        self._is_sweeping = True
        self._commits.put(operation, swept, failed)

    # ---- reading ----

    def wait(self, job: int, holder: int, then: Callable[[], None]) -> None:
        """Call a function when there may be more lines of a job. ``holder`` is the term of its node, or no term."""
        self.readers.ask(job, holder, self._term())
        self._later(WAKE_INTERVAL, self.readers.wait(job, then))

    async def read(self, query: ReadLogs) -> Page[Chunk]:
        """Return a page of stored lines."""
        return await self._reads.read(query)

    def has_all(self, job: int) -> bool:
        """Return whether all lines of a job that has just ended were written here: its worker sends them before the end."""
        return any(one.job == job for one in self._deliveries.values()) and not self.is_writing(job)

    def is_writing(self, job: int) -> bool:
        """Return whether lines of a job are on their way to the store."""
        if self._expected.get(job, 0.0) > self._clock.monotonic():
            return True
        return any(chunk.job == job for chunk in (*self._under_way, *self._waiting))
