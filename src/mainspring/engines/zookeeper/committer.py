"""The committer writes all changes of a term in batches: entries that arrive during one multi go out with the next.

Each multi is one batch of many entries, numbered in the journal of its node, which is written with it::

    Check(/workers/n1-7)                                   this node is alive, and its term has not been ended
    Write(/journals/n1-7, {"batch": 31, "counts": …}, 30)  the version: no batch can happen twice
    Check(/master_term, 12)                                if it has entries of the master: it is still the master
    … the entries' changes …

An unknown outcome (the connection was lost) is read in the journal. A batch that is sent again although it was committed is
refused by the journal's version, and so is a late arrival of the first copy. The journal is the second change, so that this
refusal comes before conflicts of the entries with the batch's own effects.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import structlog

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.tree import (
    Change,
    Check,
    Create,
    Done,
    Refused,
    SessionEndedError,
    TooLargeError,
    UnknownOutcomeError,
    Write,
)
from mainspring.errors import StoreBrokenError, StoreError, StoreUnavailableError
from mainspring.jobs.model import Job, counted_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.engines.zookeeper.tree import Refusal, Tree

TOTAL: Final = paths.journal("total")
"""The journal in which a master adds up the counts of ended nodes."""
MAX_COUNTS: Final = 200
"""Counts in a journal; more go to a node of their own, so that not every batch has to write them."""
MAX_BYTES: Final = 20_000
"""Bytes of a journal; more counts go to a node of their own, too: names of functions may be long, and the journal shares its
packet with a batch."""

Count = tuple[bytes, int, int, int]
"""Function, state, priority, and the change of their number."""
Counts = dict[tuple[bytes, int, int], int]
"""By function, state and priority; held jobs are LEASED, whether or not they are recorded as running."""


def begin(who: str) -> list[Change]:
    """Return the creation of an empty journal, for the multi that starts the term."""
    return [Create(paths.journal(who), journal_data(0, {}))]


def journal_data(batch: int, counts: Counts) -> bytes:
    """Return a journal's data."""
    encoded = [[paths.encode_function(function), *key, number] for (function, *key), number in counts.items()]
    return records.encode({"batch": batch, "counts": encoded})


def counted(before: Counts, changes: Iterable[Count]) -> Counts:
    """Return counts after some changes; without changes the same object."""
    after: Counts | None = None
    for function, state, priority, number in changes:
        if after is None:
            after = dict(before)
        key = (function, counted_as(int(state)), int(priority))
        after[key] = after.get(key, 0) + number
    return before if after is None else {key: number for key, number in after.items() if number}


def total(journals: Iterable[bytes]) -> Counts:
    """Return the sum of the counts of all journals."""
    sums: Counts = {}
    for data in journals:
        for function, state, priority, number in records.decode(data).get("counts", ()):
            key = (paths.decode_function(function), state, priority)
            sums[key] = sums.get(key, 0) + number
    return {key: number for key, number in sums.items() if number}


MAX_CHANGES: Final = 400
"""Changes in one multi: more would delay all callers in it, and the ensemble."""
MAX_BATCH_BYTES: Final = 700_000
"""Approximate bytes in one multi. A server refuses a packet larger than ``jute.maxbuffer``, by default 1,048,575 bytes."""
MAX_ENTRY_BYTES: Final = 1_020_000
"""Approximate bytes of one entry; the rest of the packet is for the guards and the journal."""
RETRY_DELAY: Final = 0.2
"""Seconds between attempts while the ensemble does not answer."""

log = structlog.get_logger("mainspring.zookeeper")


class Entry:
    """Changes that are committed as a whole or not at all, with their changes of the counts."""

    __slots__ = ("changes", "counts", "size")

    def __init__(self, changes: Sequence[Change], counts: Sequence[Count] = ()) -> None:
        self.changes = changes
        self.counts = counts
        size = 0
        for change in changes:
            size += len(change.path) + 40
            if isinstance(change, (Create, Write)):
                size += len(change.data)
        if counts:  # nearly always of one function
            size += len(counts) * (3 * len(counts[0][0]) + 40)
        self.size = size
        """Approximate bytes in a packet, with its counts in the journal."""


def moved(job: Job, before: int) -> list[Count]:
    """Return the changes of the counts for a job that has got another state."""
    return [(job.function, before, job.priority, -1), (job.function, job.state, job.priority, 1)]


class Conflict(NamedTuple):
    """The verdict on an entry that was refused because a node is not as expected."""

    at: int
    """The index of the refused change in the entry."""
    why: Refusal
    path: str


class Fenced(NamedTuple):
    """The verdict on an entry that was refused because its sender may no longer write."""

    path: str
    """The guard that did not hold."""


Verdict = Conflict | Fenced | None
"""The verdict on an entry; None: it was committed."""


class NotAttempted(NamedTuple):
    """The verdict on an entry that was not sent, because an earlier one of the same call had a conflict."""


@dataclass(slots=True, eq=False)
class _Request:
    """The entries of one call, until all have a verdict."""

    guards: Sequence[Check]
    until_conflict: bool
    future: _Future
    verdicts: list[Verdict | NotAttempted]
    left: int

    def decide(self, place: int, verdict: Verdict | NotAttempted) -> None:
        self.verdicts[place] = verdict
        self.left -= 1
        if not self.left and not self.future.done():
            self.future.set_result(self.verdicts)

    def fail(self, error: StoreError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


_Future = asyncio.Future[list[Verdict | NotAttempted]]
_Item = tuple[_Request, int, Entry]


class Committer:
    """Writes for one term of one node. Once the term is fenced, it fences all entries."""

    def __init__(self, tree: Tree, who: str) -> None:
        """``who`` is the worker whose ephemeral node and journal these are; `journal.begin` creates the journal."""
        self._tree = tree
        self._guard = Check(paths.worker(who))
        self._path = paths.journal(who)
        self._version = 0
        self._batch = 0
        self._counts: Counts = {}
        self._spills = 0
        self._waiting: deque[_Item] = deque()
        self._batch_limit = 1 << 30
        """The most entries of the next batch: halved after a refusal, then doubled with each batch."""
        self._sender: asyncio.Task[None] | None = None
        self.fenced = False
        self.batches = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to write."""
        return self._sender is None

    async def commit(self, entries: Sequence[Entry], guards: Sequence[Check] = ()) -> list[Verdict]:
        """Write entries in their order, and return the verdict on each. While the ensemble is away, it waits.

        They may go out in several multis, with entries of other callers. The cancellation of a caller does not stop them.
        Raises StoreUnavailableError if the term ends (`close`) while their outcome is unknown, StoreError for an entry that is
        too large for a packet: then none of the call's later entries is written.
        """
        verdicts = await self._put(entries, guards, until_conflict=False)
        return cast("list[Verdict]", verdicts)

    async def commit_until_conflict(self, entries: Sequence[Entry]) -> list[Verdict | NotAttempted]:
        """Write entries as `commit` does, but none after the first conflict: more conflicts are then likely.

        Each conflict costs a multi; a read before the write costs less.
        """
        return await self._put(entries, (), until_conflict=True)

    async def _put(
        self, entries: Sequence[Entry], guards: Sequence[Check], *, until_conflict: bool
    ) -> list[Verdict | NotAttempted]:
        if self.fenced:
            return [Fenced(self._guard.path)] * len(entries)
        if not entries:
            return []
        largest = max(entry.size for entry in entries)
        if largest > MAX_ENTRY_BYTES:
            # Here and not in the batch, where it would fail the entries of all callers.
            raise StoreError(
                f"changes of {largest:,} bytes have to be written at once, and a server accepts {MAX_ENTRY_BYTES:,} bytes"
            )
        loop, number = asyncio.get_running_loop(), len(entries)
        request = _Request(guards, until_conflict, loop.create_future(), [None] * number, number)
        self._waiting.extend((request, place, entry) for place, entry in enumerate(entries))
        if self._sender is None:
            self._sender = loop.create_task(self._send(), name="zookeeper batches")
        return await request.future

    def fence(self) -> None:
        """Fence all waiting entries and all later ones: with that the term is over, and the node's next heartbeat fails."""
        self.fenced = True
        while self._waiting:
            request, place, _ = self._waiting.popleft()
            request.decide(place, Fenced(self._guard.path))

    async def close(self) -> None:
        """Stop sending, and fence all waiting entries."""
        self.fence()
        sender = self._sender
        if sender is not None:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    # ---- sending ----

    async def _send(self) -> None:
        batch: list[_Item] = []
        try:
            await asyncio.sleep(0)  # further calls of this loop iteration join the batch
            while self._waiting:
                batch, guards = self._next()
                await self._write(batch, guards)
                batch = []
        except asyncio.CancelledError:
            self._fail(batch, StoreUnavailableError("the term has ended while the outcome of a batch was unknown"))
            raise
        except Exception as error:  # noqa: BLE001 - the callers would wait for ever
            self._break(batch, error)
        finally:
            self._sender = None

    def _next(self) -> tuple[list[_Item], list[Check]]:
        """Remove the next batch from the queue, and return it with the guards of its entries."""
        batch: list[_Item] = []
        guards: dict[Check, None] = {}
        changes = size = 0
        while self._waiting and len(batch) < self._batch_limit:
            item = self._waiting[0]
            entry = item[2]
            changes += len(entry.changes)
            size += entry.size
            if batch and (changes > MAX_CHANGES or size > MAX_BATCH_BYTES):
                break
            guards.update(dict.fromkeys(item[0].guards))
            batch.append(self._waiting.popleft())
        return batch, list(guards)

    async def _write(self, batch: list[_Item], guards: list[Check]) -> None:
        """Send a batch until its outcome is known."""
        counts, journal, spill = self._counted(batch)
        changes: list[Change] = [self._guard, Write(self._path, journal, self._version), *guards]
        places: list[tuple[int, int]] = []
        for number, (_, _, entry) in enumerate(batch):
            for at in range(len(entry.changes)):
                places.append((number, at))  # noqa: PERF401 - the same loop collects the changes
            changes.extend(entry.changes)
        changes.extend(spill)
        self.batches += 1
        try:
            outcome = await self._outcome(changes)
        except TooLargeError as error:
            self._split(batch, error)
            return
        if outcome is None:
            self.fence()
            for request, place, _ in batch:
                request.decide(place, Fenced(self._guard.path))
        elif isinstance(outcome, Done):
            self._version += 1
            self._batch += 1
            self._counts = counts
            self._spills += len(spill)
            self._batch_limit = min(self._batch_limit * 2, 1 << 30)
            for request, place, _ in batch:
                request.decide(place, None)
        else:
            if outcome.at == 1:
                await self._log_foreign_journal()
            self._refused(batch, guards, places, outcome)

    def _split(self, batch: list[_Item], error: TooLargeError) -> None:
        """Put a batch that is too large for a packet back, for smaller batches; one of a single entry fails its caller."""
        if len(batch) > 1:
            self._batch_limit = len(batch) // 2
            self._waiting.extendleft(reversed(batch))
            return
        request = batch[0][0]
        self._waiting = deque(item for item in self._waiting if item[0] is not request)
        request.fail(error)

    async def _log_foreign_journal(self) -> None:
        """Log why the journal is not as this node's last batch has left it: only one writer can be right."""
        try:
            await self._tree.sync()
            journal = await self._tree.get(self._path)
        except (StoreUnavailableError, SessionEndedError):
            return
        if journal is None:
            log.error("another client has deleted the journal: the term ends", journal=self._path)
        elif journal.version < self._version:
            log.critical(
                "the ensemble has lost acknowledged writes: the journal is behind, and jobs may be lost; see which versions of "
                "ZooKeeper keep writes in Run on ZooKeeper. The term ends",
                journal=self._path,
                version=journal.version,
                written=self._version,
            )
        else:
            log.error("another client has written the journal: the term ends", journal=self._path)

    def _refused(
        self, batch: list[_Item], guards: list[Check], places: list[tuple[int, int]], outcome: Refused
    ) -> None:
        """Remove the refused entry, and put the others back in their order, for smaller batches."""
        at = outcome.at - 2
        if at < 0:
            # Its node is gone, or another writer has changed the journal.
            for request, place, _ in batch:
                request.decide(place, Fenced(self._guard.path))
            self.fence()
        elif at < len(guards):
            rest = []
            for item in batch:
                if guards[at] in item[0].guards:
                    item[0].decide(item[1], Fenced(guards[at].path))
                else:
                    rest.append(item)
            self._waiting.extendleft(reversed(rest))
        else:
            number, change = places[at - len(guards)]
            request, place, entry = batch.pop(number)
            self._batch_limit = max(len(batch) // 2, 1)
            if request.until_conflict:
                later, batch = batch[number:], batch[:number]
                self._waiting.extendleft(reversed(later))
                self._return_unsent(request)
            self._waiting.extendleft(reversed(batch))
            request.decide(place, Conflict(change, outcome.why, entry.changes[change].path))

    def _return_unsent(self, until_conflict: _Request) -> None:
        """Return the waiting entries of a call that stops at its first conflict."""
        waiting, self._waiting = self._waiting, deque()
        for item in waiting:
            if item[0] is until_conflict:
                until_conflict.decide(item[1], NotAttempted())
            else:
                self._waiting.append(item)

    async def _outcome(self, changes: Sequence[Change]) -> Done | Refused | None:
        """Send a multi, and return its outcome; None if this node's term is over and it was not committed."""
        sent = False
        while True:
            try:
                outcome = await self._tree.commit(changes)
            except UnknownOutcomeError:
                happened = await self._has_happened()
                if happened is None:
                    return None
                if happened:
                    return Done(())
                sent = True
            except StoreUnavailableError:
                await asyncio.sleep(RETRY_DELAY)
            except SessionEndedError:
                return Done(()) if sent and await self._has_happened() else None
            else:
                if sent and isinstance(outcome, Refused) and await self._rule_out():
                    return Done(())  # an earlier copy was committed
                return outcome

    async def _rule_out(self) -> bool:
        """Make sure that no copy of the current batch can be committed any more; return whether one was.

        It was refused, but an earlier copy may still arrive and find the tree changed. A write of the unchanged journal gives it
        another version, by which that copy is refused.
        """
        changes: list[Change] = [
            self._guard,
            Write(self._path, journal_data(self._batch, self._counts), self._version),
        ]
        while True:
            happened = await self._has_happened()
            if happened is not False:
                return bool(happened)
            try:
                outcome = await self._tree.commit(changes)
            except UnknownOutcomeError:
                continue
            except StoreUnavailableError:
                await asyncio.sleep(RETRY_DELAY)
                continue
            except SessionEndedError:
                return bool(await self._has_happened())
            if isinstance(outcome, Refused) and (outcome.at == 0 or await self._has_happened()):
                continue
            self._version += 1  # by this write, or by one before whose answer was lost
            return False

    async def _has_happened(self) -> bool | None:
        """Return whether the current batch is in the journal; None if it is not and never will be, since the term is over.

        If it is not there yet, it may be sent again; the copy may then arrive before the original.
        """
        while True:
            try:
                await self._tree.sync()
                # In this order: once the worker is gone, the journal does not change any more.
                worker, journal = await self._tree.get_many([self._guard.path, self._path])
            except (StoreUnavailableError, SessionEndedError):
                await asyncio.sleep(RETRY_DELAY)  # the next session can read it as well
            else:
                if journal is not None and records.decode(journal.data).get("batch", 0) > self._batch:
                    return True
                return False if worker is not None else None

    def _counted(self, batch: Sequence[_Item]) -> tuple[Counts, bytes, list[Change]]:
        """Return the counts and the journal after a batch, and the node for counts that have become too many."""
        counts = counted(self._counts, (count for _, _, entry in batch for count in entry.counts))
        journal = journal_data(self._batch + 1, counts)
        if len(counts) <= MAX_COUNTS and len(journal) <= MAX_BYTES:
            return counts, journal, []
        spill = Create(f"{self._path}.{self._spills}", journal_data(0, counts))
        return {}, journal_data(self._batch + 1, {}), [spill]

    # ---- the end ----

    def _break(self, batch: list[_Item], error: Exception) -> None:
        """Fail all waiting callers: because of a defect, the outcome of a batch is unknown."""
        self.fenced = True
        if isinstance(error, StoreError):
            broken = error
        else:
            broken = StoreBrokenError(f"a defect in the store's code: the outcome of a batch is unknown: {error!r}")
            broken.__cause__ = error
        self._fail([*batch, *self._waiting], broken)
        self._waiting.clear()

    @staticmethod
    def _fail(items: Iterable[_Item], error: StoreError) -> None:
        for request in {id(item[0]): item[0] for item in items}.values():
            request.fail(error)
