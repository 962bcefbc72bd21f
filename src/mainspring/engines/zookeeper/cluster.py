"""Nodes on ZooKeeper and the messages between them: beside a store on the same tree, or for the nodes of another store.

A live node has an ephemeral node, its row, and a parent for letters. The ensemble reports ended nodes as soon as their session
has ended.

Letters are in ``mail/<node>-<term>``, which that node reads and deletes. Delivery is best effort, in order. The master sends
the end of a job, the worker's node its progress. So that no end overtakes progress, a node settles after its letters are
written (`flush_progress`), and a master delivers its own messages after the letters that it has read before.

A letter is one node of the tree, JSON: ``{"from": 7, "messages": [["settled", [ids]], ["pending", [functions]], …]}``. Bytes are
in base 64. Messages that are sent during the write of a letter go into the next one.

`ZookeeperCluster` implements ``mainspring.nodes.model.Cluster`` for the nodes of another store, which keeps the terms, and
ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec
import structlog

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.committer import RETRY_DELAY
from mainspring.engines.zookeeper.tree import (
    ANY,
    Create,
    Delete,
    Done,
    RefreshedTree,
    Refused,
    UnknownOutcomeError,
    Write,
    run_loops,
)
from mainspring.errors import StoreError, StoreFencedError, StoreUnavailableError
from mainspring.events import Message, Progress
from mainspring.nodes.model import NodeRow
from mainspring.sizes import CANNOT_READ

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from mainspring.engines.zookeeper.tree import Change, Node, Tree

_decode: Final = msgspec.json.Decoder(NodeRow).decode


async def beat(tree: Tree, who: str, row: NodeRow) -> list[NodeRow]:
    """Write a node's own row and return all. Raises StoreFencedError."""
    outcome = await tree.commit([Write(paths.worker(who), records.encode(row))])
    if isinstance(outcome, Refused):
        raise StoreFencedError(f"term {row.term} was ended by another node, or its session has")
    return await rows(tree)


async def rows(tree: Tree) -> list[NodeRow]:
    """Return the rows of all live nodes; foreign data is ignored."""
    workers = paths.workers_of(await tree.children(paths.WORKERS))
    drain_requested = set(await tree.children(paths.DRAINING) or ())
    found = []
    for node in await tree.get_many([paths.worker(who) for who in workers]):
        row = None if node is None else _row(node)
        if row is not None:
            found.append(msgspec.structs.replace(row, draining=row.draining or row.name in drain_requested))
    return found


async def now(tree: Tree, who: str) -> float:
    """Return the wall time of the ensemble's leader, in seconds: that of a write."""
    box = paths.mail(who)
    await tree.commit([Write(box, b"")])
    node = await tree.get(box)
    if node is None:
        raise StoreFencedError(f"{box} is gone: the term was ended by another node")
    return node.mtime_us / 1_000_000


def _row(node: Node) -> NodeRow | None:
    try:
        return _decode(node.data)
    except ValueError:
        return None  # the master logs it, if it is a worker's


async def _find(tree: Tree, term: int) -> tuple[str, Node] | None:
    for who in paths.workers_of(await tree.children(paths.WORKERS)):
        if paths.term_of(who) == term:
            node = await tree.get(paths.worker(who))
            return None if node is None else (who, node)
    return None


async def end(tree: Tree, term: int, counter: int | None) -> bool:
    """End a term by deleting its node's ephemeral: each of its batches checks that.

    If it was the master, its leadership ends too: its session may go on while it only sends, and receives nothing.
    """
    while True:
        found = await _find(tree, term)
        if found is None:
            return await tree.get(f"{paths.TERMS}/{term}") is not None
        who, node = found
        if counter is not None and ((row := _row(node)) is None or row.counter != counter):
            return False
        version = node.version if counter is not None else ANY
        changes: list[Change] = [Delete(paths.worker(who), version)]
        master = await tree.get(paths.MASTER)
        if master is not None and records.decode(master.data)["worker"] == who:
            changes.append(Delete(paths.MASTER, master.version))
        outcome = await tree.commit(changes)
        if not isinstance(outcome, Refused):
            return True


async def ask_to_drain(tree: Tree, term: int, *, draining: bool) -> bool:
    """Store or delete the request that a node drain; it applies to the node's name until it is deleted."""
    found = await _find(tree, term)
    if found is None:
        return False
    path = f"{paths.DRAINING}/{found[0].rpartition('-')[0]}"
    await tree.commit([Create(path) if draining else Delete(path)])
    return True


async def leave(tree: Tree, who: str) -> None:
    """Delete a node's row, letters and requests, and its queue if it is empty; the master returns the tasks it holds."""
    await disappear(tree, who)
    await tree.commit([Delete(paths.wants(who))])
    await tree.commit([Delete(paths.queue(who))])  # refused if it is not empty
    await tree.commit([Delete(f"{paths.DRAINING}/{who.rpartition('-')[0]}")])


async def disappear(tree: Tree, who: str) -> None:
    """Delete a node's row and letters."""
    await tree.commit([Delete(paths.worker(who))])
    box = paths.mail(who)
    letters = await tree.children(box) or ()
    await tree.commit([*(Delete(f"{box}/{letter}") for letter in letters), Delete(box)])


log = structlog.get_logger("mainspring.zookeeper")

MAX_QUEUED_BYTES: Final = 8 * 2**20
"""Bytes of queued messages; beyond that, new messages are dropped."""
LETTER_BYTES: Final = 500_000
"""Approximate bytes of messages in one letter."""
READ_AT_ONCE: Final = 50
"""Letters that are read at once."""


def encode_message(message: Message) -> bytes:
    """Return a message as a letter has it."""
    return records.encode([type(message).__name__.lower(), *message])


def encode_letter(sender: int, messages: Iterable[bytes]) -> bytes:
    """Return a letter of encoded messages."""
    return b'{"from":%d,"messages":[%b]}' % (sender, b",".join(messages))


_KINDS: Final = {kind.__name__.lower(): kind for kind in get_args(Message)}


def decode_letter(letter: bytes) -> list[Message]:
    """Return the messages of a letter; those that only a newer version can read are left out. Raises ValueError."""
    messages: list[Message] = []
    try:
        for kind, *values in records.decode(letter)["messages"]:
            with contextlib.suppress(msgspec.ValidationError):
                if kind in _KINDS:
                    messages.append(msgspec.convert(values, _KINDS[kind]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no letter: {error!r}") from error
    return messages


class Relay:
    """The relay of one term.

    ``who`` is the worker whose letters it reads. ``whose`` returns the worker of a term, None for an unknown term. ``deliver`` is
    called with each message.
    """

    def __init__(
        self, tree: Tree, who: str, whose: Callable[[int], Awaitable[str | None]], deliver: Callable[[Message], None]
    ) -> None:
        self._tree = tree
        self._who = who
        self._term = paths.term_of(who)
        self._whose = whose
        self._deliver = deliver
        self._queue: dict[int, list[bytes]] = {}
        self._bytes = 0
        self._progress = 0
        """The number of progress messages that are not written yet."""
        self._is_flushed = asyncio.Event()
        self._is_flushed.set()
        self._is_over = False
        self._out = asyncio.Event()
        self._in = asyncio.Event()
        self._in.set()
        self._is_reading = False
        self._delivered: set[str] = set()
        """Letters that were delivered and may not be deleted yet."""
        self._own: list[Message] = []
        """Messages of this node to itself, until the letters before them are delivered."""
        self.dropped = 0

    def send(self, to: int, message: Message) -> None:
        """Queue a message to a node. A message to this node is delivered in the next loop iteration, or after its letters."""
        if to == self._term:
            self._own.append(message)
            asyncio.get_running_loop().call_soon(self._deliver_own)
            return
        encoded = encode_message(message)
        if self._bytes + len(encoded) > MAX_QUEUED_BYTES:
            self.dropped += 1
            return
        self._bytes += len(encoded)
        self._queue.setdefault(to, []).append(encoded)
        if type(message) is Progress and not self._is_over:
            self._progress += 1
            self._is_flushed.clear()
        self._out.set()

    async def flush_progress(self) -> None:
        """Wait until all progress that was sent before is written, or was dropped."""
        await self._is_flushed.wait()

    def _deliver_own(self) -> None:
        if self._is_reading or self._in.is_set():
            return
        own, self._own = self._own, []
        for message in own:
            self._deliver(message)

    async def run(self) -> None:
        """Send and read, until cancelled."""
        try:
            await run_loops({"zookeeper letters out": self._send_on(), "zookeeper letters in": self._read_on()})
        finally:
            self._is_over = True
            self._is_flushed.set()

    # ---- sending ----

    async def _send_on(self) -> None:
        while True:
            await self._out.wait()
            self._out.clear()
            queue, self._queue = self._queue, {}
            self._bytes = 0
            progress, self._progress = self._progress, 0
            for term, messages in queue.items():
                await self._post(term, messages)
            if progress and not self._progress:
                self._is_flushed.set()

    async def _post(self, term: int, messages: list[bytes]) -> None:
        who = await self._try(self._whose(term))
        if who is None:
            self.dropped += len(messages)
            return
        box = paths.mail(who)
        start = size = 0
        for end, message in enumerate(messages, 1):
            size += len(message)
            if size >= LETTER_BYTES or end == len(messages):
                letter = encode_letter(self._term, messages[start:end])
                # If the parent is gone, no node would read the letter.
                await self._try(self._tree.commit([Create(f"{box}/m-", letter, sequence=True)]))
                start, size = end, 0

    async def _try(self, work: Any) -> Any:
        """Await a request; on an error of the store, drop the message."""
        try:
            return await work
        except StoreError as error:
            self.dropped += 1
            log.debug("a message was dropped", reason=str(error))
            return None

    # ---- reading ----

    async def _read_on(self) -> None:
        box = paths.mail(self._who)
        while True:
            await self._in.wait()
            self._in.clear()
            self._is_reading = True
            try:
                names = sorted(await self._tree.children(box, self._in.set) or ())
                self._delivered.intersection_update(names)
                for at in range(0, len(names), READ_AT_ONCE):
                    await self._read(names[at : at + READ_AT_ONCE], box)
            except StoreError as error:
                log.debug("letters could not be read", reason=str(error))
                await asyncio.sleep(RETRY_DELAY)
                self._in.set()
            finally:
                self._is_reading = False
            self._deliver_own()

    async def _read(self, names: list[str], box: str) -> None:
        """Delete letters and deliver their messages, once each, even if the outcome of the deletion is unknown."""
        places = [f"{box}/{name}" for name in names]
        letters = await self._tree.get_many(places)
        found = {name: letter.data for name, letter in zip(names, letters, strict=True) if letter is not None}
        new = [data for name, data in found.items() if name not in self._delivered]
        unknown: UnknownOutcomeError | None = None
        try:
            deleted = isinstance(await self._tree.commit([Delete(f"{box}/{name}") for name in found]), Done)
        except UnknownOutcomeError as error:
            unknown, deleted = error, False
        if not deleted:
            self._delivered.update(found)
            self._in.set()
        for data in new:
            self._deliver_letter(data)
        if unknown is not None:
            raise unknown

    def _deliver_letter(self, letter: bytes) -> None:
        try:
            messages = decode_letter(letter)
        except CANNOT_READ as error:
            log.warning("a letter could not be read", error=str(error))
            return
        for message in messages:
            self._deliver(message)


CLUSTER_RETRY_DELAY: Final = 1.0
"""Seconds between attempts to register."""
DEFECT_DELAY: Final = 10.0
"""The same after an unexpected error, which may come again."""
LEAVE_TIMEOUT: Final = 2.0
"""Seconds at the end to delete this node's entries."""


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
                await asyncio.sleep(CLUSTER_RETRY_DELAY)
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
                await disappear(self._tree, who)

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
