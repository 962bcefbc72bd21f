"""The values and rules of the nodes slice: leases, rows of nodes, shares of a function's jobs, and the membership of a fleet.

A lease is the time for which a node owns the jobs that it holds. Membership divides the nodes into live ones, dead ones, and dead
ones that this node has to recover.

The ports are those to rows of nodes and ends of terms in the store, and to a cluster that tracks nodes beside it. These requests
bypass the commit queue on their own connection: a slow or blocked group must not cost a node its lease.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from mainspring.errors import SettingsError
from mainspring.ids import Term
from mainspring.quantities import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from mainspring.events import Message


BEAT: Final = 5.0
"""Seconds between heartbeats, by default."""

LEASE: Final = 15.0
"""Seconds without a heartbeat after which other nodes may recover a node's jobs, by default."""

MARGIN: Final = 0.2
"""The part of the lease that a node leaves unused for safety: it uses 12 s of 15. A failed beat can be repeated for 7 s."""


LOOK: Final = 0.5
"""Seconds between the looks of a node at the others on a store that lists their sessions, by default: a node whose process has
ended is found dead after three of them."""


class Lease:
    """The lease of one term. Only confirmed heartbeats extend it, and an ended lease stays ended.

    Times are seconds of the node's monotonic clock. Use one that goes on while the machine is suspended (on Linux
    ``CLOCK_BOOTTIME``): otherwise a node that resumes treats its lease as valid until the store refuses its next beat.

    Usage::

        lease = Lease(sent_at)  # sent_at: before the term was begun in the store
        sent_at = lease.begin_beat(now())  # then write the beat
        lease.confirm_beat(sent_at, now())  # when the store has confirmed it
        lease.ended(now())  # if True, drop all jobs and begin a new term
    """

    __slots__ = ("_beat", "_deadline", "_next", "_usable")

    def __init__(self, sent_at: float, *, lease: float = LEASE, beat: float = BEAT, margin: float = MARGIN) -> None:
        """Start the lease of a term; ``sent_at`` is a time before the term was begun in the store.

        Raises SettingsError if two beats do not fit into the lease without its margin.
        """
        usable = lease * (1 - margin)
        if not 0 < margin < 1 or not beat > 0 or not 2 * beat <= usable:
            raise SettingsError(
                f"a heartbeat every {format_duration(beat)} does not fit a lease of {format_duration(lease)}: "
                f"{margin:.0%} of the lease is kept for safety, and the rest must hold two beats at least"
            )
        self._beat = beat
        self._usable = usable
        self._deadline = sent_at + usable
        self._next = sent_at + beat

    def begin_beat(self, now: float) -> float:
        """Record that a beat is about to be sent, and return its time for `confirm_beat`."""
        self._next = now + self._beat / 5
        return now

    def confirm_beat(self, sent_at: float, now: float) -> None:
        """Extend the lease: the store has confirmed the beat that was sent at ``sent_at``.

        A confirmation after the end has no effect: other nodes may have recovered the jobs, and this node may have dropped
        them. A late confirmation, or one out of order, never shortens the lease.
        """
        self._next = max(self._next, sent_at + self._beat)
        if not self.ended(now):
            self._deadline = max(self._deadline, sent_at + self._usable)

    def ended(self, now: float) -> bool:
        """Return whether the lease has ended: the node must drop its jobs."""
        return now >= self._deadline

    def remaining(self, now: float) -> float:
        """Return the seconds until the lease ends, 0 if it has ended."""
        return max(0.0, self._deadline - now)

    def wait(self, now: float) -> float:
        """Return the seconds until the next beat is due, 0 if it is due now.

        It is due one interval after the last confirmed beat was sent. While no beat is confirmed, it is due a fifth of the
        interval after the last attempt.
        """
        return max(0.0, self._next - now)


class Decider(msgspec.Struct, frozen=True, array_like=True):
    """The part of a worker that decides runs of workflows. Older versions write fewer fields: append new ones."""

    functions: tuple[int, ...]
    """The functions of its decisions, as places in the node's ``functions``."""
    running: int
    """Decisions that it has."""
    steps: int
    """Those of them that only keep a step."""
    places: int
    """Decisions that it takes at a time, besides these."""
    draining: bool
    cache: tuple[int, ...] | None
    """The worker's last report about its memory; None: it has not reported."""


class Pace(msgspec.Struct, frozen=True, array_like=True):
    """The pace of a worker's heartbeats, as it has reported it last. Append new fields."""

    items: int
    """Its connections, and its jobs with heartbeat timeouts."""
    capacity: int
    """How many such items there may be if their periods are as now on average."""
    pace: float
    """Heartbeats of items in a second, at most."""
    load: float
    """Those that the items need."""
    lag: float
    """Seconds by which one was late, at most, in the last minute."""
    refused: int
    """Jobs that the worker has given back because there was no room, since its start; the next two likewise."""
    throttled: int
    failed: int
    full: bool
    """Whether it takes no more jobs of functions with heartbeat timeouts."""


class WorkerRow(msgspec.Struct, frozen=True, array_like=True):
    """A worker that is connected to a node. Older versions write fewer fields: append new ones."""

    number: int
    """Unique among all that have connected to this node since its start."""
    name: str
    slots: int | None
    """How many jobs it runs at a time; None: it has not declared it."""
    running: int
    """How many jobs it has."""
    extended: bool
    """Whether it uses the protocol extension."""
    draining: bool
    stops: bool
    """Whether it stops on request."""
    connected_us: int
    version: str = ""
    """Its version of Mainspring; empty if unknown."""
    namespaces: tuple[str, ...] = ()
    """The namespaces of its functions."""
    silent_us: int = 0
    """Since when it has sent nothing although it should; 0 if it is not silent."""
    decider: Decider | None = None
    """None: it decides no runs."""
    pace: Pace | None = None
    """None: it has not reported, as workers of earlier versions."""


class Recovery(msgspec.Struct, frozen=True, array_like=True):
    """Jobs of ended terms that a node gave back to all nodes. Older versions write fewer fields: append new ones."""

    terms: tuple[int, ...]
    names: tuple[str, ...]
    """The names of the nodes of these terms; empty texts for unknown ones."""
    jobs: int
    at_us: int
    """Wall time in microseconds."""


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node's description in the store, which each of its heartbeats writes and all nodes read.

    Each term that has not ended has one row. A node that stops gracefully deletes its row. A node that recovers a dead one ends
    its term and deletes its row.
    """

    term: int
    """The number of this run of the node: unique, and higher than all earlier ones."""
    name: str
    """The node's name. A restarted node has the same name and a new term, so two rows may have one name for a while."""
    counter: int
    """Rises with each heartbeat, and is the only sign of life."""
    lease: float = LEASE
    """Seconds without a heartbeat after which other nodes may recover its jobs."""
    weight: int = 1
    """Its size relative to others, for strategies that use it; 0: it claims only jobs that the others leave."""
    capacity: int = 0
    """How many jobs its workers hold and would accept now: running jobs, and brief jobs that they accept in advance. The
    node's API calls it ``prefetch``."""
    slots: int | None = None
    """How many jobs its workers can run at the same time; None: an older version wrote the row."""
    running: int = 0
    """How many jobs it holds."""
    functions: tuple[bytes, ...] = ()
    """The functions that its workers serve."""
    loads: tuple[tuple[int, int], ...] = ()
    """For each of these functions, how many workers serve it and how many of its jobs run."""
    foreground: tuple[int, ...] = ()
    """For each of these functions, how many jobs exist only in the node's memory; empty if an older version wrote the row."""
    address: str = ""
    """``host:port`` of its Gearman port, or empty."""
    version: str = ""
    """The version of Mainspring that it runs."""
    draining: bool = False
    """It claims no more jobs: it is about to stop, or an operator drains it."""
    started_us: int = 0
    """When this term began; microseconds of wall time, for people to read."""
    cluster: str = ""
    """The cluster that also tracks this node (`Cluster.id`); empty: none, only heartbeats do."""
    workers: tuple[WorkerRow, ...] = ()
    """Its first `WORKERS_LIMIT` workers."""
    lost: bool = False
    """Its session in that cluster has ended: it is dead now, however recent its last heartbeat is. Readers set it."""
    strategy: str = ""
    """The rule by which it shares stored jobs; empty: an older version wrote the row."""
    recoveries: tuple[Recovery, ...] = ()
    """The last ones since its start, the oldest first; empty also if an older version wrote the row."""
    mail: bool = False
    """On PostgreSQL always true: the column ``old`` of the schema is computed from it."""
    runs: bool = False
    """Whether the node passes on the ends of runs' jobs. False: an older version wrote the row, and loses them."""
    session: str = ""
    """The id of its session with the store (`SessionPort`); empty: none counts, or an older version wrote the row."""
    look: float = 0.0
    """Seconds between its looks at the rows. It writes the id of a new session with its next look."""
    unlisted: bool = False
    """The store has listed its session, and lists it no longer. Readers set it."""
    pauses: bool = False
    """Whether the node knows paused runs. False: an older version wrote the row, and would go on with them."""
    payloads: bool = False
    """Whether the node reads payloads that are kept apart from events. False: an older version wrote the row."""


def running_by_function(rows: Iterable[NodeRow]) -> dict[bytes, int]:
    """Return how many jobs run at some nodes, by function."""
    running: dict[bytes, int] = {}
    for row in rows:
        for name, (_, number) in zip(row.functions, row.loads, strict=False):
            running[name] = running.get(name, 0) + number
    return running


WORKERS_LIMIT: Final = 200
"""Workers in the row of a node, so that a heartbeat stays small."""


class Share(msgspec.Struct, frozen=True):
    """The pending jobs of one function that a node may claim now.

    It may claim up to ``limit`` jobs whose slots are among ``slots``. It may claim any number of jobs that have been due for
    ``overdue`` seconds, whatever their slots, so that no rule strands them. The free places of the node's workers bound both.

    A share balances load. It is not needed for safety: the claim itself prevents that two nodes hold one job.
    """

    slots: frozenset[int] | None = None
    """Numbers from 0 to SLOTS - 1; None: all."""
    limit: int | None = None
    """None: no limit."""
    overdue: float = 0.0
    """In seconds; infinite only in NOTHING."""

    def includes(self, slot: int, waited: float) -> bool:
        """Return whether the share has a job of this slot that has been due for ``waited`` seconds, without the limit."""
        return waited >= self.overdue or self.slots is None or slot in self.slots


EVERYTHING: Final = Share()
"""All jobs for which the node has room."""

NOTHING: Final = Share(slots=frozenset(), limit=0, overdue=math.inf)
"""No jobs: the node does not serve the function, or is draining."""


SETTLE: Final = 2.0
"""Seconds for which an observer's own session must have been open before the end of another one proves anything: when the store
has been away, all sessions end, and the nodes return one after another."""

LOOKS_PER_LEASE: Final = 5
"""With fewer looks in a lease, its end is noticed as soon as that of a session."""


def session_proves_death(row: NodeRow, since: float, asked: float, unbroken: float) -> bool:
    """Return whether a node is dead although its lease may go on: a node that lives has a session, or opens one and beats.

    All three conditions are needed:

    - The store does not list its session. A node that is frozen, slow or silently cut off keeps its session.
    - From ``since`` until ``asked``, two of its looks long, this has been so and its counter has not changed. A node whose
      session was cut has opened another one by then, and has beaten.
    - The observer's own session has been ``unbroken`` for `SETTLE` seconds. Otherwise the store may have ended all sessions, and
      the node may only be later than the observer.
    """
    return row.unlisted and asked >= since + 2 * row.look and unbroken >= SETTLE


RECOVERY_STEP: Final = 1.0
"""Seconds that each node along the ring waits longer than the one before it."""

OBSERVE_INTERVAL: Final = 1.0
"""Seconds between observations, by default: a dead node is detected at most this long after the end of its lease."""


class _Observed:
    """An observed node: its newest row, the time since which its counter has not changed, and when it was declared dead."""

    __slots__ = ("dead_at", "early", "row", "same_since", "since")

    def __init__(self, row: NodeRow, since: float) -> None:
        self.row = row
        self.since = self.same_since = since
        """The time since which its counter has not changed; ``same_since``: and the store has listed its session, or has not."""
        self.dead_at: float | None = None
        self.early = False
        """Whether only its session has proved its death so far."""

    def judge_session(self, asked: float, now: float, unbroken: float) -> None:
        """Declare it dead if its session proves that. A verdict that is not proved any more is withdrawn: a new lease begins."""
        proved = session_proves_death(self.row, self.same_since, asked, unbroken)
        if proved and self.dead_at is None:
            self.dead_at, self.early = now, True
        elif self.early and not proved:
            self.dead_at, self.early, self.since = None, False, now


class Membership:
    """The nodes of a fleet as one of them sees them.

    Times are seconds of this node's monotonic clock. A node whose counter in the store rises within each lease is never
    declared dead, whatever the schedule of observations.
    """

    def __init__(self, me: Term, *, beat: float = BEAT, interval: float = OBSERVE_INTERVAL) -> None:
        """Start without nodes. ``beat`` is the time between this node's heartbeats, ``interval`` that between observations."""
        self._me = me
        self._interval = interval
        self._away = 2 * max(beat, interval)
        self._observed: dict[int, _Observed] = {}
        self._live: tuple[NodeRow, ...] = ()
        self._ring: list[int] = []
        self._answered: float | None = None

    # ---- observing ----

    def observe(self, rows: Iterable[NodeRow], asked: float, now: float, unbroken: float = 0.0) -> None:
        """Process all rows of the store: they were requested after the time ``asked`` and arrived at ``now``.

        At ``asked``, this node's own session with the store had been open for ``unbroken`` seconds.

        A missing row means that its node left or was recovered.

        After a pause of more than two beats between two answers, all time spans start again. Either this node was away
        (stopped, starved, cut off), or the store was: then no node could beat, and all would appear dead to the first that
        reads. Only nodes that were dead before the pause stay dead while their counters do not change; the ring order for
        them starts again.
        """
        away = self._is_away(now)
        before, self._observed = self._observed, {}
        for row in rows:
            node = before.get(row.term)
            if node is None or node.row.counter != row.counter:
                node = _Observed(row, now)
            else:
                if node.row.unlisted != row.unlisted or now - asked > row.look:
                    node.same_since = now  # after a slow look, too: the node may have waited for the store as long
                node.row = row  # others may have changed it: an operator may have set it to drain
                if away and node.dead_at is None:
                    node.since = now
                elif away or (node.dead_at is None and asked >= node.since + row.lease):
                    node.dead_at = now
            if row.lost and node.dead_at is None:
                node.dead_at = now  # the end of its session proves its death earlier than its counter
            node.judge_session(asked, now, unbroken)
            self._observed[row.term] = node
        self._live = tuple(node.row for _, node in sorted(self._observed.items()) if node.dead_at is None)
        self._ring = [row.term for row in self._live]
        self._answered = now

    def wait(self, now: float) -> float:
        """Return the seconds until the next observation, 0 if it is due now.

        It is due one interval after the last. It is due earlier if a node may then be dead, or if this node may then recover
        one: observe first, and call `mine` after that.
        """
        if self._answered is None:
            return 0.0
        at = self._answered + self._interval
        # These sums must equal those of the verdicts: with a difference in the last bit, the observation would come too early.
        for term, node in self._observed.items():
            if node.dead_at is None:
                at = min(at, node.since + node.row.lease)
                if node.row.unlisted and node.same_since + 2 * node.row.look > self._answered:
                    at = min(at, node.same_since + 2 * node.row.look)
            else:
                turn = self._turn(term, node.dead_at)
                if turn is not None and turn > self._answered:
                    at = min(at, turn)
        return max(0.0, at - now)

    # ---- results ----

    def live(self) -> tuple[NodeRow, ...]:
        """Return the rows of live nodes at the last observation, in ring order; the same tuple until the next one."""
        return self._live

    def dead(self, now: float) -> tuple[NodeRow, ...]:
        """Return the rows of dead nodes that are not recovered yet, in ring order.

        It is empty while the last observation is more than two beats old: this node was away and has to observe first.
        """
        if self._is_away(now):
            return ()
        return tuple(node.row for _, node in sorted(self._observed.items()) if node.dead_at is not None)

    def left(self, now: float) -> dict[int, float]:
        """Return the seconds until the lease of each node ends if its counter does not change; 0 for dead nodes, by term.

        It is empty while the last observation is more than two beats old.
        """
        if self._is_away(now):
            return {}
        return {
            term: max(0.0, node.since + node.row.lease - now) if node.dead_at is None else 0.0
            for term, node in self._observed.items()
        }

    def heir(self, dead: Term) -> Term | None:
        """Return the live node after ``dead`` in ring order; None if no other node lives."""
        others = [term for term in self._ring if term != dead]
        return Term(others[bisect_right(others, dead) % len(others)]) if others else None

    def mine(self, now: float) -> tuple[NodeRow, ...]:
        """Return the rows of the dead nodes that this node has to recover now, in ring order.

        A row stays among them until an observation no longer has it. Pass the row's counter when you end its term: then a
        node that has come back after the observation is not touched.

        A node whose own row is gone or dead recovers nothing: its own lease has ended.
        """
        rows = []
        for row in self.dead(now):
            dead_at = self._observed[row.term].dead_at
            assert dead_at is not None
            turn = self._turn(row.term, dead_at)
            if turn is not None and turn <= now:
                rows.append(row)
        return tuple(rows)

    def _turn(self, dead: int, dead_at: float) -> float | None:
        """Return when this node may recover ``dead``; None if this node is not in the ring itself."""
        place = bisect_left(self._ring, self._me)
        if place == len(self._ring) or self._ring[place] != self._me:
            return None
        return dead_at + RECOVERY_STEP * ((place - bisect_left(self._ring, dead)) % len(self._ring))

    def _is_away(self, now: float) -> bool:
        return self._answered is not None and now - self._answered > self._away


class MembershipPort(Protocol):
    """The rows and terms of a store's nodes. Each method raises StoreUnavailableError if the store is away."""

    async def beat(self, row: NodeRow) -> Sequence[NodeRow]:
        """Write a node's own row with its new counter, and return the rows of all nodes.

        The store ignores the row's ``draining``: only `ask_to_drain` sets it. Raises StoreFencedError if the term has ended.
        """

    async def rows(self) -> Sequence[NodeRow]:
        """Return the rows of all nodes, as `beat` does."""

    async def now(self) -> float:
        """Return the wall time of the store's clock in seconds; nodes set their clocks by it."""

    async def end(self, term: int, counter: int | None = None) -> bool:
        """End a term and delete its row: the store refuses further groups under it. Return whether the term has ended.

        With a ``counter``, end it only if the row still has this counter: the node may have come back meanwhile. A group under
        way is awaited or aborted. The result is True also if the term had ended before.
        """

    async def abandoned(self) -> Sequence[int]:
        """Return ended terms that still hold jobs, or still have records of waiting clients."""

    async def ask_to_drain(self, term: int, *, draining: bool = True) -> bool:
        """Store that the node of a row shall drain, or no longer. Return whether this row exists.

        The request applies to the node's name, also in its next terms, until the node closes its store. Rows show it.
        """


class SessionPort(Protocol):
    """A store that lists the open sessions of its nodes, as PostgreSQL does."""

    def session(self) -> str:
        """Return the id of this node's session; empty while it has none, or if its end would prove nothing."""

    def unbroken(self) -> float:
        """Return the seconds for which this session has been open, 0 while the node has none."""


class Cluster(Protocol):
    """A service that tracks the live nodes of a store and carries their messages, instead of the store.

    It only reduces delays: without it, heartbeats in the store and reads of the store do the same.
    """

    id: str
    """The same for all nodes that watch each other there; empty until this node has reached it."""

    async def open(self, on_message: Callable[[Message], None]) -> None:
        """Connect in the background and return at once. ``on_message`` is called with each message for this node."""

    async def join(self, node: str, term: int) -> None:
        """Register this node under a term, as soon as the cluster can be reached."""

    def joined(self, term: int) -> bool:
        """Return whether this node is registered under a term, as far as it can detect."""

    async def gone(self, terms: Collection[int]) -> Collection[int]:
        """Return those terms that are certainly no longer registered; none if the cluster cannot be reached."""

    def send(self, to: int, message: Message) -> bool:
        """Send a message to the node of a term; return False if the cluster has not reported that node."""

    def broadcast(self, message: Message) -> None:
        """Send a message to all other nodes."""

    async def close(self) -> None:
        """Leave the cluster, within some seconds."""
