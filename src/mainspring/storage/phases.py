"""The order in which a group runs its operations, whatever they are and whatever the engine.

Any serial order of a group would be right, for its operations were under way at the same time. This one serves best: what ends
comes before what begins, so that a name that becomes free can be taken in the same group; what makes jobs comes before what
claims them; and what only reads comes last, so that it sees all of it.
"""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """When a kind of operation runs. Each class of operations names its own; kinds of one phase run as they come."""

    WATCH = 0
    """Who waits for a job is asked before its end lets them go."""
    RECOVER = 1
    SETTLE = 2
    ASSIGN = 3
    CANCEL = 4
    REDRIVE = 5
    SWEEP = 6
    WAKE = 7
    """The last phase that may end jobs: what follows from their ends comes next."""
    SLICES = 8
    """What other slices than that of jobs write. It may make jobs."""
    INBOX = 9
    LEAVE = 10
    SUBMIT = 11
    CLAIM = 12
    WAIT = 13
    LIMITS = 14
    PROBE = 15
    READ = 16
