"""The order in which a group runs its operations, on every engine.

Any serial order would be right, because the operations of a group are concurrent. In this order jobs end before others begin, so
that a released unique can be used in the same group. Operations that create jobs come before those that claim them. Reads come
last, so that they see all changes.
"""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """The phase of a kind of operation, named by its class. Kinds of the same phase run in the order of their arrival."""

    WATCH = 0
    """Finds the waiting clients of a job before its end removes them."""
    RECOVER = 1
    SETTLE = 2
    ASSIGN = 3
    CANCEL = 4
    REDRIVE = 5
    SWEEP = 6
    WAKE = 7
    """The last phase that may end jobs; the following phases handle the consequences."""
    SLICES = 8
    """Writes of slices other than the one of jobs. They may create jobs."""
    INBOX = 9
    LEAVE = 10
    SUBMIT = 11
    CLAIM = 12
    WAIT = 13
    LIMITS = 14
    LOGS = 15
    ACCESS = 16
    SERIES = 17
    PROBE = 18
    READ = 19
