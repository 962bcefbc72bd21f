"""A node's own lease: until when it may believe that the jobs it holds are still its own.

::

    node      beat sent ──────────────── usable, 12 s: it stops by itself ─►│── margin, 3 s ──►│
    store        └─► counter rises
    others             └─► seen ──────────── lease, 15 s unchanged: it is dead ──────────────────────►│

The node counts from before it sent the beat, the others from after they saw it: whatever the way to the store takes, the
node's deadline is the earlier one. The margin is for what remains: clocks that do not run at exactly the same rate, and the
time it takes to stop workers. Nobody compares clocks: each measures a span with its own.
"""

from __future__ import annotations

from typing import Final

from mainspring.errors import SettingsError
from mainspring.quantities import format_duration

BEAT: Final = 5.0
"""Seconds between heartbeats, unless said otherwise."""

LEASE: Final = 15.0
"""Seconds without a heartbeat after which others may take a node's jobs, unless said otherwise."""

MARGIN: Final = 0.2
"""The share of the lease that a node gives up for safety: of 15 s it uses 12. A beat that fails can be repeated for 7 s."""


class Lease:
    """The lease of one term. It is extended by confirmed heartbeats alone, and once ended it never comes back.

    Times are seconds of the node's monotonic clock. Use one that goes on while the machine is suspended (on Linux
    ``CLOCK_BOOTTIME``): otherwise a node that wakes up takes its lease for valid until the store refuses its next beat.

    The way to use it::

        lease = Lease(sent_at)  # sent_at: before the term was begun in the store
        sent_at = lease.beating(now())  # then write the beat
        lease.beaten(sent_at, now())  # when the store has confirmed it
        lease.ended(now())  # then drop everything, and come back under a new term
    """

    __slots__ = ("_beat", "_deadline", "_next", "_usable")

    def __init__(self, sent_at: float, *, lease: float = LEASE, beat: float = BEAT, margin: float = MARGIN) -> None:
        """Begin the lease of a term; ``sent_at`` is the time before it was begun in the store.

        Raises SettingsError where two beats do not fit into what the margin leaves of the lease.
        """
        usable = lease * (1 - margin)
        if not 0 < margin < 1 or not beat > 0 or not 2 * beat <= usable:
            raise SettingsError(
                f"a heartbeat every {format_duration(beat)} does not fit a lease of {format_duration(lease)}: of the lease "
                f"{margin:.0%} is kept for safety, and the rest has to last for two beats at least"
            )
        self._beat = beat
        self._usable = usable
        self._deadline = sent_at + usable
        self._next = sent_at + beat

    def beating(self, now: float) -> float:
        """Note that a beat is about to be sent, and return its time for `beaten`."""
        self._next = now + self._beat / 5
        return now

    def beaten(self, sent_at: float, now: float) -> None:
        """Extend the lease: the store has confirmed the beat that was sent at ``sent_at``.

        A confirmation that comes after the end changes nothing: others may have taken the jobs in the meantime, and the node
        may have acted on the end. One that is late or out of order never shortens the lease.
        """
        self._next = max(self._next, sent_at + self._beat)
        if not self.ended(now):
            self._deadline = max(self._deadline, sent_at + self._usable)

    def ended(self, now: float) -> bool:
        """Whether the node has to stop: it holds nothing any more."""
        return now >= self._deadline

    def remaining(self, now: float) -> float:
        """Return the seconds until the lease ends, 0 where it has."""
        return max(0.0, self._deadline - now)

    def wait(self, now: float) -> float:
        """Return the seconds until the next beat has to be sent, 0 where it is due.

        It is due a beat after the last confirmed one was sent; while none confirms, a fifth of that after the last one was sent.
        """
        return max(0.0, self._next - now)
