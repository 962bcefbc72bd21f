"""How long an event loop has not turned, as an observer in another thread or process sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

INTERVAL: Final = 0.5
"""Seconds between two turns that a loop counts, and between two looks at them."""
LONGEST_LOOK: Final = 2.0
"""Seconds that one look counts at most."""
STOP_LIMIT: Final = 2.0
"""Seconds for which a loop may be blocked during a stop."""


class TurnClock:
    """The time for which a number of turns has stood still. ``now`` is monotonic.

    The time counts the observer's own looks: a machine that was suspended, or a group of processes that was stopped together with
    the observer, has not frozen.
    """

    def __init__(self, now: float) -> None:
        self._now = now
        self._turns = 0
        self.quiet = 0.0
        """Seconds."""

    def look(self, turns: int, now: float) -> float:
        """Look at the number; return for how many seconds it has not changed. 0 turns: the loop does not run."""
        passed, self._now = now - self._now, now
        if turns != self._turns or not turns:
            self._turns = turns
            self.quiet = 0.0
        else:
            self.quiet += min(passed, LONGEST_LOOK)
        return self.quiet


def is_traced(pid: int) -> bool:
    """Return whether a debugger of the system, such as gdb, has attached to a process. Linux shows that; elsewhere: False."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    return any(line.split()[1] != "0" for line in status.splitlines() if line.startswith("TracerPid:"))
