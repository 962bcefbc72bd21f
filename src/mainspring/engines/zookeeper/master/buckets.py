"""Which buckets of a root have changed since they were listed: a storm of watches is one list of each, and then a rest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper import paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.engines.zookeeper.session import Session

REST: Final = 0.02
"""Seconds between rounds of lists, at least."""
EACH: Final = 30
"""Names that a list costs, beside its own."""
AT_ONCE: Final = 64
"""Lists that are under way at once."""


class Buckets:
    """The buckets of one root. A watch is set with each list; until the next one, nothing more is heard of a bucket."""

    def __init__(self, session: Session, root: str, changed: Callable[[], None]) -> None:
        """``changed`` is called when a bucket that was clean becomes dirty."""
        self._session = session
        self._root = root
        self._changed = changed
        self.dirty: dict[str, int] = dict.fromkeys(paths.BUCKETS, 0)
        """In the order in which they became so, each with the number of its change."""
        self.changes = 0
        """How many changes were heard of."""
        self.fresh = set(paths.BUCKETS)
        """Those that were never listed: they are listed one after the other, without a rest."""
        self.rested = 0.0
        """The loop's time from which on lists are welcome again."""

    def touch(self, bucket: str) -> None:
        """A bucket has changed."""
        if bucket not in self.dirty:
            self.changes += 1
            self.dirty[bucket] = self.changes
            self._changed()

    def listed(self, changes: int) -> bool:
        """Return whether all changes up to a number have been listed."""
        return next(iter(self.dirty.values()), changes + 1) > changes

    async def names(self, rate: float, most: int = AT_ONCE) -> dict[str, list[str]]:
        """List the buckets that have been dirty for longest, and rest afterwards, so that about ``rate`` names come a second."""
        chosen = list(self.dirty)[:most]
        for bucket in chosen:
            del self.dirty[bucket]
        found = await asyncio.gather(*map(self._list, chosen))
        listed = dict(zip(chosen, found, strict=True))
        now = asyncio.get_running_loop().time()
        cost = sum(len(names) + EACH for names in found) / rate
        if self.fresh.issuperset(chosen):
            self.rested = now
        else:
            self.rested = now + (cost if self.dirty else max(REST, cost))
        self.fresh.difference_update(chosen)
        return listed

    async def _list(self, bucket: str) -> list[str]:
        path = f"{self._root}/{bucket}"
        return await self._session.children(path, lambda: self.touch(bucket))
