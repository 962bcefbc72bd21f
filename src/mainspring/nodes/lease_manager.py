"""A node's place among the others: its heartbeat, its lease, and the jobs of nodes that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import structlog

from mainspring.errors import StoreError, StoreFencedError, StoreUnavailableError
from mainspring.log_limit import CauseLimit
from mainspring.nodes.lease import BEAT, LEASE, Lease
from mainspring.nodes.membership import Membership

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.clock import Clock
    from mainspring.ids import Term
    from mainspring.nodes.model import NodeRow
    from mainspring.nodes.store import MembershipPort

AGAIN: Final = 0.5
"""Seconds after which the store is tried again where it could not answer."""
TIME_FOR: Final = 30.0
"""Seconds for which the store's clock is known once it was asked, unless this machine's own is set meanwhile."""
SLOW: Final = 0.2
"""Seconds after which an answer tells little of the time: by up to half of what it took it may be wrong."""
WITHOUT: Final = 4 * TIME_FOR
"""Seconds after which a slow answer is better than what is known."""
SET: Final = 0.01
"""By how many seconds wall time and monotonic time may part before somebody has set the clock."""

log = structlog.get_logger("mainspring.nodes")


class NodeCallbacks(Protocol):
    """What a keeper asks of its node."""

    def row(self, counter: int) -> NodeRow:
        """Say what the node is like at this moment."""

    def fenced(self) -> None:
        """Drop all stored jobs and hand out nothing: they are other nodes' now."""

    def recover(self, terms: Sequence[int]) -> None:
        """Give back the jobs of terms that have ended."""

    def begin_again(self, term: Term) -> None:
        """Take part again, under a new term."""

    def members(self, live: tuple[NodeRow, ...]) -> None:
        """Hear who is there."""

    def drain(self, draining: bool) -> None:
        """Take nothing more, or take part again: somebody asked for it."""

    def store_time(self, offset: float) -> None:
        """Hear by how many seconds the store's clock is before this node's own."""


class LeaseManager:
    """Keeps one node's term alive, as long as the store answers; afterwards gets it a new one.

    ``begin`` begins a term in the store. A term that was ended, by others or because its lease ran out here, is never used again.
    """

    def __init__(
        self,
        port: MembershipPort,
        node: NodeCallbacks,
        clock: Clock,
        begin: Callable[[], Awaitable[Term]],
        *,
        lease: float = LEASE,
        beat: float = BEAT,
    ) -> None:
        self._port = port
        self._node = node
        self._clock = clock
        self._begin = begin
        self._seconds = lease
        self._every = beat
        self._limit = CauseLimit()
        self._fenced = False
        self._draining = False
        self._counter = 0
        self._pace = 0.0
        """What wall time was before monotonic time when the store's clock was asked last."""
        self._timed = self._searched = float("-inf")
        """Monotonic times: when the store's clock was asked, and when orphans were looked for."""
        self.term: Term
        self.lease: Lease
        self.membership: Membership

    async def start(self, term: Term, sent_at: float) -> None:
        """Take part under a first term, which was begun after the monotonic time ``sent_at``.

        Where the store is away again, or the term has ended already, `step` goes on from there.
        """
        self._take(term, sent_at)
        try:
            await self._beat()
        except StoreFencedError as error:
            self._fence(str(error))
        except StoreUnavailableError as error:
            self._say_unanswered(error)

    def _say_unanswered(self, error: StoreError) -> None:
        if self._limit.allows(str(error), self._clock.monotonic()):
            log.info("the store does not answer", error=str(error))

    def _take(self, term: Term, sent_at: float) -> None:
        self.term = term
        self.lease = Lease(sent_at, lease=self._seconds, beat=self._every)
        self.membership = Membership(term, beat=self._every)
        self._fenced = False

    def dead(self) -> tuple[NodeRow, ...]:
        """Return the rows of the nodes that this one holds for dead."""
        return self.membership.dead(self._clock.monotonic())

    def lease_valid(self) -> bool:
        """Whether the node may still believe that what it holds is its own: its timers may be late, its clock is not."""
        return not self.lease.ended(self._clock.monotonic())

    def check(self) -> float:
        """Fence the node where its lease has ended; returns the seconds until it is worth asking again.

        To be called on a timer of its own: the store may be silent while this is due.
        """
        now = self._clock.monotonic()
        if not self._fenced and self.lease.ended(now):
            self._fence("this node could not renew its lease in time")
        return self.lease.remaining(now) or AGAIN

    def _fence(self, why: str) -> None:
        self._fenced = True
        log.warning("the node has given up its jobs", term=self.term, why=why)
        self._node.fenced()

    async def step(self) -> float:
        """Do what is due; returns the seconds until the next step."""
        try:
            if self._fenced:
                await self._begin_again()
            elif self.lease.wait(self._clock.monotonic()) <= 0:
                await self._beat()
                await self._find_orphans()
            else:
                asked = self._clock.monotonic()
                self._observe(await self._port.rows(), asked)
            await self._end_the_dead()
        except StoreFencedError as error:
            if not self._fenced:
                self._fence(str(error))
            return 0.0
        except StoreError as error:
            self._say_unanswered(error)
            return AGAIN
        now = self._clock.monotonic()
        return min(self.lease.wait(now), self.membership.wait(now))

    async def _beat(self) -> None:
        clock = self._clock
        sent_at = self.lease.begin_beat(clock.monotonic())
        self._counter += 1
        rows = await self._port.beat(self._node.row(self._counter))
        self.lease.confirm_beat(sent_at, clock.monotonic())
        self._observe(rows, sent_at)
        before = clock.monotonic()
        if before - self._timed < TIME_FOR and abs(clock.wall() - before - self._pace) < SET:
            return
        store = await self._port.now()
        after = clock.monotonic()
        if after - before > SLOW and before - self._timed < WITHOUT:
            return  # what is known is better than that; the next beat asks again
        # The moment at which the store looked at its clock is somewhere between: half of the way is the best guess.
        self._node.store_time(store - (clock.wall() - (after - before) / 2))
        if after - before <= SLOW:
            self._timed, self._pace = after, clock.wall() - clock.monotonic()

    def _observe(self, rows: Sequence[NodeRow], asked: float) -> None:
        self.membership.observe(rows, asked, self._clock.monotonic())
        self._node.members(self.membership.live())
        draining = any(row.term == self.term and row.draining for row in rows)
        if draining != self._draining:
            self._draining = draining
            self._node.drain(draining)

    async def _end_the_dead(self) -> None:
        for row in self.membership.mine(self._clock.monotonic()):
            if await self._port.end(row.term, row.counter):
                log.warning("a node is dead; its jobs go back to the queue", node=row.name, term=row.term)
                self._node.recover([row.term])

    async def _orphans(self) -> Sequence[int]:
        """Return the terms of which something is left although they have ended: whoever gave it back has died over it."""
        terms = await self._port.abandoned()
        return [term for term in terms if self.membership.heir(type(self.term)(term)) == self.term]

    async def _find_orphans(self) -> None:
        """Give back what is left of ended terms; once a lease is enough for what happens so rarely."""
        now = self._clock.monotonic()
        if now - self._searched >= self._seconds:
            terms = await self._orphans()
            self._searched = now
            if terms:
                self._node.recover(terms)

    async def _begin_again(self) -> None:
        before = self.term
        await self._port.end(before)
        sent_at = self._clock.monotonic()
        self._take(await self._begin(), sent_at)
        if self.lease.remaining(self._clock.monotonic()) <= min(AGAIN, self._every):
            self._fenced = True  # the store took so long over it that the timer, which rests, would miss its end
            return
        self._node.begin_again(self.term)
        await self._beat()
        self._node.recover([before])
        log.info("the node takes part again", term=self.term)
