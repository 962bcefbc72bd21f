"""The manager of a node's lease: it sends heartbeats, observes other nodes, and recovers the jobs of dead ones.

The last recoveries are kept (`Recoveries`), so that people see where jobs went after a death.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import structlog

from mainspring.errors import StoreError, StoreFencedError, StoreUnavailableError
from mainspring.log_limit import CauseLimit
from mainspring.nodes.model import BEAT, LEASE, LOOKS_PER_LEASE, OBSERVE_INTERVAL, Lease, Membership, Recovery

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.clock import Clock
    from mainspring.ids import Term
    from mainspring.nodes.model import MembershipPort, NodeRow, SessionPort

RETRY_DELAY: Final = 0.5
"""Seconds until the next attempt after the store could not answer."""
CLOCK_READ_INTERVAL: Final = 30.0
"""Seconds between two reads of the store's clock. A step of this machine's clock causes an earlier read."""
SLOW_CLOCK_READ: Final = 0.2
"""Seconds after which a read of the store's clock is imprecise: its error is up to half of its duration."""
MAX_CLOCK_AGE: Final = 4 * CLOCK_READ_INTERVAL
"""Seconds after which an imprecise read replaces the last precise one."""
CLOCK_STEP: Final = 0.01
"""Seconds by which wall time and monotonic time must diverge to count as a step of this machine's clock."""

log = structlog.get_logger("mainspring.nodes")


def _no_session() -> str:
    return ""


class NodeCallbacks(Protocol):
    """The methods of a node that its lease manager calls."""

    def row(self, counter: int) -> NodeRow:
        """Return the node's current row."""

    def fenced(self) -> None:
        """Drop all stored jobs and assign none: other nodes may recover them."""

    def recover(self, terms: Sequence[int]) -> None:
        """Return the jobs of ended terms to their queues."""

    def begin_term(self, term: Term) -> None:
        """Begin a new term after the end of the last one."""

    def members(self, live: tuple[NodeRow, ...]) -> None:
        """Store the rows of the live nodes."""

    def drain(self, draining: bool) -> None:
        """Stop or resume claiming, as an operator requested."""

    def adjust_clock(self, offset: float) -> None:
        """Adjust the node's view of the store's clock, which is ahead of it by ``offset`` seconds."""

    def session_is_back(self) -> None:
        """Hand out jobs again, as `LeaseManager.may_hand_out` permits: other nodes can see the node's new session."""


class LeaseManager:
    """Renews one node's lease while the store answers; after its end, begins a new term.

    ``begin`` begins a term in the store. An ended term is never used again, whether other nodes ended it or its lease expired
    here.

    With ``sessions``, nodes look at each other every ``look`` seconds, and one whose process has ended is found dead after three
    looks (`session_proves_death`). So a node that has lost its session hands out no jobs until it has announced another one.
    Leases of fewer than `LOOKS_PER_LEASE` looks do not need that. Without sessions, nodes look every ``interval`` seconds.
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
        sessions: SessionPort | None = None,
        look: float = 0.0,
        interval: float = OBSERVE_INTERVAL,
    ) -> None:
        self._port = port
        self._node = node
        self._clock = clock
        self._begin = begin
        self._seconds = lease
        self._every = beat
        self._sessions = sessions if 0 < look <= lease / LOOKS_PER_LEASE else None
        self._session = _no_session if self._sessions is None else self._sessions.session
        self._look = interval if self._sessions is None else look
        self._announced = ""
        """The session in this node's row."""
        self._limit = CauseLimit()
        self._fenced = False
        self._draining = False
        self._counter = 0
        self._pace = 0.0
        """Wall time minus monotonic time at the last read of the store's clock."""
        self._timed = self._searched = float("-inf")
        """Monotonic times of the last read of the store's clock, and of the last search for abandoned terms."""
        self.term: Term
        self.lease: Lease
        self.membership: Membership

    async def start(self, term: Term, sent_at: float) -> None:
        """Start with a first term, which was begun after the monotonic time ``sent_at``.

        Raises StoreUnavailableError if the store does not answer with its time; call again then. Nothing may fire before its time
        is read, since the clock of this machine may be wrong. If the first beat fails, `step` continues from there.
        """
        self._adopt_term(term, sent_at)
        try:
            await self._read_clock()
            try:
                await self._beat()
            except StoreUnavailableError as error:
                self._log_unanswered(error)
        except StoreFencedError as error:
            self._fence(str(error))

    def _log_unanswered(self, error: StoreError) -> None:
        if self._limit.allows(str(error), self._clock.monotonic()):
            log.info("the store does not answer", error=str(error))

    def _adopt_term(self, term: Term, sent_at: float) -> None:
        self.term = term
        self.lease = Lease(sent_at, lease=self._seconds, beat=self._every)
        self.membership = Membership(term, beat=self._every, interval=self._look)
        self._fenced = False

    def dead(self) -> tuple[NodeRow, ...]:
        """Return the rows of the nodes that this one has found dead."""
        return self.membership.dead(self._clock.monotonic())

    def left(self) -> dict[int, float]:
        """Return the seconds that are left of the leases of all nodes, by term, as this node has observed them."""
        return self.membership.left(self._clock.monotonic())

    def lease_valid(self) -> bool:
        """Return whether the node still owns its jobs. This reads the clock, because timers may be late."""
        return not self.lease.ended(self._clock.monotonic())

    def may_hand_out(self) -> bool:
        """Return whether the node may hand out jobs: its lease is valid, and no other node may be about to end its term."""
        if self._announced and self._session() != self._announced and len(self.membership.live()) > 1:
            return False
        return not self.lease.ended(self._clock.monotonic())

    def check(self) -> float:
        """Fence the node if its lease has ended; return the seconds until the next check.

        Call it from a separate timer: a step may be waiting for a silent store.
        """
        now = self._clock.monotonic()
        if not self._fenced and self.lease.ended(now):
            self._fence("this node could not renew its lease in time")
        return self.lease.remaining(now) or RETRY_DELAY

    def _fence(self, why: str) -> None:
        self._fenced = True
        log.warning("the node has given up its jobs", term=self.term, why=why)
        self._node.fenced()

    async def step(self) -> float:
        """Send a beat, observe, recover dead nodes or begin a new term, as due; return the seconds until the next step."""
        try:
            if self._fenced:
                await self._begin_term()
            elif self.lease.wait(self._clock.monotonic()) <= 0 or self._session() != self._announced:
                await self._beat()
                await self._recover_abandoned_terms()
            else:
                asked = self._clock.monotonic()
                self._observe(await self._port.rows(), asked)
            await self._end_dead_terms()
        except StoreFencedError as error:
            if not self._fenced:
                self._fence(str(error))
            return 0.0
        except StoreError as error:
            self._log_unanswered(error)
            return RETRY_DELAY
        now = self._clock.monotonic()
        return min(self.lease.wait(now), self.membership.wait(now))

    async def _beat(self) -> None:
        clock = self._clock
        sent_at = self.lease.begin_beat(clock.monotonic())
        self._counter += 1
        session, before = self._session(), self._announced
        row = self._node.row(self._counter)
        if session:
            row = msgspec.structs.replace(row, session=session, look=self._look)
        rows = await self._port.beat(row)
        self._announced = session
        self.lease.confirm_beat(sent_at, clock.monotonic())
        self._observe(rows, sent_at)
        if before not in ("", session):
            self._node.session_is_back()
        if not self._clock_is_fresh():
            await self._read_clock()

    def _clock_is_fresh(self) -> bool:
        """Return whether the store's clock was read recently, and this machine's clock was not set since then."""
        now = self._clock.monotonic()
        return now - self._timed < CLOCK_READ_INTERVAL and abs(self._clock.wall() - now - self._pace) < CLOCK_STEP

    async def _read_clock(self) -> None:
        clock = self._clock
        before = clock.monotonic()
        store = await self._port.now()
        after = clock.monotonic()
        if after - before > SLOW_CLOCK_READ and before - self._timed < MAX_CLOCK_AGE:
            return  # keep the earlier, more precise offset; the next beat reads the clock again
        # The store read its clock between the request and the answer: the middle is the best estimate.
        self._node.adjust_clock(store - (clock.wall() - (after - before) / 2))
        if after - before <= SLOW_CLOCK_READ:
            self._timed, self._pace = after, clock.wall() - clock.monotonic()

    def _observe(self, rows: Sequence[NodeRow], asked: float) -> None:
        now = self._clock.monotonic()
        # The session that has answered was open for this time when it was asked; a new one has a negative one.
        unbroken = 0.0 if self._sessions is None else self._sessions.unbroken() - (now - asked)
        self.membership.observe(rows, asked, now, unbroken)
        self._node.members(self.membership.live())
        draining = any(row.term == self.term and row.draining for row in rows)
        if draining != self._draining:
            self._draining = draining
            self._node.drain(draining)

    async def _end_dead_terms(self) -> None:
        for row in self.membership.mine(self._clock.monotonic()):
            if await self._port.end(row.term, row.counter):
                log.warning("a node is dead; its jobs go back to the queue", node=row.name, term=row.term)
                self._node.recover([row.term])

    async def _abandoned_terms(self) -> Sequence[int]:
        """Return ended terms that still hold jobs and that this node has to recover: the recovering node has died."""
        terms = await self._port.abandoned()
        return [term for term in terms if self.membership.heir(type(self.term)(term)) == self.term]

    async def _recover_abandoned_terms(self) -> None:
        """Recover the rest of ended terms, once per lease: they are rare."""
        now = self._clock.monotonic()
        if now - self._searched >= self._seconds:
            terms = await self._abandoned_terms()
            self._searched = now
            if terms:
                self._node.recover(terms)

    async def _begin_term(self) -> None:
        before = self.term
        await self._port.end(before)
        sent_at = self._clock.monotonic()
        self._adopt_term(await self._begin(), sent_at)
        if self.lease.remaining(self._clock.monotonic()) <= min(RETRY_DELAY, self._every):
            self._fenced = (
                True  # the store was so slow that the paused timer of `check` would miss the end of the lease
            )
            return
        self._node.begin_term(self.term)
        await self._beat()
        self._node.recover([before])
        log.info("the node takes part again", term=self.term)


MOST: Final = 10
"""Recoveries in the row of a node, so that a heartbeat stays small."""
MOST_TERMS: Final = 10
"""Terms that one of them names."""


class Recoveries:
    """The newest recoveries of a node. ``name_of`` returns the name of a term's node, or an empty text."""

    def __init__(self, name_of: Callable[[int], str]) -> None:
        self._name_of = name_of
        self._kept: list[Recovery] = []

    def add(self, terms: Sequence[int], jobs: int, at_us: int) -> None:
        """Add jobs that were given back. Large numbers come in parts, which are added up."""
        if not jobs:
            return
        named = tuple(terms[:MOST_TERMS])
        if self._kept and self._kept[-1].terms == named:
            jobs += self._kept.pop().jobs
        self._kept.append(Recovery(named, tuple(self._name_of(term) for term in named), jobs, at_us))
        del self._kept[:-MOST]

    def rows(self) -> tuple[Recovery, ...]:
        """Return them, the oldest first."""
        return tuple(self._kept)
