"""Kept answers of a node's clients, in its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.access.awaiting import awaited
from mainspring.access.replies import KEPT_FOR, SWEEP_ROWS, Keep, Release, Reserve, SweepReplies
from mainspring.clock import to_us

if TYPE_CHECKING:
    from mainspring.access.replies import KeptReply, Reservation
    from mainspring.clock import Clock
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.operation import Operation

SWEEP_INTERVAL: Final = 600.0


class ReplyService:
    """Reserves keys, and keeps answers for `KEPT_FOR` seconds. Its coroutines raise StoreError."""

    def __init__(self, commits: CommitQueue, clock: Clock) -> None:
        self._commits = commits
        self._clock = clock
        self._swept = clock.monotonic()

    async def reserve_reply(self, key: bytes, request: bytes) -> Reservation | None:
        """Reserve a key for a request; return None, or the earlier reservation of the key."""
        now_us = to_us(self._clock.wall())
        found: Reservation | None = await self._commit(Reserve(key, request, now_us, now_us - to_us(KEPT_FOR)))
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
