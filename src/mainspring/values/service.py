"""The published values of a node's jobs and runs: on their way to the store, and those who wait for them.

Clients wait at any node of the store. A value that another node writes wakes them by a message: a node with waiting clients
tells the others, and they report what they write as long as it does. A lost message costs the time until the next look, which
reads the numbers of all awaited jobs at once.

The port of published values: what engines that keep them do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.callbacks import Callback
from mainspring.events import FollowStreams, FollowValues, StreamsWritten, ValuesPublished
from mainspring.storage.engine import Operation, Phase, Query
from mainspring.values.model import NewValue, StoredValue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.events import AboutWaiters, Message
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads
    from mainspring.values.model import Swept


class PublishValues(Operation):
    """Store values of jobs that are held under a term, in their order. Outcome: these jobs; the values of others are refused."""

    phase = Phase.PUBLISH
    values: Sequence[NewValue]
    term: int

    def __post_init__(self) -> None:
        self.rows = len(self.values)
        self.size = sum(len(one.value) + 200 for one in self.values)
        self.urgent = False


class SweepValues(Operation):
    """Delete the values of jobs that are stored no more: of ``limit`` jobs with ids above ``after``. Outcome: ``Swept``."""

    phase = Phase.LOGS
    after: int = 0
    limit: int = 500

    def __post_init__(self) -> None:
        self.rows = self.limit
        self.urgent = False


class ReadValues(Query[list[StoredValue]], frozen=True):
    """Read the values of a job in the order of their names, or the one of a name."""

    job: int
    name: str | None = None


class Seen(NamedTuple):
    """The answer to LookValues."""

    numbers: Mapping[int, int]
    """The numbers of the last changes of the jobs that have values."""
    live: Collection[int]
    """The jobs that have not ended."""


class LookValues(Query[Seen], frozen=True):
    """Look at some jobs, for all who wait for their values."""

    jobs: tuple[int, ...]


RETRY_PAUSE: Final = 1.0
"""Seconds after which values are written again that the store could not take."""
LOOK_INTERVAL: Final = 1.0
"""Seconds between two looks at the awaited jobs of a store that nodes share."""
FOLLOWED_FOR: Final = 3.0
"""Seconds for which a node reports what it writes to another one that has asked for it."""
SWEEP_INTERVAL: Final = 60.0
SWEEP: Final = "values sweep"
"""The name under which one node of a store is the first in line for the sweep."""


class Waiter:
    """A wait for changes of the values of a job."""

    def __init__(self) -> None:
        self.is_due = False
        """Whether something has changed since the last `wait`, or since it was made."""
        self._then: Callable[[], None] | None = None

    def wake(self) -> None:
        """Let it go on."""
        self.is_due = True
        then, self._then = self._then, None
        if then is not None:
            then()

    async def wait(self) -> None:
        """Return once there may be a change."""
        if not self.is_due:
            await Callback[None](lambda done, _: self._begin(lambda: done(None)))
        self.is_due = False

    def _begin(self, then: Callable[[], None]) -> None:
        self._then = then


class Waiters:
    """Those of a node who wait for values or for items of streams, by job.

    ``tell`` sends a message to the other nodes of the store, and ``send`` one to the node of a term; None: there are no others.
    ``follow`` is the kind of message by which a node asks the others for reports, and ``written`` the kind of the reports.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        term: Callable[[], int],
        tell: Callable[[Message], object] | None,
        send: Callable[[int, Message], object] | None,
        follow: type[FollowValues | FollowStreams] = FollowValues,
        written: type[ValuesPublished | StreamsWritten] = ValuesPublished,
    ) -> None:
        self._follow = follow
        self._written = written
        self._monotonic = monotonic
        self._term = term
        self._tell = tell
        self._send = send
        self._waiters: dict[int, dict[Waiter, None]] = {}
        self._notified_at = float("-inf")
        """The monotonic time at which the other nodes were last notified that somebody waits here."""
        self._followers: dict[int, float] = {}
        """The terms of other nodes where somebody waits, with the monotonic times until which they get reports."""
        self._numbers: dict[int, int] = {}
        """The numbers of the last changes, as of the last look."""

    @property
    def jobs(self) -> Collection[int]:
        """Return the awaited jobs."""
        return self._waiters.keys()

    def add(self, job: int) -> Waiter:
        """Return a waiter for the values of a job, to be passed to `remove`."""
        waiter = Waiter()
        self._waiters.setdefault(job, {})[waiter] = None
        self.follow()
        return waiter

    def remove(self, job: int, waiter: Waiter) -> None:
        """Forget a waiter."""
        waiters = self._waiters[job]
        del waiters[waiter]
        if not waiters:
            del self._waiters[job]
            self._numbers.pop(job, None)

    def follow(self) -> None:
        """Tell the other nodes, from time to time, that somebody waits here."""
        now = self._monotonic()
        if self._tell is not None and self._waiters and now - self._notified_at >= LOOK_INTERVAL:
            self._notified_at = now
            self._tell(self._follow(self._term()))

    def received(self, message: AboutWaiters) -> None:
        """Process a message of another node."""
        if isinstance(message, (ValuesPublished, StreamsWritten)):
            self.wake(message.ids)
        else:
            self._followers[message.by] = self._monotonic() + FOLLOWED_FOR

    def written(self, jobs: Sequence[int]) -> None:
        """Wake those who wait for these jobs, here and at other nodes."""
        self.wake(jobs)
        now = self._monotonic()
        self._followers = {term: until for term, until in self._followers.items() if until > now}
        if self._send is not None:
            for term in self._followers:
                self._send(term, self._written(jobs))

    def wake(self, jobs: Iterable[int]) -> None:
        """Wake those who wait for these jobs here."""
        for job in jobs:
            for waiter in [*self._waiters.get(job, ())]:
                waiter.wake()

    def seen(self, jobs: Iterable[int], seen: Seen) -> None:
        """Wake those whose jobs have changed since the last look, or have ended."""
        for job in jobs:
            number = seen.numbers.get(job, 0)
            if job in self._waiters and (self._numbers.get(job) != number or job not in seen.live):
                self._numbers[job] = number
                self.wake((job,))


class Upkeep:
    """Looks at the awaited jobs of a store that nodes share, and deletes the rows of deleted jobs.

    ``look`` and ``sweep`` make the query and the operation; ``line`` names the line of nodes in which one is the first, which
    ``mine`` asks for. ``mine`` is None if no other node writes to the store.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        waiters: Waiters,
        look: Callable[[tuple[int, ...]], Query[Seen]],
        sweep: Callable[[int], Operation],
        line: str,
        mine: Callable[[str], bool] | None,
        sweep_interval: float,
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._waiters = waiters
        self._look = look
        self._sweep_after = sweep
        self._line = line
        self._mine = mine
        self._sweep_interval = sweep_interval
        self._is_looking = self._is_sweeping = False
        self.has_rows = True
        """Whether the store may have rows. One without any is not swept, if no other node writes to it."""
        self._looked = self._swept = clock.monotonic()

    def written(self) -> None:
        """Note that the store has rows."""
        self.has_rows = True

    def check(self, now: float) -> None:
        """Look and sweep, if that is due. Call it about every second."""
        self._waiters.follow()
        jobs = tuple(self._waiters.jobs)
        is_shared = self._mine is not None
        if is_shared and jobs and not self._is_looking and now - self._looked >= LOOK_INTERVAL:
            self._looked, self._is_looking = now, True
            self._reads.ask(self._look(jobs), lambda seen: self._seen(jobs, seen), self._not_seen)
        is_due = now - self._swept >= self._sweep_interval and not self._is_sweeping
        if is_due:
            self._swept = now
            if self.has_rows if self._mine is None else self._mine(self._line):
                self.has_rows = False
                self._sweep(0)

    def _seen(self, jobs: Collection[int], seen: Seen) -> None:
        self._is_looking = False
        self._waiters.seen(jobs, seen)

    def _not_seen(self, _: StoreError) -> None:
        self._is_looking = False

    def _sweep(self, after: int) -> None:
        def swept(part: Swept) -> None:
            self._is_sweeping = False
            self.has_rows = self.has_rows or part.kept
            if part.last:
                self._sweep(part.last)

        def failed(_: StoreError) -> None:
            self._is_sweeping = False
            self.has_rows = True

        self._is_sweeping = True
        self._commits.put(self._sweep_after(after), swept, failed)


class ValueService:
    """Writes and reads values, and deletes those of deleted jobs.

    ``later`` calls a function after some seconds; ``term`` returns the term of this node. ``is_shared``: whether other nodes
    write to the store, so that the awaited jobs are looked at from time to time. ``mine`` returns whether this node is the first
    in line for a name: one node deletes the values of deleted jobs.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        later: Callable[[float, Callable[[], None]], object],
        waiters: Waiters,
        term: Callable[[], int],
        *,
        is_shared: bool,
        mine: Callable[[str], bool] = lambda _: True,
        sweep_interval: float = SWEEP_INTERVAL,
        root_of: Callable[[int], int] = lambda run: run,
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._later = later
        self.waiters = waiters
        self._term = term
        self._upkeep = Upkeep(
            commits, reads, clock, waiters, LookValues, SweepValues, SWEEP, mine if is_shared else None, sweep_interval
        )
        self.root_of = root_of
        """Returns the job of a run of a workflow, which has the values of its chain."""
        self._unwritten: dict[tuple[int, str], NewValue] = {}
        """The last value of each name, until it is stored."""
        self._failed: dict[tuple[int, str], NewValue] = {}
        """Values that the store could not take. They are written again, unless later ones have come."""

    # ---- writing ----

    def publish(self, values: Sequence[NewValue]) -> None:
        """Store values of jobs that this node holds, before a settlement that follows."""
        for one in values:
            self._unwritten[one.job, one.name] = one
        self._put(values)

    def _put(self, values: Sequence[NewValue]) -> None:
        def done(jobs: Sequence[int]) -> None:
            for one in values:
                if self._unwritten.get((one.job, one.name)) is one:
                    del self._unwritten[one.job, one.name]
            self.written(jobs)

        self._commits.put(PublishValues(values, self._term()), done, lambda error: self._not_written(values, error))

    def written(self, jobs: Sequence[int]) -> None:
        """Note that values of these jobs are stored."""
        if jobs:
            self._upkeep.written()
            self.waiters.written(jobs)

    def _not_written(self, values: Sequence[NewValue], error: StoreError) -> None:
        """Write the values again soon."""
        del error  # the commit queue has logged it
        if not self._failed:
            self._later(RETRY_PAUSE, self._retry)
        self._failed |= {(one.job, one.name): one for one in values}

    def _retry(self) -> None:
        values = [one for key, one in self._failed.items() if self._unwritten.get(key) is one]
        self._failed = {}
        if values:
            self._put(values)

    def check(self, now: float) -> None:
        """Look at awaited jobs, and delete the values of deleted ones. Call it about every second."""
        self._upkeep.check(now)

    # ---- reading ----

    async def read(self, job: int, name: str | None = None) -> list[StoredValue]:
        """Return the stored values of a job, or the one of a name."""
        return await self._reads.read(ReadValues(job, name))
