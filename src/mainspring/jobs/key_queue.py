"""What waits of one function, in the order in which it is handed out."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from mainspring.jobs.accounts import UNBOUNDED

if TYPE_CHECKING:
    from mainspring.jobs.accounts import Account
    from mainspring.jobs.model import Job


class Waiting(Protocol):
    """A job that waits here."""

    job: Job
    queued: bool
    """False once it was taken out: it is still met in its place, and passed over."""


W = TypeVar("W", bound=Waiting)


class KeyQueue(Generic[W]):
    """The jobs of one key that are here."""

    __slots__ = ("account", "in_flight", "key", "parked", "ready", "running", "size")

    def __init__(self, key: bytes, account: Account | None) -> None:
        self.key = key
        self.account = account
        self.ready: tuple[deque[W], deque[W], deque[W]] = (deque(), deque(), deque())
        self.size = 0
        """How many wait, without those that were taken out."""
        self.in_flight = 0
        """How many are on the way to the store that are leased to this node already."""
        self.running = 0
        """How many have left for a worker, and their ends are not on disk."""
        self.parked = False
        """None can start until tokens come back."""

    def free(self, now_us: int) -> int:
        """Return how many may start."""
        return UNBOUNDED if self.account is None else self.account.free(self.running, now_us)

    def clear(self) -> None:
        """Forget those that were taken out."""
        for ready in self.ready:
            waiting = [held for held in ready if held.queued]
            ready.clear()
            ready.extend(waiting)


def merge_by_age(ready: deque[W], new: deque[W]) -> None:
    """Put jobs that came in order into their places among those that wait; ``new`` is used up.

    What waits need not be in order: what had its turn already is before the others.
    """
    before: list[W] = []
    if ready and new and ready[-1].job.id > new[0].job.id:
        # What is passed here is handed out before the last of what was claimed, and so before the next claim.
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
