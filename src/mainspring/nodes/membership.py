"""The membership of a fleet: live nodes, dead nodes, and the dead nodes that this node has to recover.

Deaths are observed without wall time and without comparing clocks. A node is dead if its counter did not change for the
node's whole lease, measured from after its first observation to before the last request for the rows. If a cluster tracks
sessions beside the store, a node is also dead when its session there has ended (``lost``). A dead node has stopped by itself
(`mainspring.nodes.lease`) or can do no harm: recovery ends its term in the store before it touches a job, and the store
refuses writes under an ended term. So a wrong verdict costs duplicate work, but never a result.

Nodes that see the same rows act in ring order. The dead node's heir is the live node with the next higher term; after the
highest term comes the lowest. It acts at once, and each node further along the ring RECOVERY_STEP seconds after the one before.
A later node finds the row gone. Nodes that see different rows may act at the same time; the lock on the dead node's row lets
one of them succeed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from mainspring.ids import Term
from mainspring.nodes.lease import BEAT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.nodes.model import NodeRow

RECOVERY_STEP: Final = 1.0
"""Seconds that each node along the ring waits longer than the one before it."""

OBSERVE_INTERVAL: Final = 1.0
"""Seconds between observations, by default: a dead node is detected at most this long after the end of its lease."""


class _Observed:
    """An observed node: its newest row, the time since which its counter has not changed, and when it was declared dead."""

    __slots__ = ("dead_at", "row", "since")

    def __init__(self, row: NodeRow, since: float) -> None:
        self.row = row
        self.since = since
        self.dead_at: float | None = None


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

    def observe(self, rows: Iterable[NodeRow], asked: float, now: float) -> None:
        """Process all rows of the store: they were requested after the time ``asked`` and arrived at ``now``.

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
                node.row = row  # others may have changed it: an operator may have set it to drain
                if away and node.dead_at is None:
                    node.since = now
                elif away or (node.dead_at is None and asked >= node.since + row.lease):
                    node.dead_at = now
            if row.lost and node.dead_at is None:
                node.dead_at = now  # the end of its session proves its death earlier than its counter
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
