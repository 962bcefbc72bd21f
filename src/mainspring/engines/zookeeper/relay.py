"""The relay of messages between nodes: letters in ``mail/<node>-<term>``, which that node reads and deletes.

Delivery is best effort, in order. The master sends the end of a job, the worker's node its progress. So that no end overtakes
progress, a node settles after its letters are written (`flush_progress`), and a master delivers its own messages after the
letters that it has read before.

A letter is one node of the tree, JSON: ``{"from": 7, "messages": [["settled", [ids]], ["pending", [functions]], …]}``. Bytes are
in base 64. Messages that are sent during the write of a letter go into the next one.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import TYPE_CHECKING, Any, Final

import structlog

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.cancellation import run_loops
from mainspring.engines.zookeeper.committer import RETRY_DELAY
from mainspring.engines.zookeeper.tree import Create, Delete, Done, UnknownOutcomeError
from mainspring.errors import StoreError
from mainspring.events.relay import (
    Abandoned,
    Ask,
    Direct,
    FollowLog,
    Logged,
    Pending,
    Progress,
    ProgressText,
    Running,
    Settled,
    Stop,
    StopRequested,
)
from mainspring.sizes import CANNOT_READ

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mainspring.engines.zookeeper.tree import Tree
    from mainspring.events.relay import Message

log = structlog.get_logger("mainspring.zookeeper")

MAX_QUEUED_BYTES: Final = 8 * 2**20
"""Bytes of queued messages; beyond that, new messages are dropped."""
LETTER_BYTES: Final = 400_000
"""Approximate bytes of messages in one letter, before base 64."""
IDS_PER_MESSAGE: Final = 500
"""Ids in one message."""
READ_AT_ONCE: Final = 50
"""Letters that are read at once."""


def encode(sender: int, messages: Iterable[Message]) -> bytes:
    """Return a letter."""
    return records.encode(
        {"from": sender, "messages": [[type(message).__name__.lower(), *message] for message in messages]}
    )


def decode(letter: bytes) -> list[Message]:
    """Return the messages of a letter; kinds that a newer version sends are left out. Raises ValueError."""
    try:
        messages = records.decode(letter)["messages"]
        return [_READ[kind](*values) for kind, *values in messages if kind in _READ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no letter: {error!r}") from error


_READ: Final[dict[str, Callable[..., Message]]] = {
    "settled": Settled,
    "pending": lambda functions: Pending([b64decode(function) for function in functions]),
    "progress": lambda job, kind, first, second: Progress(job, kind, b64decode(first), b64decode(second)),
    "progresstext": ProgressText,
    "stop": Stop,
    "abandoned": Abandoned,
    "ask": Ask,
    "direct": Direct,
    "followlog": FollowLog,
    "logged": Logged,
    "stoprequested": StopRequested,
    "running": lambda job, started_us, attempt, worker, numerator, denominator: Running(
        job, started_us, attempt, worker, b64decode(numerator), b64decode(denominator)
    ),
}


def _size(message: Message) -> int:
    match message:
        case Progress(_, _, first, second):
            return 64 + len(first) + len(second)
        case Settled(ids) | Logged(ids):
            return 64 + 16 * len(ids)
        case Pending(functions):
            return 64 + sum(map(len, functions))
        case Stop(_, reason):
            return 64 + len(reason)
        case ProgressText(_, text):
            return 64 + 4 * len(text)
        case Ask() | Abandoned() | Direct() | FollowLog() | StopRequested():
            return 64
        case Running():
            return 64 + len(message.worker) + len(message.numerator) + len(message.denominator)


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
        self._queue: dict[int, list[Message]] = {}
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
        size = _size(message)
        if self._bytes + size > MAX_QUEUED_BYTES:
            self.dropped += 1
            return
        self._bytes += size
        self._queue.setdefault(to, []).append(message)
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

    def settled(self, term: int, ids: list[int]) -> None:
        """Send a term's node the ids of ended jobs, in as many messages as needed."""
        for at in range(0, len(ids), IDS_PER_MESSAGE):
            self.send(term, Settled(ids[at : at + IDS_PER_MESSAGE]))

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

    async def _post(self, term: int, messages: list[Message]) -> None:
        who = await self._try(self._whose(term))
        if who is None:
            self.dropped += len(messages)
            return
        box = paths.mail(who)
        start = size = 0
        for end, message in enumerate(messages, 1):
            size += _size(message)
            if size >= LETTER_BYTES or end == len(messages):
                letter = encode(self._term, messages[start:end])
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
            messages = decode(letter)
        except CANNOT_READ as error:
            log.warning("a letter could not be read", error=str(error))
            return
        for message in messages:
            self._deliver(message)
