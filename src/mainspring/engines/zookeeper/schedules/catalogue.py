"""All specifications of schedules, as this node knows them: read once, and then only what has changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from mainspring.engines.zookeeper.schedules import contents, places
from mainspring.schedules.catalogue import Catalogue, leaders
from mainspring.schedules.model import Schedule

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mainspring.engines.zookeeper.session import Session
    from mainspring.engines.zookeeper.tree import Tree


class CatalogueCache(NamedTuple):
    """The specifications at one version of the catalogue's node. Whoever relies on them has to demand that version."""

    version: int
    catalogue: Catalogue
    leaders: Mapping[str, str]

    def turns(self, names: Collection[str]) -> list[str]:
        """Return the schedules that are to be locked before anything that fire times of these may touch."""
        return sorted({*names, *(self.leaders[name] for name in names if name in self.leaders)})

    def turn(self, name: str) -> str:
        """Return the schedule by which its family takes turns; itself where it has none."""
        return self.leaders.get(name, name)

    def minds_ends(self, name: str) -> bool:
        """Return whether the end of a run may mean more than a change of its own row."""
        return name in self.leaders or self.catalogue.queues(name)


class Specifications:
    """What one term of a node knows. It may be out of date, which shows when something is written that relies on it."""

    def __init__(self, session: Session) -> None:
        self._tree: Tree = session.tree
        self._known = CatalogueCache(-1, Catalogue({}), {})
        self._stale = True
        self._lock = asyncio.Lock()

    def doubt(self) -> None:
        """Look before the next use: something was not as it was thought to be."""
        self._stale = True

    async def now(self, *, fresh: bool = False) -> CatalogueCache:
        """Return what is known; ``fresh``: as it is in the tree at this moment."""
        if fresh:
            await self._tree.sync()
            self._stale = True
        if self._stale or self._lock.locked():  # who comes during a look waits for it
            async with self._lock:
                if self._stale:
                    await self._refresh()
        assert self._known.version >= 0, "no version would be guarded by any"
        return self._known

    async def _refresh(self) -> None:
        self._stale = False  # before it is read: what changes afterwards makes it so again
        try:
            node = await self._tree.get(places.CATALOGUE, self.doubt)
            assert node is not None, "the roots are there"
            if node.version == self._known.version:
                return
            before = self._known
            names = None if before.version < 0 else contents.changes_since(node.data, before.version)
            schedules = {} if names is None else dict(before.catalogue.schedules)
            paths = await self._all() if names is None else [places.spec(name) for name in sorted(names)]
            for name in names or ():
                schedules.pop(name, None)
            for found in await self._tree.get_many(paths):
                if found is not None:
                    schedule = contents.decode(found.data, Schedule)
                    schedules[schedule.name] = schedule
            self._known = CatalogueCache(node.version, Catalogue(schedules), leaders(schedules))
        except BaseException:
            self._stale = True
            raise

    async def _all(self) -> list[str]:
        buckets = [f"{places.SPECS}/{bucket}" for bucket in places.BUCKETS]
        listed = await asyncio.gather(*map(self._tree.children, buckets))
        return [f"{bucket}/{name}" for bucket, names in zip(buckets, listed, strict=True) for name in names or ()]
