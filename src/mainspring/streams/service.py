"""The streams of a node's jobs and runs: on their way to the store, and those who read them.

Readers of any node read from the store by the numbers of items, so a slow one costs no queue. They are woken once for each
batch, as those who wait for values are (`values.service.Waiters`). Those who read on from the same number share one read.

The port of streams: what engines that keep them do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.callbacks import Callback
from mainspring.storage.engine import Operation, Phase, Query
from mainspring.streams.model import Block, Head, NewItems, Taken, size_of
from mainspring.values.service import SWEEP_INTERVAL, Seen, Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads
    from mainspring.values.service import Waiters


class AppendItems(Operation):
    """Store items of jobs that are held under a term, in their order. Outcome: what has become of each batch."""

    phase = Phase.PUBLISH
    batches: Sequence[NewItems]
    term: int

    def __post_init__(self) -> None:
        self.rows = 2 * len(self.batches)
        self.size = sum(size_of(item) for one in self.batches for item in one.items) + 200 * len(self.batches)
        self.urgent = False


class SweepStreams(Operation):
    """Delete the streams of jobs that are stored no more: of ``limit`` jobs with ids above ``after``. Outcome: ``Swept``."""

    phase = Phase.LOGS
    after: int = 0
    limit: int = 100

    def __post_init__(self) -> None:
        self.rows = self.limit
        self.urgent = False


class ReadHeads(Query[list[Head]], frozen=True):
    """Read what the streams of a job have, in the order of their names."""

    job: int


class ReadBlocks(Query[list[Block]], frozen=True):
    """Read the blocks of a stream that have items from the number ``offset``, until they have ``size`` bytes; at least one."""

    job: int
    name: str
    offset: int
    size: int


class LookStreams(Query[Seen], frozen=True):
    """Look at some jobs, for all who read their streams. The numbers are those of all items of a job."""

    jobs: tuple[int, ...]


MOST_BLOCKS: Final = 200
"""Blocks that one read returns."""
READ_BYTES: Final = 256 * 1024
"""Bytes that one read returns, with those of its last block."""
SWEEP: Final = "streams sweep"
"""The name under which one node of a store is the first in line for the sweep."""


class StreamService:
    """Writes and reads streams, and deletes those of deleted jobs.

    ``term`` returns the term of this node. ``mine`` returns whether this node is the first in line for a name; None if no other
    node writes to the store.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        waiters: Waiters,
        term: Callable[[], int],
        *,
        mine: Callable[[str], bool] | None = None,
        sweep_interval: float = SWEEP_INTERVAL,
        root_of: Callable[[int], int] = lambda run: run,
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self.waiters = waiters
        self._term = term
        self.root_of = root_of
        """Returns the job of a run of a workflow, which has the streams of its chain."""
        self._upkeep = Upkeep(commits, reads, clock, waiters, LookStreams, SweepStreams, SWEEP, mine, sweep_interval)
        self._shared: dict[ReadBlocks, list[Callable[[list[Block] | StoreError], None]]] = {}
        """Those who wait for a read that is under way."""

    def append(
        self,
        batches: Sequence[NewItems],
        done: Callable[[Sequence[Taken]], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        """Store items of jobs that this node holds, before a settlement that follows.

        ``done`` is called with the outcomes once they are stored. After ``failed``, the writer sends them again.
        """

        def stored(taken: Sequence[Taken]) -> None:
            self.written([one.job for one, what in zip(batches, taken, strict=True) if what is not Taken.LOST])
            done(taken)

        self._commits.put(AppendItems(batches, self._term()), stored, failed)

    def written(self, jobs: Sequence[int]) -> None:
        """Note that items of these jobs are stored."""
        if jobs:
            self._upkeep.written()
            self.waiters.written(sorted(set(jobs)))

    def check(self, now: float) -> None:
        """Look at the jobs whose streams are read, and delete the streams of deleted ones. Call it about every second."""
        self._upkeep.check(now)

    async def heads(self, job: int) -> list[Head]:
        """Return what the streams of a job have."""
        return await self._reads.read(ReadHeads(job))

    async def blocks(self, job: int, name: str, offset: int) -> list[Block]:
        """Return the blocks of a stream that have items from a number: as many as one read returns."""
        query = ReadBlocks(job, name, offset, READ_BYTES)

        def begin(done: Callable[[list[Block]], None], failed: Callable[[StoreError], None]) -> None:
            self._ask(query, lambda found: done(found) if isinstance(found, list) else failed(found))

        return await Callback[list[Block]](begin)

    def _ask(self, query: ReadBlocks, answered: Callable[[list[Block] | StoreError], None]) -> None:
        if query in self._shared:
            self._shared[query].append(answered)
            return
        self._shared[query] = [answered]

        def answer(found: list[Block] | StoreError) -> None:
            first, *others = self._shared.pop(query)
            first(found)
            for one in others:
                if found:
                    one(found)
                else:  # it began before they asked, perhaps because of a batch that has come since
                    self._ask(query, one)

        self._reads.ask(query, answer, answer)
