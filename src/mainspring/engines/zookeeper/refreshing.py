"""Watched places are read again within a lease: no event is the only way to a change.

An event may be lost by a defect here, in the client library or in a member, and a caller that waits for it alone would wait for
good. A watch means "read again". So each one is also called some time after its read, as if its event had come, and its owner
reads the place again and sets the next one. Places that change are read for their events anyway; only quiet ones cost reads.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.engines.zookeeper.tree import Change, Done, Node, Refused, Tree, Watch

STEPS: Final = 20
"""Looks for due watches in one interval."""
EARLIEST: Final = 0.5
LATEST: Final = 0.9
"""The part of the interval after which a watch is due. It differs by path: all buckets of a root are first read at once."""

log = structlog.get_logger("mainspring.zookeeper")


@dataclass(frozen=True, slots=True)
class _Place:
    """A watched place, and the only watch on it below: equal for every read of the place."""

    tree: RefreshedTree
    path: str
    of_children: bool

    def __call__(self) -> None:
        self.tree.call(self)


class RefreshedTree:
    """A tree that calls each watch once: with the first event of its place, or some time after its read."""

    def __init__(self, tree: Tree, within: float = 0.0) -> None:
        """``within`` are the seconds after which a watch is called at the latest; 0: those of the session time-out."""
        self._tree = tree
        self._within = within
        self._places: dict[_Place, tuple[float, dict[Watch, None]]] = {}
        """The watches of each place, and the loop's time at which they are due."""
        self._timer: asyncio.TimerHandle | None = None

    # ---- the port ----

    async def open(self) -> None:
        """Start the first session; see ``Tree``."""
        await self._tree.open()
        self._within = self._within or self._tree.session_timeout
        self._refresh()

    async def close(self) -> None:
        """End the session; see ``Tree``."""
        if self._timer is not None:
            self._timer.cancel()
        self._places.clear()
        await self._tree.close()

    @property
    def session(self) -> int:
        """Return the session's number."""
        return self._tree.session

    @property
    def session_timeout(self) -> float:
        """Return the seconds that the ensemble has granted."""
        return self._tree.session_timeout

    def on_session(self, changed: Callable[[], None]) -> None:
        """Call a function with each change of the connection or the session."""
        self._tree.on_session(changed)

    def get(self, path: str, watch: Watch | None = None) -> Coroutine[Any, Any, Node | None]:
        """Return a node."""
        return self._tree.get(path, self._add(path, watch, of_children=False))

    def get_many(self, paths: Sequence[str]) -> Coroutine[Any, Any, list[Node | None]]:
        """Return several nodes."""
        return self._tree.get_many(paths)

    def children(self, path: str, watch: Watch | None = None) -> Coroutine[Any, Any, list[str] | None]:
        """Return the names of a node's children. Its watch is called even if there is no such node."""
        return self._tree.children(path, self._add(path, watch, of_children=True))

    def commit(self, changes: Sequence[Change]) -> Coroutine[Any, Any, Done | Refused]:
        """Apply all changes, or none."""
        return self._tree.commit(changes)

    def sync(self) -> Coroutine[Any, Any, None]:
        """Wait until all commits so far can be read here."""
        return self._tree.sync()

    # ---- watches ----

    def _add(self, path: str, watch: Watch | None, *, of_children: bool) -> _Place | None:
        """Register a watch before its read is sent: whatever happens then, it is called."""
        if watch is None:
            return None
        place = _Place(self, path, of_children)
        found = self._places.get(place)
        if found is not None:
            found[1][watch] = None
        else:
            part = EARLIEST + (LATEST - EARLIEST) * crc32(path.encode()) / 2**32
            self._places[place] = asyncio.get_running_loop().time() + self._within * part, {watch: None}
        return place

    def call(self, place: _Place) -> None:
        """Call the watches of a place."""
        _, watches = self._places.pop(place, (0.0, {}))
        for watch in watches:
            try:
                watch()
            except Exception:
                log.exception("a watch failed: a defect in the store's code", path=place.path)

    def _refresh(self) -> None:
        """Call the due watches. It is no task, which could end unnoticed: it first sets the time of its next call."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._within / STEPS, self._refresh)
        now = loop.time()
        for place in [place for place, (due, _) in self._places.items() if due <= now]:
            self.call(place)
