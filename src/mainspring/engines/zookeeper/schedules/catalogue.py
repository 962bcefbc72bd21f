"""The cache of all specifications of schedules: read once, and then only the changed ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from mainspring.engines.zookeeper.schedules import contents, places
from mainspring.schedules.catalogue import Catalogue, leaders

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mainspring.engines.zookeeper.session import Session
    from mainspring.engines.zookeeper.tree import Tree
    from mainspring.schedules.model import Schedule


class CatalogueCache(NamedTuple):
    """The specifications at one version of the catalogue's node. Transactions that use them check that version."""

    version: int
    catalogue: Catalogue
    leaders: Mapping[str, str]

    def turns(self, names: Collection[str]) -> list[str]:
        """Return the schedules to lock before fire times of these are computed."""
        return sorted({*names, *(self.leaders[name] for name in names if name in self.leaders)})

    def turn(self, name: str) -> str:
        """Return the leader of a schedule's family, or itself if it has none."""
        return self.leaders.get(name, name)

    def minds_ends(self, name: str) -> bool:
        """Return whether the end of a run may change more than its own row."""
        return name in self.leaders or self.catalogue.queues(name)


class Specifications:
    """The cached specifications of one term of a node. A stale cache shows as a conflict when a transaction writes."""

    def __init__(self, session: Session) -> None:
        self._tree: Tree = session.tree
        self._cache = CatalogueCache(-1, Catalogue({}), {})
        self._stale = True
        self._lock = asyncio.Lock()

    def invalidate(self) -> None:
        """Read the catalogue before the next use."""
        self._stale = True

    async def now(self, *, fresh: bool = False) -> CatalogueCache:
        """Return the specifications; with ``fresh`` including the latest commits."""
        if fresh:
            await self._tree.sync()
            self._stale = True
        if self._stale or self._lock.locked():  # a caller during a refresh waits for it
            async with self._lock:
                if self._stale:
                    await self._refresh()
        assert self._cache.version >= 0, "no version could be checked"
        return self._cache

    async def _refresh(self) -> None:
        self._stale = False  # before the read: a later change sets it again
        try:
            node = await self._tree.get(places.CATALOGUE, self.invalidate)
            assert node is not None, "the roots are there"
            if node.version == self._cache.version:
                return
            before = self._cache
            names = None if before.version < 0 else contents.changes_since(node.data, before.version)
            schedules: dict[str, Schedule] = {} if names is None else dict(before.catalogue.schedules)
            unread: dict[str, str] = {} if names is None else dict(before.catalogue.unread)
            paths = await self._all() if names is None else [places.spec(name) for name in sorted(names)]
            for name in names or ():
                schedules.pop(name, None)
                unread.pop(name, None)
            for path, found in zip(paths, await self._tree.get_many(paths), strict=True):
                if found is not None:
                    name = places.name_of(path.rpartition("/")[2])
                    schedules[name], why = contents.decode_schedule(name, found.data)
                    if why:
                        unread[name] = why
            self._cache = CatalogueCache(node.version, Catalogue(schedules, unread), leaders(schedules))
        except BaseException:
            self._stale = True
            raise

    async def _all(self) -> list[str]:
        buckets = [f"{places.SPECS}/{bucket}" for bucket in places.BUCKETS]
        listed = await asyncio.gather(*map(self._tree.children, buckets))
        return [f"{bucket}/{name}" for bucket, names in zip(buckets, listed, strict=True) for name in names or ()]
