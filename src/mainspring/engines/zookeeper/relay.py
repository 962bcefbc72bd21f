"""What nodes tell each other: letters in ``mail/<node>-<term>``, read and deleted by that node. Best effort, in order.

The end of a job is told by the master, and its progress by the worker's node. So that no end overtakes what was said before it,
a node settles after its letters are in their boxes (`told`), and a master hears its own messages behind the letters that came
before what it has read.

A letter is one node of the tree, JSON: ``{"from": 7, "messages": [["settled", [ids]], ["pending", [functions]], …]}``. Bytes are
in base 64. What gathers while a letter is under way goes into the next one.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import TYPE_CHECKING, Any, Final

import structlog

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.cancellation import run_all
from mainspring.engines.zookeeper.committer import RETRY_DELAY
from mainspring.engines.zookeeper.tree import Create, Delete, Done, UnknownOutcomeError
from mainspring.errors import StoreError
from mainspring.events.relay import Abandoned, Ask, Pending, Progress, Running, Settled, Stop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mainspring.engines.zookeeper.tree import Tree
    from mainspring.events.relay import Message

log = structlog.get_logger("mainspring.zookeeper")

BACKLOG: Final = 8 * 2**20
"""Bytes that may wait to be sent; beyond that, the newest are dropped."""
LETTER: Final = 400_000
"""Bytes of messages in one letter, about, before base 64."""
IDS: Final = 500
"""Ids in one message."""
READ_AT_ONCE: Final = 50
"""Letters that are read together."""


def encode(sender: int, messages: Iterable[Message]) -> bytes:
    """Return a letter."""
    return records.encode(
        {"from": sender, "messages": [[type(message).__name__.lower(), *message] for message in messages]}
    )


def decode(letter: bytes) -> list[Message]:
    """Return the messages of a letter; kinds that a newer version sends are left out. Raises ValueError."""
    try:
        told = records.decode(letter)["messages"]
        return [_READ[kind](*values) for kind, *values in told if kind in _READ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no letter: {error!r}") from error


_READ: Final[dict[str, Callable[..., Message]]] = {
    "settled": Settled,
    "pending": lambda functions: Pending([b64decode(function) for function in functions]),
    "progress": lambda job, kind, first, second: Progress(job, kind, b64decode(first), b64decode(second)),
    "stop": Stop,
    "abandoned": Abandoned,
    "ask": Ask,
    "running": lambda job, started_us, attempt, worker, numerator, denominator: Running(
        job, started_us, attempt, worker, b64decode(numerator), b64decode(denominator)
    ),
}


def _size(message: Message) -> int:
    match message:
        case Progress(_, _, first, second):
            return 64 + len(first) + len(second)
        case Settled(ids):
            return 64 + 16 * len(ids)
        case Pending(functions):
            return 64 + sum(map(len, functions))
        case Stop(_, reason):
            return 64 + len(reason)
        case Ask() | Abandoned():
            return 64
        case Running():
            return 64 + len(message.worker) + len(message.numerator) + len(message.denominator)


class Relay:
    """One term's end of it.

    ``who`` is the worker whose box this is; ``whose`` returns the worker that has a term, None for one that nobody knows.
    """

    def __init__(
        self, tree: Tree, who: str, whose: Callable[[int], Awaitable[str | None]], ear: Callable[[Message], None]
    ) -> None:
        self._tree = tree
        self._who = who
        self._term = paths.term_of(who)
        self._whose = whose
        self._ear = ear
        self._queue: dict[int, list[Message]] = {}
        self._bytes = 0
        self._progress = 0
        """How many words of progress are not in their boxes yet."""
        self._is_flushed = asyncio.Event()
        self._is_flushed.set()
        self._is_over = False
        self._out = asyncio.Event()
        self._in = asyncio.Event()
        self._in.set()
        self._is_reading = False
        self._heard: set[str] = set()
        """Letters that were heard and may be in the box still."""
        self._own: list[Message] = []
        """What this node has told itself while there were letters."""
        self.dropped = 0

    def send(self, to: int, message: Message) -> None:
        """Tell a node something, some time soon; what a node tells itself, it hears in the next turn, or after its letters."""
        if to == self._term:
            self._own.append(message)
            asyncio.get_running_loop().call_soon(self._hear_own)
            return
        size = _size(message)
        if self._bytes + size > BACKLOG:
            self.dropped += 1
            return
        self._bytes += size
        self._queue.setdefault(to, []).append(message)
        if type(message) is Progress and not self._is_over:
            self._progress += 1
            self._is_flushed.clear()
        self._out.set()

    async def flush_progress(self) -> None:
        """Wait until all progress that was sent before is in its boxes, or was dropped."""
        await self._is_flushed.wait()

    def _hear_own(self) -> None:
        if self._is_reading or self._in.is_set():
            return
        own, self._own = self._own, []
        for message in own:
            self._ear(message)

    def settled(self, term: int, ids: list[int]) -> None:
        """Tell a term's node that jobs have ended, in as many messages as it takes."""
        for at in range(0, len(ids), IDS):
            self.send(term, Settled(ids[at : at + IDS]))

    async def run(self) -> None:
        """Send and read, until cancelled."""
        try:
            await run_all({"zookeeper letters out": self._send_on(), "zookeeper letters in": self._read_on()})
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
            if size >= LETTER or end == len(messages):
                letter = encode(self._term, messages[start:end])
                # In a box that is gone nobody reads.
                await self._try(self._tree.commit([Create(f"{box}/m-", letter, sequence=True)]))
                start, size = end, 0

    async def _try(self, work: Any) -> Any:
        """Do something, or leave it where the ensemble is away."""
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
                self._heard.intersection_update(names)
                for at in range(0, len(names), READ_AT_ONCE):
                    await self._read(names[at : at + READ_AT_ONCE], box)
            except StoreError as error:
                log.debug("letters could not be read", reason=str(error))
                await asyncio.sleep(RETRY_DELAY)
                self._in.set()
            finally:
                self._is_reading = False
            self._hear_own()

    async def _read(self, names: list[str], box: str) -> None:
        """Delete some letters, and hear what they say: once, and also where nobody knows whether they are deleted."""
        places = [f"{box}/{name}" for name in names]
        letters = await self._tree.get_many(places)
        found = {name: letter.data for name, letter in zip(names, letters, strict=True) if letter is not None}
        new = [data for name, data in found.items() if name not in self._heard]
        unknown: UnknownOutcomeError | None = None
        try:
            deleted = isinstance(await self._tree.commit([Delete(f"{box}/{name}") for name in found]), Done)
        except UnknownOutcomeError as error:
            unknown, deleted = error, False
        if not deleted:
            self._heard.update(found)
            self._in.set()
        for data in new:
            self._tell(data)
        if unknown is not None:
            raise unknown

    def _tell(self, letter: bytes) -> None:
        try:
            messages = decode(letter)
        except ValueError as error:
            log.warning("a letter could not be read", error=str(error))
            return
        for message in messages:
            self._ear(message)
