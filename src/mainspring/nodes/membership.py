"""Which nodes live, which are dead, and which of the dead this node has to recover.

Death is observed, not computed. No wall time is read and no clocks are compared: a node is dead when its counter did not
change for a whole lease of its own, measured from after it was seen for the first time to before it was asked for the last
time. Where a cluster watches over sessions beside the store, a node is also dead when its session has ended there (``lost``).
Such a node has stopped by itself (`mainspring.nodes.lease`), or cannot do harm any more: recovery ends its term in the
store before it touches a job, and the store refuses what comes under an ended term. So a wrong verdict costs work done twice,
never a result.

Nodes that see the same rows act in ring order: the dead node's heir, which is the live one with the next higher term (after
the highest comes the lowest), at once, and each one further along the ring STEP seconds later than the one before. Who comes
later finds the row gone. Nodes that see different rows may act at the same time; the lock on the dead node's row lets one of
them do it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from mainspring.ids import Term
from mainspring.nodes.lease import BEAT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.nodes.model import NodeRow

STEP: Final = 1.0
"""Seconds that each node along the ring leaves to those before it."""

LOOK: Final = 1.0
"""Seconds between observations, unless said otherwise. Up to so much later than its lease ended is a dead node found."""


class _Sight:
    """What this node has seen of another: its newest row, since when its counter has stood, and when that was too long."""

    __slots__ = ("found", "row", "since")

    def __init__(self, row: NodeRow, since: float) -> None:
        self.row = row
        self.since = since
        self.found: float | None = None


class Membership:
    """The nodes of a fleet as one of them sees them.

    Times are seconds of this node's monotonic clock. Whatever the schedule of observations, a node whose counter rises within
    each lease in the store is never held dead.
    """

    def __init__(self, me: Term, *, beat: float = BEAT, look: float = LOOK) -> None:
        """Begin with nobody. ``beat`` are the seconds between this node's heartbeats, ``look`` those between observations."""
        self._me = me
        self._look = look
        self._away = 2 * max(beat, look)
        self._sights: dict[int, _Sight] = {}
        self._live: tuple[NodeRow, ...] = ()
        self._ring: list[int] = []
        self._answered: float | None = None

    # ---- observing ----

    def observe(self, rows: Iterable[NodeRow], asked: float, now: float) -> None:
        """Take in all rows of the store: ``asked`` is the time before they were asked for, ``now`` when they came.

        A row that is not among them any more is gone: its node left, or was recovered.

        After a pause of more than two beats between two answers, all spans begin anew. It was this node that was away
        (stopped, starved, cut off), or the store that was: then nobody could beat, and all would look dead at once to whoever
        asks first. Only who was found dead before the pause stays so while its counter stands; its ring begins anew.
        """
        away = self._is_away(now)
        before, self._sights = self._sights, {}
        for row in rows:
            sight = before.get(row.term)
            if sight is None or sight.row.counter != row.counter:
                sight = _Sight(row, now)
            else:
                sight.row = row  # others may change it: ask it to drain
                if away and sight.found is None:
                    sight.since = now
                elif away or (sight.found is None and asked >= sight.since + row.lease):
                    sight.found = now
            if row.lost and sight.found is None:
                sight.found = now  # who watches over its session knows better than its counter
            self._sights[row.term] = sight
        self._live = tuple(self._sights[term].row for term in sorted(self._sights) if self._sights[term].found is None)
        self._ring = [row.term for row in self._live]
        self._answered = now

    def wait(self, now: float) -> float:
        """Return the seconds until the next observation is worth its while, 0 where it is due.

        It is so after ``look`` seconds at the latest, and sooner where a counter has stood for nearly a lease, or where it will
        be this node's turn to recover: then look first, and ask `mine` after that.
        """
        if self._answered is None:
            return 0.0
        at = self._answered + self._look
        # The same sums as where they are judged: a difference in the last bit, and who waits for it would look in vain.
        for term, sight in self._sights.items():
            if sight.found is None:
                at = min(at, sight.since + sight.row.lease)
            else:
                turn = self._turn(term, sight.found)
                if turn is not None and turn > self._answered:
                    at = min(at, turn)
        return max(0.0, at - now)

    # ---- who is there ----

    def live(self) -> tuple[NodeRow, ...]:
        """Return the rows of all that were not dead at the last observation, in ring order; the same tuple until the next."""
        return self._live

    def dead(self, now: float) -> tuple[NodeRow, ...]:
        """Return the rows of the nodes that are dead and not recovered yet, in ring order.

        There are none while the last observation is more than two beats old: this node was away, and has to look first.
        """
        if self._is_away(now):
            return ()
        return tuple(sight.row for _, sight in sorted(self._sights.items()) if sight.found is not None)

    def heir(self, dead: Term) -> Term | None:
        """Return the live node that comes after ``dead`` in ring order; None where there is none."""
        others = [term for term in self._ring if term != dead]
        return Term(others[bisect_right(others, dead) % len(others)]) if others else None

    def mine(self, now: float) -> tuple[NodeRow, ...]:
        """Return the rows of the dead nodes that this node has to recover now, in ring order.

        A row stays among them until an observation shows that it is gone. A recovery that ends the term only where the counter
        is still that of the row leaves alone who has come back between the observation and the lock.

        A node whose own row is gone or dead has nothing to recover: its own lease is over.
        """
        found = []
        for row in self.dead(now):
            since = self._sights[row.term].found
            assert since is not None
            turn = self._turn(row.term, since)
            if turn is not None and turn <= now:
                found.append(row)
        return tuple(found)

    def _turn(self, dead: int, found: float) -> float | None:
        """Return when this node may recover ``dead``; None where it is not in the ring itself."""
        place = bisect_left(self._ring, self._me)
        if place == len(self._ring) or self._ring[place] != self._me:
            return None
        return found + STEP * ((place - bisect_left(self._ring, dead)) % len(self._ring))

    def _is_away(self, now: float) -> bool:
        return self._answered is not None and now - self._answered > self._away
