"""The workers as the master sees them: who lives, what they would take, and what they are told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.records import Notice, decode_wants
from mainspring.events.relay import Pending
from mainspring.nodes.model import NodeRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.engines.zookeeper.master.index import Task
    from mainspring.engines.zookeeper.session import Session
    from mainspring.events.relay import Message
    from mainspring.jobs.store import ClaimRequest

_row: Final = msgspec.json.Decoder(NodeRow).decode
QUEUE: Final = 20_000
"""Tasks that one worker may have: the names of its queue have to fit into one answer."""
TOLD: Final = 300
"""Names in one notice: a worker that has missed more lists its queue."""
FIRST: Final = 0.05
"""Seconds until nodes are told again of a function that nobody wants, doubled each time."""
LONGEST: Final = 5.0

log = structlog.get_logger("mainspring.zookeeper")


class Worker:
    """A living worker."""

    __slots__ = (
        "answered", "asked", "draining", "leaving", "notice", "room", "sent_away", "term", "under_way", "wants", "who",
    )  # fmt: skip

    def __init__(self, who: str, room: int = 0) -> None:
        self.who = who
        self.term = paths.term_of(who)
        self.room = room
        """How many more tasks its queue may have."""
        self.under_way = 0
        """How many are being written into it."""
        self.draining = False
        self.leaving = self.sent_away = False
        """It drains by itself, or because somebody asked it to."""
        self.wants: dict[bytes, list[OpenWant]] = {}
        self.asked = self.answered = 0
        self.notice: Notice | None = None
        """What it was told last; None: nothing yet by this master."""

    @property
    def takes(self) -> bool:
        """Whether it may be given anything."""
        return self.room > 0 and not self.draining

    def want(self, function: bytes, wants: Iterable[ClaimRequest]) -> None:
        """Replace what it would take of a function."""
        self.wants[function] = [OpenWant(self, function, *want[1:]) for want in wants]

    def tell(self, master: int, tasks: list[str]) -> Notice:
        """Return what it is to be told, with the tasks that are assigned to it in the same batch."""
        before = self.notice or Notice(master)
        last = [*before.tasks, *tasks][-TOLD:]
        self.notice = Notice(master, self.answered, before.number + len(tasks), last)
        return self.notice


class OpenWant:
    """What a worker would take of a function, until it says otherwise."""

    __slots__ = ("function", "left", "overdue_us", "slots", "worker")

    def __init__(
        self, worker: Worker, function: bytes, limit: int, slots: frozenset[int] | None = None, overdue_us: int = 0
    ) -> None:
        self.worker = worker
        self.function = function
        self.left = limit
        self.slots = slots
        """Only tasks of these hash slots; None is all of them."""
        self.overdue_us = overdue_us
        """Tasks that were created or due before this time are taken whatever their slot."""

    @property
    def is_open(self) -> bool:
        """Whether one more task may be given on it."""
        return self.left > 0 and self.worker.takes

    def fits(self, task: Task) -> bool:
        """Return whether a task may be given on it, if it is open."""
        return self.slots is None or task.slot in self.slots or task.since_us < self.overdue_us


class Workers:
    """All living workers. What has changed is read by `look`."""

    def __init__(self, session: Session, changed: Callable[[], None]) -> None:
        self._session = session
        self._changed = changed
        self.own = Worker(session.who)
        """The master's own node: what it wants comes through memory."""
        self.known: dict[str, Worker] = {self.own.who: self.own}
        self._stale_list = True
        self._stale_rows = {self.own.who}
        self._stale_wants: set[str] = set()
        self.left = asyncio.Event()
        """Somebody has gone, or come: for whoever gives back what they had."""

    @property
    def alone(self) -> bool:
        """Whether nobody lives but the master's own node."""
        return self.known.keys() <= {self.own.who}

    def wants(self) -> list[OpenWant]:
        """Return all open wants."""
        return [want for one in self.known.values() for some in one.wants.values() for want in some if want.is_open]

    def forget(self, who: str) -> None:
        """A worker has gone, before its node was seen to."""
        if self.known.pop(who, None) is not None:
            self._stale_list = True
            self._changed()

    async def look(self) -> None:
        """Read what has changed."""
        if self._stale_list:
            await self._list()
        rows, self._stale_rows = self._stale_rows & self.known.keys(), set()
        wants, self._stale_wants = self._stale_wants & self.known.keys(), set()
        await asyncio.gather(*map(self._read_row, rows), *map(self._read_wants, wants))

    def own_room(self) -> None:
        """See how much room this node itself has."""
        self.own.room = QUEUE - len(self._session.assignments) - self.own.under_way

    async def look_at_rooms(self) -> None:
        """Read again how much the full queues contain."""
        self.own_room()
        full = [one for one in self.known.values() if one.room <= 0 and one.wants and one is not self.own]
        queues = [paths.queue(one.who) for one in full]
        if queues:
            for one, queue in zip(full, await self._session.get_many(queues), strict=True):
                one.room = QUEUE - queue.children - one.under_way if queue is not None else 0

    async def _list(self) -> None:
        self._stale_list = False
        draining, living = await asyncio.gather(
            self._session.children(paths.DRAINING, self._on_list),
            self._session.children(paths.WORKERS, self._on_list),
        )
        there = {*paths.workers_of(living), self.own.who}
        if strangers := sorted(set(living) - there):
            log.warning("somebody else's nodes are among the workers, and are left alone", names=strangers[:10])
        for who in self.known.keys() - there:
            del self.known[who]
        new = there - self.known.keys()
        self.left.set()
        for who in new:
            self.known[who] = Worker(who)
        self._stale_rows |= new
        self._stale_wants |= new
        for who, worker in self.known.items():
            worker.sent_away = who.rpartition("-")[0] in draining
            worker.draining = worker.leaving or worker.sent_away

    def _on_list(self) -> None:
        self._stale_list = True
        self._changed()

    async def _read_row(self, who: str) -> None:
        def on_change() -> None:
            self._stale_rows.add(who)
            self._changed()

        node = await self._session.get(paths.worker(who), on_change)
        worker = self.known.get(who)
        if node is not None and worker is not None:
            try:
                row = _row(node.data)
            except ValueError:
                log.warning("what a worker says of itself cannot be read", path=paths.worker(who))
                return
            worker.leaving = row.draining
            worker.draining = worker.leaving or worker.sent_away

    async def _read_wants(self, who: str) -> None:
        def on_change() -> None:
            self._stale_wants.add(who)
            self._changed()

        node = await self._session.get(paths.wants(who), on_change)
        queue = await self._session.get(paths.queue(who))
        worker = self.known.get(who)
        if node is None or queue is None or worker is None:
            return
        worker.room = QUEUE - queue.children - worker.under_way
        try:
            asked = decode_wants(node.data)
        except (ValueError, KeyError, TypeError, AttributeError):
            log.warning("what a worker wants cannot be read", path=paths.wants(who))
            return
        worker.asked = asked.asked
        worker.wants.clear()
        for function, wants in asked.wants.items():
            worker.want(function, wants)


class WakeupHints:
    """Tells nodes of pending tasks that nobody has asked for: at once, and again later and later while nobody does.

    Times are seconds of the loop's clock.
    """

    def __init__(self, tell: Callable[[int, Message], None]) -> None:
        self._tell = tell
        self._due: dict[bytes, tuple[float, float]] = {}
        """Of each function that waits for nobody: when it is told of next, and how long to wait after that."""

    def times(self) -> list[float]:
        """Return when there is something to tell."""
        return [due for due, _ in self._due.values()]

    def tell(self, waiting: set[bytes], workers: Iterable[Worker], now: float) -> None:
        """Tell all workers of the functions of what waits for nobody: who serves which, their rows say late."""
        for function in self._due.keys() - waiting:
            del self._due[function]
        due = [function for function in waiting if self._due.get(function, (now, FIRST))[0] <= now]
        for function in due:
            pause = self._due.get(function, (now, FIRST))[1]
            self._due[function] = now + pause, min(pause * 2, LONGEST)
        for worker in workers if due else ():
            if not worker.draining:
                self._tell(worker.term, Pending(sorted(due)))
