"""The dirty buckets of a root: however many watches fire, each bucket is listed once, and then there is a pause."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper import paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.engines.zookeeper.session import Session

LIST_PAUSE: Final = 0.02
"""The least seconds between rounds of lists."""
LIST_COST: Final = 30
"""The cost of a list in names, in addition to the names it returns."""
CONCURRENT_LISTS: Final = 64
"""Lists in flight at once."""


class Buckets:
    """The buckets of one root. Each list sets a watch, which reports one change; the next list sets it again."""

    def __init__(self, session: Session, root: str, changed: Callable[[], None]) -> None:
        """``changed`` is called when a bucket that was clean becomes dirty."""
        self._session = session
        self._root = root
        self._changed = changed
        self.dirty: dict[str, int] = dict.fromkeys(paths.BUCKETS, 0)
        """The dirty buckets, the oldest change first, each with the number of its change."""
        self.changes = 0
        """The number of changes so far."""
        self.fresh = set(paths.BUCKETS)
        """The buckets that were never listed: these are listed one after the other, without a pause."""
        self.next_list_at = 0.0
        """The loop's time of the next list at the earliest."""

    def touch(self, bucket: str) -> None:
        """Mark a bucket as changed."""
        if bucket not in self.dirty:
            self.changes += 1
            self.dirty[bucket] = self.changes
            self._changed()

    def listed(self, changes: int) -> bool:
        """Return whether all changes up to a number have been listed."""
        return next(iter(self.dirty.values()), changes + 1) > changes

    async def list_names(self, rate: float, most: int = CONCURRENT_LISTS) -> dict[str, list[str]]:
        """List the buckets that have been dirty for longest, and set the next list's time for about ``rate`` names a second."""
        chosen = list(self.dirty)[:most]
        for bucket in chosen:
            del self.dirty[bucket]
        found = await asyncio.gather(*map(self._list, chosen))
        listed = dict(zip(chosen, found, strict=True))
        now = asyncio.get_running_loop().time()
        cost = sum(len(names) + LIST_COST for names in found) / rate
        if self.fresh.issuperset(chosen):
            self.next_list_at = now
        else:
            self.next_list_at = now + (cost if self.dirty else max(LIST_PAUSE, cost))
        self.fresh.difference_update(chosen)
        return listed

    async def _list(self, bucket: str) -> list[str]:
        path = f"{self._root}/{bucket}"
        return await self._session.children(path, lambda: self.touch(bucket))
