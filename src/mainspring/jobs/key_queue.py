"""The waiting jobs of one key, in the order in which they are handed out."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from mainspring.jobs.accounts import UNBOUNDED

if TYPE_CHECKING:
    from mainspring.jobs.accounts import Account
    from mainspring.jobs.model import Job


class Waiting(Protocol):
    """A waiting job."""

    job: Job
    queued: bool
    """False once it was removed: its entry stays in its place, and is skipped."""


W = TypeVar("W", bound=Waiting)


class KeyQueue(Generic[W]):
    """The jobs of one key that are in memory."""

    __slots__ = ("account", "in_flight", "key", "parked", "ready", "running", "size")

    def __init__(self, key: bytes, account: Account | None) -> None:
        self.key = key
        self.account = account
        self.ready: tuple[deque[W], deque[W], deque[W]] = (deque(), deque(), deque())
        self.size = 0
        """The number of waiting jobs, without removed ones."""
        self.in_flight = 0
        """The number of jobs in the commit queue that are leased to this node already."""
        self.running = 0
        """The number of jobs handed to workers whose ends are not on disk."""
        self.parked = False
        """Whether no job can start until tokens come back."""

    def free(self, now_us: int) -> int:
        """Return how many may start."""
        return UNBOUNDED if self.account is None else self.account.free(self.running, now_us)

    def clear(self) -> None:
        """Free the entries of removed jobs."""
        for ready in self.ready:
            waiting = [held for held in ready if held.queued]
            ready.clear()
            ready.extend(waiting)


def merge_by_age(ready: deque[W], new: deque[W]) -> None:
    """Insert jobs that come in order among the waiting jobs by age; ``new`` is empty afterwards.

    The waiting jobs need not be in order: requeued jobs are before the others.
    """
    before: list[W] = []
    if ready and new and ready[-1].job.id > new[0].job.id:
        # The jobs passed here are handed out before the last claimed job, and so before the next claim.
        while new and ready:
            if not ready[0].queued:
                ready.popleft()
            else:
                before.append((ready if ready[0].job.id < new[0].job.id else new).popleft())
    if ready and not new:
        ready.extendleft(reversed(before))
    else:
        ready.extend(before)
        ready.extend(new)
