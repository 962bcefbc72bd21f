"""The lease of a node: the time for which it owns the jobs that it holds.

::

    node      beat sent ──────────────── usable, 12 s: it stops by itself ─►│── margin, 3 s ──►│
    store        └─► counter rises
    others             └─► seen ──────────── lease, 15 s unchanged: it is dead ──────────────────────►│

The node counts from before it sent the beat, the others from after they saw it. So the node's deadline is always the earlier
one, however slow the store is. The margin covers clocks that run at slightly different rates, and the time that it takes to
stop workers. No clocks are compared: each node measures time spans with its own clock.
"""

from __future__ import annotations

from typing import Final

from mainspring.errors import SettingsError
from mainspring.quantities import format_duration

BEAT: Final = 5.0
"""Seconds between heartbeats, by default."""

LEASE: Final = 15.0
"""Seconds without a heartbeat after which other nodes may recover a node's jobs, by default."""

MARGIN: Final = 0.2
"""The part of the lease that a node leaves unused for safety: it uses 12 s of 15. A failed beat can be repeated for 7 s."""


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
