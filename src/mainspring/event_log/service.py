"""The event log on one node: it numbers new events, reloads the interests of other nodes, and deletes old events.

Nobody's interest in events costs nothing: without interests a node of a shared store looks once in ten seconds for those of
others, whose messages were lost.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mainspring.callbacks import Callback
from mainspring.clock import to_us
from mainspring.errors import ConflictError
from mainspring.event_log.interests import Interest
from mainspring.event_log.store import (
    READER_SECONDS,
    EndSeries,
    MoveCursor,
    NumberEvents,
    RecordEvents,
    RecordSeries,
    SaveInterests,
    ShowInterests,
    ShowLogEnds,
    StoredInterest,
    SweepEvents,
)
from mainspring.event_log.types import TYPES
from mainspring.events import InterestsChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mainspring.callbacks import Done, Failed
    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.event_log.interests import CurrentInterests, NewEvent
    from mainspring.event_log.store import AllInterests, LogEnds, Numbered
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.engine import Query
    from mainspring.storage.reads import Reads

T = TypeVar("T")

LOOK_INTERVAL: Final = 0.75
"""Seconds between two looks of waiting readers at events that other nodes have numbered, and at events without a number. A node
looks at its next tick, a moment later."""
RELOAD_INTERVAL: Final = 10.0
"""Seconds between two reads of all interests: some end by themselves, and a message about a change may be lost."""
SWEEP_INTERVAL: Final = 60.0
"""Seconds between two deletions of old events."""
IDLE_SWEEP_INTERVAL: Final = 3600.0
"""The same while nobody wants events: those of before grow old as well."""
MOST_INTERESTS: Final = 2_000
"""Interests of a store: each event is compared with those that have its type."""
MOST_UNRECORDED: Final = 10_000
"""Events without an operation that wait for a store that is away."""
READER: Final = "reader:"
"""The ids of the interests of readers begin so."""
MOST_FILTERS: Final = 50
"""Different filters of the readers of a namespace: further readers have all of its events recorded, by one filter. So nobody can
keep others from reading by making up filters."""
EVENTS_KEY: Final = "events"
"""The name by which one node is the first that sweeps, and that numbers events of nodes that have ended."""


class EventLog:
    """The event log of a node. The node calls ``tick`` several times a second.

    ``current`` has the interests by which its store records events. ``call_soon`` calls a function in the next turn of the loop.
    On a shared store ``first`` returns whether this node is the first in line for a name, and ``announce`` sends a message to
    the other nodes. ``retention`` is in seconds, and ``most`` a number of events.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        current: CurrentInterests,
        call_soon: Callable[[Callable[[], object]], object],
        *,
        first: Callable[[str], bool] | None,
        announce: Callable[[InterestsChanged], None] = lambda _: None,
        retention: float,
        most: int,
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._current = current
        self._call_soon = call_soon
        self._first = first
        self._announce = announce
        self._retention = retention
        self._most = most
        self._own_listeners: list[Callable[[], None]] = []
        self._change_listeners: list[Callable[[], None]] = []
        self._unrecorded: list[NewEvent] = []
        self._waiting: list[Callable[[], object]] = []
        self._under_way: dict[tuple[Query[Any], int], list[tuple[Done, Failed]]] = {}
        self.growths = 0
        """How often there may have been new events so far."""
        self._all: AllInterests | None = None
        self._is_numbering = self._has_more = self._is_reloading = self._is_telling = False
        self._look_at = self._reload_at = self._noted_at = clock.monotonic()
        self._sweep_at = self._look_at + SWEEP_INTERVAL
        self._version: int | None = None
        """The version of the interests in the store that was noted last, at the monotonic time ``_noted_at``."""
        current.subscribe(self.written, self.changed_elsewhere)

    # ---- growth ----

    def written(self, numbered: bool) -> None:
        """Note that a group of this node has committed events, and whether they have their numbers."""
        if numbered:
            self._grown()
        elif self._is_numbering:
            self._has_more = True
        else:
            self._number()

    def _number(self) -> None:
        self._is_numbering, self._has_more = True, False
        self._commits.put(NumberEvents(), self._numbered, self._not_numbered)

    def _numbered(self, outcome: Numbered) -> None:
        self._is_numbering = False
        if outcome.number:
            self._grown()
        if outcome.more or self._has_more:
            self._number()

    def _not_numbered(self, error: StoreError) -> None:
        del error  # the next look numbers them
        self._is_numbering = False

    @property
    def is_read(self) -> bool:
        """Whether a reader waits for new events: the node must look for those of others."""
        return bool(self._waiting)

    async def grown(self, seen: int) -> None:
        """Return once there may be new events since ``growths`` was ``seen``; after about a second in any case."""
        if seen == self.growths:
            await Callback[None](lambda done, _: self._waiting.append(lambda: done(None)))

    def _grown(self) -> None:
        for listener in self._own_listeners:
            listener()
        self._grown_anywhere()

    def _grown_anywhere(self) -> None:
        self.growths += 1
        if self._waiting and not self._is_telling:
            self._is_telling = True
            self._call_soon(self._tell)

    def subscribe_own(self, listener: Callable[[], None]) -> None:
        """Call a function when there are new events of this node, at once after their commit: it may only plan work."""
        self._own_listeners.append(listener)

    def _tell(self) -> None:
        self._is_telling = False
        waiting, self._waiting = self._waiting, []
        for reader in waiting:
            reader()

    # ---- events without an operation ----

    def record(self, event: NewEvent) -> None:
        """Record an event that no operation causes, if somebody wants it, with the group that is committed next."""
        if self._current.now.wants(event):
            self._put([event])

    def _put(self, events: list[NewEvent]) -> None:
        self._commits.put(RecordEvents(events), lambda _: None, lambda _: self._not_recorded(events))

    def _not_recorded(self, events: list[NewEvent]) -> None:
        """Keep events for the next look: the store was away, or another term begins."""
        self._unrecorded += events[: max(MOST_UNRECORDED - len(self._unrecorded), 0)]

    def note(self, key: bytes, event: NewEvent, pause_us: int) -> None:
        """Note that a state goes on: the event is recorded when it begins, if somebody wants it; see `RecordSeries`."""
        if self._current.now.wants(event):
            self._commits.put(RecordSeries(key, event, self._now_us(), pause_us), lambda _: None, lambda _: None)

    def end(self, key: bytes) -> None:
        """Note that a state has ended, which this node has noted before."""
        self._commits.put(EndSeries(key), lambda _: None, lambda _: None)

    # ---- reading ----

    async def read(self, query: Query[T]) -> T:
        """Return the answer to a query. Readers who ask the same, with no new events in between, share one answer."""
        answer: T = await Callback(partial(self._share, (query, self.growths)))
        return answer

    def _share(self, key: tuple[Query[Any], int], done: Done, failed: Failed) -> None:
        sharing = self._under_way.get(key)
        if sharing is not None:
            sharing.append((done, failed))
            return
        self._under_way[key] = [(done, failed)]
        self._reads.ask(key[0], partial(self._answered, key), partial(self._failed, key))

    def _answered(self, key: tuple[Query[Any], int], answer: Any) -> None:
        for done, _ in self._under_way.pop(key):
            done(answer)

    def _failed(self, key: tuple[Query[Any], int], error: StoreError) -> None:
        for _, failed in self._under_way.pop(key):
            failed(error)

    async def ends(self) -> LogEnds:
        """Return the ends of the log, as they are now."""
        return await self._reads.read(ShowLogEnds())

    async def shared_ends(self) -> LogEnds:
        """Return the ends of the log, perhaps as a read has them that began a moment ago, and after the last growth."""
        return await self.read(ShowLogEnds())

    # ---- interests ----

    async def save(self, saved: Sequence[StoredInterest], removed: Collection[str] = ()) -> AllInterests:
        """Save interests and remove others; return all. Raises ConflictError if there would be too many.

        This node records events of causes that begin after it returns, the other nodes do so a moment later.
        """
        stored = set() if self._all is None else {one.id for one in self._all.interests}
        wanted = {one.id for one in saved}
        if len(stored | wanted) > MOST_INTERESTS and wanted - stored:
            raise ConflictError(
                f"this store has {MOST_INTERESTS} readers, listeners and webhooks with different filters, and takes no more:"
                " use the filter of another one, or remove one"
            )
        self.use(await self._commits.committed(SaveInterests(self._now_us(), saved, removed)))
        assert self._all is not None
        self._announce(InterestsChanged(self._all.version))
        return self._all

    async def stored(self) -> AllInterests:
        """Return all interests, as they are in the store now."""
        return await self._reads.read(ShowInterests())

    async def move(self, cursor: str, number: int) -> int | None:
        """Move a cursor forward to a number; return its place. None if there is no such cursor."""
        place: int | None = await self._commits.committed(MoveCursor(cursor, number))
        return place

    async def want(self, interest: Interest) -> int:
        """Have the events of an interest recorded for the next ten minutes at least. A reader calls it every few minutes.

        It is saved for five minutes more, so that not each call has to save it.
        Returns the number behind which all of its events were recorded: a reader whose place is lower has missed some.
        """
        now_us = self._now_us()
        of_readers = {
            one.id: one.until_us
            for one in (() if self._all is None else self._all.interests)
            if one.id.startswith(READER) and one.interest.namespace == interest.namespace and one.until_us > now_us
        }
        name = READER + _digest(interest)
        if name not in of_readers and len(of_readers) >= MOST_FILTERS:
            interest = Interest(frozenset(TYPES), interest.namespace)
            name = READER + _digest(interest)
        if of_readers.get(name, 0) < now_us + to_us(READER_SECONDS):
            await self.save([StoredInterest(name, interest, now_us + to_us(1.5 * READER_SECONDS))])
        assert self._all is not None
        return self._all.complete_from(interest, now_us)

    def use(self, interests: AllInterests) -> None:
        """Use interests that were read or written, unless newer ones are known."""
        if self._all is None or interests.version >= self._all.version:
            self._all = interests
            self._current.use(interests.at(self._now_us()))

    def changed_here(self) -> None:
        """Read the interests again, and let the other nodes do so: an operation of this node has changed them."""
        self._reload()
        self._announce(InterestsChanged(0 if self._all is None else self._all.version + 1))

    def changed_elsewhere(self) -> None:
        """Read the interests again: another node says that it has changed them."""
        self._reload_at = self._clock.monotonic()
        self._reload()

    def note_version(self, version: int) -> None:
        """Note the version of the interests in the store, and read them if it is newer."""
        self._noted_at, self._version = self._clock.monotonic(), version
        if self._all is not None and version > self._all.version:
            self._reload()

    def _check(self, now: float) -> None:
        """Read the interests again, or end those whose time has passed: without a read, if no others are in the store."""
        stored = self._all
        if stored is None or stored.version != self._version or now - self._noted_at > RELOAD_INTERVAL / 2:
            self._reload()
        else:
            self._reload_at = now + RELOAD_INTERVAL
            self._current.use(stored.at(self._now_us()))

    def _reload(self) -> None:
        if self._is_reloading:
            return
        self._is_reloading = True
        self._reload_at = self._clock.monotonic() + RELOAD_INTERVAL
        self._reads.ask(ShowInterests(), self._reloaded, self._not_reloaded)

    def _reloaded(self, interests: AllInterests) -> None:
        self._is_reloading = False
        if self._all is None or interests.version > self._all.version:
            for listener in self._change_listeners:
                listener()
        self.use(interests)

    def subscribe_changes(self, listener: Callable[[], None]) -> None:
        """Call a function when this node has learned that interests have changed."""
        self._change_listeners.append(listener)

    def _not_reloaded(self, error: StoreError) -> None:
        del error  # the next look repeats it
        self._is_reloading = False

    # ---- the log ----

    def tick(self) -> None:
        """Do the work that is due."""
        now = self._clock.monotonic()
        if now >= self._reload_at and (self._first is not None or self._current.now):
            self._check(now)
        if now < self._look_at:
            return
        self._look_at = now + LOOK_INTERVAL
        if self._unrecorded:
            events, self._unrecorded = self._unrecorded, []
            self._put(events)
        self._grown_anywhere()
        wanted = bool(self._current.now)
        if wanted and self._first is not None and self._first(EVENTS_KEY) and not self._is_numbering:
            self._number()
        if now >= self._sweep_at and (self._first is None or self._first(EVENTS_KEY)):
            self._sweep_at = now + (SWEEP_INTERVAL if wanted else IDLE_SWEEP_INTERVAL)
            self._sweep()

    def _sweep(self) -> None:
        before_us = self._now_us() - to_us(self._retention)
        operation = SweepEvents(before_us, self._most)
        self._commits.put(operation, lambda deleted: self._swept(operation, deleted), lambda _: None)

    def _swept(self, operation: SweepEvents, deleted: int) -> None:
        if deleted >= operation.limit:
            self._sweep()

    def _now_us(self) -> int:
        return to_us(self._clock.wall())


def _digest(interest: Interest) -> str:
    """Return a text that equal interests share."""
    parts = sorted(interest.types), interest.namespace, sorted(set(interest.functions)), sorted(set(interest.tags))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
