"""Membership and messages for the nodes of another store: implements ``mainspring.nodes.store.Cluster``.

Who lives has an ephemeral node, and a box for letters. The store keeps the terms, and ends them; the ensemble says who is gone,
as soon as a session has ended, and carries what nodes tell each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.relay import Relay
from mainspring.engines.zookeeper.tree import Create, Delete, Refused
from mainspring.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mainspring.engines.zookeeper.tree import Tree
    from mainspring.events.relay import Message

RETRY_DELAY: Final = 1.0
"""Seconds between attempts to be there."""
LEAVE: Final = 2.0
"""Seconds at the end to take this node's traces away."""

log = structlog.get_logger("mainspring.zookeeper")


class ZookeeperCluster:
    """One node's part in it, below the chroot of a tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.id = ""
        self._heard: Callable[[Message], None] = lambda _: None
        self._who = ""
        """What this node is to be there."""
        self._there = ""
        """What it is there, as far as it knows."""
        self._relay: Relay | None = None
        self._messages: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._names: dict[int, str] = {}
        self._stale = True

    # ---- being there ----

    async def open(self, heard: Callable[[Message], None]) -> None:
        """Begin to be there, once the ensemble can be reached."""
        self._heard = heard
        self._tree.on_session(self._wake.set)
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="zookeeper membership")

    async def join(self, node: str, term: int) -> None:
        """Be there under a term from now on."""
        before, self._who = self._there, paths.worker_name(node, term)
        self._there = ""
        if before:
            await self._stop()
            await self._clear(before)
        self._wake.set()

    def joined(self, term: int) -> bool:
        """Whether this node is there under a term."""
        return bool(self._there) and paths.term_of(self._there) == term

    async def _keep(self) -> None:
        """Be there, in each session anew."""
        is_open = False
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                if not is_open:
                    await self._tree.open()
                    is_open = True
                if not self.id:
                    await self._begin()
                if self._who:
                    await self._appear(self._who)
            except StoreError as error:
                self._there = ""
                log.warning("the cluster cannot be reached; the store alone tells who lives", reason=str(error))
                await asyncio.sleep(RETRY_DELAY)
                self._wake.set()

    async def _begin(self) -> None:
        """Agree with the others about what this place is called."""
        for root in (paths.WORKERS, paths.MAIL):
            await self._tree.commit([Create(root)])
        await self._tree.commit([Create(paths.CLUSTER, uuid.uuid4().hex.encode())])
        node = await self._tree.get(paths.CLUSTER)
        assert node is not None
        self.id = node.data.decode()

    async def _appear(self, who: str) -> None:
        place = paths.worker(who)
        mine = await self._tree.get(place)
        if mine is not None and mine.owner != self._tree.session:
            await self._tree.commit([Delete(place)])  # the session before made it: it would end with that
            mine = None
        await self._tree.commit([Create(paths.mail(who))])
        if mine is None:
            made = await self._tree.commit([Create(place, ephemeral=True)])
            if isinstance(made, Refused):
                raise StoreUnavailableError(f"{place} cannot be created: {made.why.value}")
        if who != self._who:
            return  # there is another term meanwhile
        if not self._there:
            log.info("the cluster tells who lives", cluster=self.id, worker=who)
        self._there, self._stale = who, True
        if self._messages is None:
            self._relay = Relay(self._tree, who, self._whose, self._heard)
            self._messages = asyncio.get_running_loop().create_task(self._relay.run(), name="zookeeper messages")

    # ---- the others ----

    async def gone(self, terms: Collection[int]) -> Collection[int]:
        """Return those of some terms that are surely not there any more."""
        if not self._there:
            return ()
        try:
            missing = set(terms) - await self._look()
            if missing:
                # A member of the ensemble may lag behind: whoever is not there for it, may be.
                await self._tree.sync()
                self._stale = True
                missing -= await self._look()
        except StoreError:
            return ()
        return missing

    async def _look(self) -> set[int]:
        if self._stale:
            self._stale = False
            try:
                names = paths.workers_of(await self._tree.children(paths.WORKERS, self._changed))
            except StoreError:
                self._stale = True
                raise
            self._names = {paths.term_of(name): name for name in names}
        return set(self._names)

    def _changed(self) -> None:
        self._stale = True

    # ---- messages ----

    async def _whose(self, term: int) -> str | None:
        if term not in self._names:
            self._stale = True
        await self._look()
        return self._names.get(term)

    def send(self, to: int, message: Message) -> bool:
        """Tell another node something; False where it is not known to be there."""
        if self._relay is None or to not in self._names:
            return False
        self._relay.send(to, message)
        return True

    def broadcast(self, message: Message) -> None:
        """Tell all others something."""
        for term, who in self._names.items():
            if who != self._there:
                self.send(term, message)

    # ---- the end ----

    async def _stop(self) -> None:
        messages, self._messages, self._relay = self._messages, None, None
        if messages is not None:
            messages.cancel()
            await asyncio.gather(messages, return_exceptions=True)

    async def _clear(self, who: str) -> None:
        """Take away what a node was there."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LEAVE):
                await self._tree.commit([Delete(paths.worker(who))])
                box = paths.mail(who)
                letters = await self._tree.children(box) or ()
                await self._tree.commit([*(Delete(f"{box}/{letter}") for letter in letters), Delete(box)])

    async def close(self) -> None:
        """Leave, within some seconds."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await self._stop()
        if self._there:
            await self._clear(self._there)
        await self._tree.close()
