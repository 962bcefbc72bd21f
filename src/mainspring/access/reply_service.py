"""Kept answers of a node's clients, in its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.access.awaiting import awaited
from mainspring.access.replies import KEPT_FOR, SWEEP_ROWS, FindReply, Keep, Release, RequestKey, Reserve, SweepReplies
from mainspring.clock import to_us

if TYPE_CHECKING:
    from mainspring.access.replies import KeptReply, Reservation
    from mainspring.clock import Clock
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.operation import Operation

SWEEP_INTERVAL: Final = 600.0


class ReplyService:
    """Reserves keys, and keeps answers for `KEPT_FOR` seconds. Its coroutines raise StoreError.

    ``atomic``: the store has the jobs, too, so that an answer can be in the transaction of its act.
    """

    def __init__(self, commits: CommitQueue, clock: Clock, *, atomic: bool = True) -> None:
        self.atomic = atomic
        self._commits = commits
        self._clock = clock
        self._swept = clock.monotonic()

    def key(self, key: bytes, request: bytes) -> RequestKey:
        """Return the key of a request that is made now; both arguments are digests."""
        now_us = to_us(self._clock.wall())
        return RequestKey(key, request, now_us, now_us - to_us(KEPT_FOR))

    async def find_reply(self, key: RequestKey) -> Reservation | None:
        """Return the earlier reservation of a key, if there is one."""
        found: Reservation | None = await self._commit(FindReply(key.key, key.expired_us))
        return found

    async def reserve_reply(self, key: RequestKey) -> Reservation | None:
        """Reserve a key for a request; return None, or the earlier reservation of the key."""
        found: Reservation | None = await self._commit(Reserve(*key))
        return found

    async def keep_reply(self, key: bytes, reply: KeptReply) -> None:
        """Keep the answer to the request that has reserved a key."""
        await self._commit(Keep(key, reply))

    async def release_reply(self, key: bytes) -> None:
        """Release a key, because its request has changed nothing."""
        await self._commit(Release(key))

    def age(self, reservation: Reservation) -> float:
        """Return the seconds since a reservation was made."""
        return self._clock.wall() - reservation.at_us / 1e6

    def tick(self, now: float) -> None:
        """Delete old answers from time to time; called once a second with the monotonic time."""
        if now - self._swept >= SWEEP_INTERVAL:
            self._swept = now
            self._sweep()

    def _sweep(self) -> None:
        sweep = SweepReplies(to_us(self._clock.wall() - KEPT_FOR))
        self._commits.put(sweep, lambda number: self._sweep() if number >= SWEEP_ROWS else None)

    async def _commit(self, operation: Operation) -> Any:
        return await awaited(lambda done, failed: self._commits.put(operation, done, failed))
