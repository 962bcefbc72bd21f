"""Silent workers: a worker that sends nothing gets no work until it sends again.

| a worker | is silent | its connection is ended |
|---|---|---|
| that has announced heartbeats (`worker.beats`) | after twice the time between two of them | after twelve times that time |
| any other one of the extension | when a job or a decision was lost for its silence | never |
| of plain Gearman, which has no heartbeats | never | never |

Workers of earlier versions announce nothing. The node counts its own checks in place of reading a clock: a node that was stopped
itself must not take all of its workers for silent before it has read what they sent meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.reading import Reading

SILENT_AFTER: Final = 2.0
"""Heartbeats that a worker leaves out before it is silent."""
GONE_AFTER: Final = 12.0
"""Heartbeats that a worker leaves out before its connection is ended, so that its jobs go to others."""
LONGEST_PASSED: Final = 2.0
"""Seconds that one check counts at most."""


class Silence:
    """The silence of a peer. ``changed`` is called when it begins (True) or another job is lost for it, and when it ends (False).

    Times in microseconds are wall times.
    """

    __slots__ = ("_changed", "_last_read", "_quiet", "_reading", "beats", "since_us")

    def __init__(self, reading: Reading, changed: Callable[[bool], None]) -> None:
        self._reading = reading
        self._changed = changed
        self._last_read = 0.0
        self._quiet = 0.0
        self.beats = 0.0
        """Seconds between the heartbeats that the peer has announced; 0 without an announcement."""
        self.since_us = 0
        """When the silence began; 0 if the peer is not silent."""

    def expect_beats(self, seconds: float) -> None:
        """Check that heartbeats come at these intervals from now on."""
        self.beats = seconds

    def begin(self, now_us: int) -> None:
        """Take the peer for silent until it sends something."""
        self._last_read = self._reading.last_read
        if not self.since_us:
            self.since_us = now_us - int(self._quiet * 1_000_000)
        self._changed(True)

    def end(self) -> None:
        """End the silence: the peer has sent something."""
        self.since_us = 0
        self._changed(False)

    def check(self, passed: float, now_us: int) -> bool:
        """Count ``passed`` seconds since the last check; return whether the connection must be ended."""
        last_read = self._reading.last_read
        if last_read != self._last_read:
            self._last_read = last_read
            self._quiet = 0.0
            return False
        if not self.beats or self._reading.paused_by_server:
            return False
        self._quiet += min(passed, LONGEST_PASSED)
        if not self.since_us and self._quiet >= SILENT_AFTER * self.beats:
            self.begin(now_us)
        return self._quiet >= GONE_AFTER * self.beats
