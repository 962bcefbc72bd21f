"""The one way to write: what gathers while one multi is under way goes out with the next.

Each multi is one batch of many entries, numbered in the journal of its node, which is written with it::

    Check(/workers/n1-7)                                   this node is alive, and nobody has ended its term
    Write(/journals/n1-7, {"batch": 31, "counts": …}, 30)  the version: no batch can happen twice
    Check(/master_term, 12)                                where the master has entries in it: it is the master still
    … the entries' changes …

An outcome that nobody knows (the connection was lost) is read in the journal. Whoever sends a batch again that has happened is
refused by the journal's version, so a late arrival of the first one does no harm either: it is the second change, so that
nobody takes what the batch itself has done for somebody else's doing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import structlog

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.journal import MOST_COUNTS, counted, journal_data
from mainspring.engines.zookeeper.tree import (
    Change,
    Check,
    Create,
    Done,
    Refused,
    SessionEndedError,
    UnknownOutcomeError,
    Write,
)
from mainspring.errors import StoreBrokenError, StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.engines.zookeeper.journal import Count, Counts
    from mainspring.engines.zookeeper.tree import Refusal, Tree

MOST_CHANGES: Final = 400
"""Changes in one multi: more make everybody in it wait longer, and the ensemble with them."""
MOST_BYTES: Final = 700_000
"""Bytes in one multi, about. A server refuses a packet of more than ``jute.maxbuffer``, by default 1,048,575 bytes."""
LARGEST_ENTRY: Final = 1_020_000
"""Bytes of one entry, about, with room for the guards and the journal beside it."""
RETRY_DELAY: Final = 0.2
"""Seconds between attempts while the ensemble does not answer."""

log = structlog.get_logger("mainspring.zookeeper")


class Entry:
    """Changes that happen together or not at all, and how they change the counts."""

    __slots__ = ("changes", "counts", "size")

    def __init__(self, changes: Sequence[Change], counts: Sequence[Count] = ()) -> None:
        self.changes = changes
        self.counts = counts
        size = 0
        for change in changes:
            size += len(change.path) + 40
            if isinstance(change, (Create, Write)):
                size += len(change.data)
        self.size = size
        """Bytes in a packet, about."""


class Conflict(NamedTuple):
    """An entry of which nothing has happened, because the tree is not as it was thought to be."""

    at: int
    """Which of the entry's changes was refused."""
    why: Refusal
    path: str


class Fenced(NamedTuple):
    """An entry of which nothing has happened, and nothing will: who sent it may not write any more."""

    path: str
    """The guard that did not hold."""


Verdict = Conflict | Fenced | None
"""What became of an entry; None: it has happened."""


class NotAttempted(NamedTuple):
    """An entry of which nothing has happened: one before it, of the same call, has met a conflict."""


class _Request:
    """Entries of one caller that are not all decided."""

    __slots__ = ("future", "guards", "hasty", "left", "verdicts")

    def __init__(self, number: int, guards: Sequence[Check], future: _Future, *, hasty: bool) -> None:
        self.guards = guards
        self.hasty = hasty
        self.verdicts: list[Verdict | NotAttempted] = [None] * number
        self.left = number
        self.future = future

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
    """Writes for one term of one node. Once that is fenced, everything is."""

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
        self._most = 1 << 30
        """How many entries the next batches may have: fewer after one was refused, until that one is through."""
        self._sender: asyncio.Task[None] | None = None
        self.fenced = False
        self.batches = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is to be written."""
        return self._sender is None

    async def commit(self, entries: Sequence[Entry], guards: Sequence[Check] = ()) -> list[Verdict]:
        """Write entries, in their order, and return what became of each, however long the ensemble is away.

        They may go out in several multis, together with others'. Whoever stops waiting for it stops nothing.
        Raises StoreUnavailableError where the term ends (`close`) while nobody can find out what became of them, StoreError for
        an entry that no packet holds.
        """
        verdicts = await self._put(entries, guards, hasty=False)
        return cast("list[Verdict]", verdicts)

    async def commit_until_conflict(self, entries: Sequence[Entry]) -> list[Verdict | NotAttempted]:
        """Write entries as `commit` does, but none after the first conflict: where there is one, there may be many.

        Each conflict costs a multi, and to read first what is there costs less.
        """
        return await self._put(entries, (), hasty=True)

    async def _put(
        self, entries: Sequence[Entry], guards: Sequence[Check], *, hasty: bool
    ) -> list[Verdict | NotAttempted]:
        if self.fenced:
            return [Fenced(self._guard.path)] * len(entries)
        if not entries:
            return []
        largest = max(entry.size for entry in entries)
        if largest > LARGEST_ENTRY:
            # Not in the batch: that would be everybody's.
            raise StoreError(
                f"changes of {largest:,} bytes belong together, and a server takes {LARGEST_ENTRY:,} at once"
            )
        request = _Request(len(entries), guards, asyncio.get_running_loop().create_future(), hasty=hasty)
        self._waiting.extend((request, place, entry) for place, entry in enumerate(entries))
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send(), name="zookeeper batches")
        return await request.future

    async def close(self) -> None:
        """Send nothing more; who waits is told that it is fenced."""
        self.fenced = True
        sender = self._sender
        if sender is not None:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        self._fence_all()

    # ---- sending ----

    async def _send(self) -> None:
        batch: list[_Item] = []
        try:
            await asyncio.sleep(0)  # whoever has something to write in this turn of the loop comes along
            while self._waiting:
                batch, guards = self._next()
                await self._write(batch, guards)
                batch = []
        except asyncio.CancelledError:
            self._fail(batch, StoreUnavailableError("the term has ended while nobody knows what became of a batch"))
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits would wait for ever
            self._break(batch, error)
        finally:
            self._sender = None

    def _next(self) -> tuple[list[_Item], list[Check]]:
        """Take the next batch from what waits, and the guards that its entries have."""
        batch: list[_Item] = []
        guards: dict[Check, None] = {}
        changes = size = 0
        while self._waiting and len(batch) < self._most:
            item = self._waiting[0]
            entry = item[2]
            changes += len(entry.changes)
            size += entry.size
            if batch and (changes > MOST_CHANGES or size > MOST_BYTES):
                break
            guards.update(dict.fromkeys(item[0].guards))
            batch.append(self._waiting.popleft())
        return batch, list(guards)

    async def _write(self, batch: list[_Item], guards: list[Check]) -> None:
        """Send a batch until it is known what became of it."""
        counts, spill = self._counted(batch)
        changes: list[Change] = [
            self._guard,
            Write(self._path, journal_data(self._batch + 1, counts), self._version),
            *guards,
        ]
        places: list[tuple[int, int]] = []
        for number, (_, _, entry) in enumerate(batch):
            for at in range(len(entry.changes)):
                places.append((number, at))  # noqa: PERF401 - the changes are gathered beside it
            changes.extend(entry.changes)
        changes.extend(spill)
        self.batches += 1
        outcome = await self._outcome(changes)
        if outcome is None:
            self._fenced()
            for request, place, _ in batch:
                request.decide(place, Fenced(self._guard.path))
        elif isinstance(outcome, Done):
            self._version += 1
            self._batch += 1
            self._counts = counts
            self._spills += len(spill)
            self._most = min(self._most * 2, 1 << 30)
            for request, place, _ in batch:
                request.decide(place, None)
        else:
            self._refused(batch, guards, places, outcome)

    def _refused(
        self, batch: list[_Item], guards: list[Check], places: list[tuple[int, int]], outcome: Refused
    ) -> None:
        """Take out what was refused, and put the rest back in its order, to go out in halves."""
        at = outcome.at - 2
        if at < 0:
            # Its node is gone; or the journal is not as this node left it: somebody else writes it, and only one can be right.
            if at == -1:
                log.error("the journal was written by somebody else", journal=self._path)
            for request, place, _ in batch:
                request.decide(place, Fenced(self._guard.path))
            self._fenced()
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
            self._most = max(len(batch) // 2, 1)
            if request.hasty:
                later, batch = batch[number:], batch[:number]
                self._waiting.extendleft(reversed(later))
                self._withhold(request)
            self._waiting.extendleft(reversed(batch))
            request.decide(place, Conflict(change, outcome.why, entry.changes[change].path))

    def _withhold(self, hasty: _Request) -> None:
        """Give back what waits of a call that does not want to be written after a conflict."""
        waiting, self._waiting = self._waiting, deque()
        for item in waiting:
            if item[0] is hasty:
                hasty.decide(item[1], NotAttempted())
            else:
                self._waiting.append(item)

    async def _outcome(self, changes: Sequence[Change]) -> Done | Refused | None:
        """Send a multi, and find out what became of it; None where this node's term is over, and it has not happened."""
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
                    return Done(())  # what was sent before has arrived at last
                return outcome

    async def _rule_out(self) -> bool:
        """See to it that no copy of the batch under way happens any more; says whether one has.

        It was refused, but a copy that was sent before may be on its way, and find the tree changed. Writing the journal as it is
        gives it another version, by which that copy is refused.
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
        """Return whether the batch under way is in the journal; None where it is not and never will be, for the term is over.

        Where it is not there yet it may be sent again, and come before itself.
        """
        while True:
            try:
                await self._tree.sync()
                # In this order: once the worker is gone, nothing comes into the journal any more.
                worker, journal = await self._tree.get_many([self._guard.path, self._path])
            except (StoreUnavailableError, SessionEndedError):
                await asyncio.sleep(RETRY_DELAY)  # the next session can read it as well
            else:
                if journal is not None and records.decode(journal.data).get("batch", 0) > self._batch:
                    return True
                return False if worker is not None else None

    def _counted(self, batch: Sequence[_Item]) -> tuple[Counts, list[Change]]:
        """Return the journal's counts after a batch, and where those go that have become too many."""
        counts = counted(self._counts, (count for _, _, entry in batch for count in entry.counts))
        if len(counts) <= MOST_COUNTS:
            return counts, []
        return {}, [Create(f"{self._path}.{self._spills}", journal_data(0, counts))]

    # ---- the end ----

    def _fenced(self) -> None:
        self.fenced = True
        self._fence_all()

    def _fence_all(self) -> None:
        while self._waiting:
            request, place, _ = self._waiting.popleft()
            request.decide(place, Fenced(self._guard.path))

    def _break(self, batch: list[_Item], error: Exception) -> None:
        """Nobody knows what became of a batch, because of a defect: say so to all who wait."""
        self.fenced = True
        if isinstance(error, StoreError):
            broken = error
        else:
            broken = StoreBrokenError(f"a defect in the store's code: nobody knows what became of a batch: {error!r}")
            broken.__cause__ = error
        self._fail([*batch, *self._waiting], broken)
        self._waiting.clear()

    @staticmethod
    def _fail(items: Iterable[_Item], error: StoreError) -> None:
        for request in {id(item[0]): item[0] for item in items}.values():
            request.fail(error)
