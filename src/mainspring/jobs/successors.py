"""Successors: jobs that wait for the end of the live job of their unique.

A successor is an ordinary SCHEDULED job under another unique, which no client can name. So it is listed, awaited and cancelled as
any job, and the index that keeps a second live job from a unique keeps a second successor from it. Its due time is `NEVER_US`: it
begins only after its release (``conflicts``), which gives it the unique itself and its own due time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs.model import UNIQUE_LIMIT, State

if TYPE_CHECKING:
    from mainspring.jobs.model import Job

NEVER_US: Final = 2**53
"""The due time of a successor, in the year 2255: no node wakes it."""


def successor_unique(unique: bytes) -> bytes:
    """Return the unique of the successor of the job with a unique: longer than those that clients may give."""
    return unique.ljust(UNIQUE_LIMIT, b"\0") + bytes((len(unique),))


def awaited_unique(unique: bytes) -> bytes:
    """Return the unique for which a successor waits, by its own; empty if the unique is none of a successor."""
    return unique[: unique[-1]] if len(unique) == UNIQUE_LIMIT + 1 else b""


def is_successor(job: Job) -> bool:
    """Return whether a job waits for another one, or has ended before it was released."""
    return len(job.unique) > UNIQUE_LIMIT


def waits(job: Job) -> bool:
    """Return whether a job is a successor that has not ended."""
    return is_successor(job) and job.state == State.SCHEDULED
