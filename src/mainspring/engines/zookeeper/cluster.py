"""Membership and messages for the nodes of another store: implements ``mainspring.nodes.store.Cluster``.

A live node has an ephemeral node, and a parent for letters. The store keeps the terms, and ends them. The ensemble reports ended
nodes as soon as their session has ended, and carries the messages between nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.refreshing import RefreshedTree
from mainspring.engines.zookeeper.relay import Relay
from mainspring.engines.zookeeper.tree import Create, Delete, Refused
from mainspring.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mainspring.engines.zookeeper.tree import Tree
    from mainspring.events.relay import Message

RETRY_DELAY: Final = 1.0
"""Seconds between attempts to register."""
DEFECT_DELAY: Final = 10.0
"""The same after an unexpected error, which may come again."""
LEAVE_TIMEOUT: Final = 2.0
"""Seconds at the end to delete this node's entries."""

log = structlog.get_logger("mainspring.zookeeper")


class ZookeeperCluster:
    """The membership of one node, below the chroot of a tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = RefreshedTree(tree)
        self.id = ""
        self._listener: Callable[[Message], None] = lambda _: None
        self._who = ""
        """The worker name to register."""
        self._registered = ""
        """The registered worker name; empty if there is none."""
        self._relay: Relay | None = None
        self._messages: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._names: dict[int, str] = {}
        self._stale = True

    # ---- registration ----

    async def open(self, listener: Callable[[Message], None]) -> None:
        """Start the registration, which waits for the ensemble."""
        self._listener = listener
        self._tree.on_session(self._wake.set)
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="zookeeper membership")

    async def join(self, node: str, term: int) -> None:
        """Register under a term from now on."""
        before, self._who = self._registered, paths.worker_name(node, term)
        self._registered = ""
        if before:
            await self._stop()
            await self._clear(before)
        self._wake.set()

    def joined(self, term: int) -> bool:
        """Return whether this node is registered under a term."""
        return bool(self._registered) and paths.term_of(self._registered) == term

    async def _keep(self) -> None:
        """Register in each session."""
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
                self._registered = ""
                log.warning("the cluster cannot be reached; only the store detects dead nodes", reason=str(error))
                await asyncio.sleep(RETRY_DELAY)
                self._wake.set()
            except Exception:
                self._registered = ""
                log.exception("a defect in the cluster's code; only the store detects dead nodes")
                await asyncio.sleep(DEFECT_DELAY)
                self._wake.set()

    async def _begin(self) -> None:
        """Read the cluster's id, and create it if it is missing."""
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
            await self._tree.commit([Delete(place)])  # it belongs to the last session, and would end with it
            mine = None
        await self._tree.commit([Create(paths.mail(who))])
        if mine is None:
            outcome = await self._tree.commit([Create(place, ephemeral=True)])
            if isinstance(outcome, Refused):
                raise StoreUnavailableError(f"{place} cannot be created: {outcome.why.value}")
        if who != self._who:
            return  # another term has started in the meantime
        if not self._registered:
            log.info("the cluster detects dead nodes", cluster=self.id, worker=who)
        self._registered, self._stale = who, True
        if self._messages is None:
            self._relay = Relay(self._tree, who, self._whose, self._listener)
            self._messages = asyncio.get_running_loop().create_task(self._relay.run(), name="zookeeper messages")
            self._messages.add_done_callback(self._on_messages_ended)

    def _on_messages_ended(self, task: asyncio.Task[None]) -> None:
        """Start the relay again: it never ends by itself, so this is a defect."""
        if task is self._messages:
            self._messages = self._relay = None
            log.error("a defect in the relay's code", exc_info=None if task.cancelled() else task.exception())
            asyncio.get_running_loop().call_later(DEFECT_DELAY, self._wake.set)

    # ---- the others ----

    async def gone(self, terms: Collection[int]) -> Collection[int]:
        """Return those of some terms whose nodes have certainly ended."""
        if not self._registered:
            return ()
        try:
            missing = set(terms) - await self._look()
            if missing:
                # A member of the ensemble may lag behind: a node that it does not list may live.
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
        """Send a message to another node; return False if it is not registered."""
        if self._relay is None or to not in self._names:
            return False
        self._relay.send(to, message)
        return True

    def broadcast(self, message: Message) -> None:
        """Send a message to all other nodes."""
        for term, who in self._names.items():
            if who != self._registered:
                self.send(term, message)

    # ---- the end ----

    async def _stop(self) -> None:
        messages, self._messages, self._relay = self._messages, None, None
        if messages is not None:
            messages.cancel()
            await asyncio.gather(messages, return_exceptions=True)

    async def _clear(self, who: str) -> None:
        """Delete the entries of a worker."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT):
                await self._tree.commit([Delete(paths.worker(who))])
                box = paths.mail(who)
                letters = await self._tree.children(box) or ()
                await self._tree.commit([*(Delete(f"{box}/{letter}") for letter in letters), Delete(box)])

    async def close(self) -> None:
        """Unregister and close, within some seconds."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await self._stop()
        if self._registered:
            await self._clear(self._registered)
        await self._tree.close()
