"""Messages between nodes, over LISTEN and NOTIFY: best effort, in order, never in a transaction that does other work.

A NOTIFY takes a lock of the whole server at its commit, so queued messages are sent in one batch, and hints about pending jobs
wait for more of them first. A payload has less than 8,000 bytes, so a batch is cut into pieces::

    <sender's term> <batch> <number of the piece> <number of pieces> <base 85 of MessagePack, a part of it>

Within one transaction PostgreSQL drops a duplicate payload; the number of the piece makes each one unique.
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from mainspring.engines.postgres.statements import load
from mainspring.errors import StoreError
from mainspring.events.relay import (
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from asyncpg import Connection, Record

    from mainspring.engines.postgres.control import Control
    from mainspring.events.relay import Message
    from mainspring.nodes.model import NodeRow
    from mainspring.nodes.store import Cluster

log = structlog.get_logger("mainspring.postgres")
_SQL = load("engine.sql")

PIECE_LENGTH: Final = 7900
"""Characters of a payload; PostgreSQL's limit is 8,000 bytes."""
DEBOUNCE: Final = 0.005
"""Seconds that hints wait for more of them: it limits a node to 200 batches of hints per second."""
BACKLOG_LIMIT: Final = 8 * 2**20
"""Bytes that may be queued; beyond that, the newest messages are dropped."""
IDS_PER_MESSAGE: Final = 500
"""The most ids in one message."""
SEND_TIMEOUT: Final = 5.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[list[Any]]).decode

_KINDS: Final[tuple[type[Any], ...]] = (
    Settled,
    Pending,
    Progress,
    Stop,
    Ask,
    Running,
    Direct,
    ProgressText,
    FollowLog,
    Logged,
    StopRequested,
)
"""A kind is sent as its index here: append new kinds at the end."""


def encode(messages: Iterable[Message]) -> str:
    """Encode messages as text."""
    return base64.b85encode(_encode([[_KINDS.index(type(message)), *message] for message in messages])).decode()


def decode(text: str) -> list[Message]:
    """Decode the messages of a text, without kinds of newer versions. Raises ValueError."""
    return [_KINDS[kind](*values) for kind, *values in _decode(base64.b85decode(text)) if kind < len(_KINDS)]


class Relay:
    """One node's end of the channels: implements ``mainspring.events.relay.Relay``."""

    def __init__(self, control: Control, checksum: int, cluster: Cluster | None = None) -> None:
        """A cluster carries the messages if there is one and this node has joined it."""
        self._control = control
        self._cluster = cluster
        self._mixed = False
        """Whether some nodes are not in the cluster."""
        self._prefix = f"mainspring_{checksum:08x}"
        self._listener: Callable[[Message], None] | None = None
        self._term = 0
        self._batch = 0
        self._queue: dict[int, list[Message]] = {}
        self._pending: set[bytes] = set()
        self._bytes = 0
        self._waiting = asyncio.Event()
        self._pieces: dict[int, list[str]] = {}
        """By sender: the pieces of an incomplete batch."""
        self.dropped = 0

    def observe(self, rows: Sequence[NodeRow]) -> None:
        """Note which nodes are in the cluster."""
        cluster = self._cluster
        self._mixed = cluster is not None and any(row.cluster != cluster.id for row in rows)

    # ---- the port ----

    def listen(self, listener: Callable[[Message], None]) -> None:
        """Call a function with every message for this node."""
        self._listener = listener

    def send(self, to: int, message: Message) -> None:
        """Queue a message for another node."""
        if self._cluster is not None and self._cluster.joined(self._term) and self._cluster.send(to, message):
            return
        size = 64
        if isinstance(message, Progress):
            size += len(message.first) + len(message.second)
        elif isinstance(message, ProgressText):
            size += 4 * len(message.text)
        elif isinstance(message, Running):
            size += len(message.worker) + len(message.numerator) + len(message.denominator)
        elif isinstance(message, (Settled, Logged)):
            size += 9 * len(message.ids)
        if self._bytes + size > BACKLOG_LIMIT:
            self.dropped += 1
            return
        self._bytes += size
        self._queue.setdefault(to, []).append(message)
        self._waiting.set()

    def notify_settled(self, settlements: dict[int, list[int]]) -> None:
        """Notify the nodes of some terms that jobs have ended."""
        for term, ids in settlements.items():
            for at in range(0, len(ids), IDS_PER_MESSAGE):
                self.send(term, Settled(ids[at : at + IDS_PER_MESSAGE]))

    def notify_pending(self, functions: Iterable[bytes]) -> None:
        """Notify all nodes that jobs of these functions are pending."""
        if self._cluster is not None and self._cluster.joined(self._term):
            functions = sorted(functions)
            self._cluster.broadcast(Pending(functions))
            if not self._mixed:
                return
        self._pending.update(functions)
        self._waiting.set()

    # ---- receiving ----

    async def greet(self, connection: Connection[Record], term: int) -> None:
        """Listen on a connection for messages to all nodes and to a term's node."""
        self._pieces.clear()  # pieces that the last connection did not receive are lost
        for old in {self._term} - {term, 0}:
            await connection.remove_listener(f"{self._prefix}_{old}", self._receive)
        self._term = term
        for channel in (self._prefix, f"{self._prefix}_{term}"):
            await connection.add_listener(channel, self._receive)

    def _receive(self, connection: Any, pid: int, channel: str, payload: Any) -> None:
        del connection, pid, channel
        try:
            sender, _, place, number, text = payload.split(" ", 4)
            if int(sender) == self._term:
                return
            messages = self._join_pieces(int(sender), int(place), int(number), text)
        except ValueError:
            log.warning("a notification could not be read", payload=str(payload)[:100])
            return
        if self._listener is not None:
            for message in messages:
                self._listener(message)

    def _join_pieces(self, sender: int, place: int, number: int, text: str) -> Sequence[Message]:
        """Add a piece, and return the messages that it completes. Of a batch all pieces arrive, or only the last ones."""
        pieces = self._pieces.pop(sender, [])
        if place == 0:
            pieces = []
        if place != len(pieces):
            return ()
        pieces.append(text)
        if len(pieces) < number:
            self._pieces[sender] = pieces
            return ()
        return decode("".join(pieces))

    # ---- sending ----

    async def run(self) -> None:
        """Send queued messages, until cancelled."""
        clock = asyncio.get_running_loop().time
        sent = clock() - DEBOUNCE
        while True:
            await self._waiting.wait()
            if not self._queue:
                # The first hint after a pause is sent at once: under light load, a worker waits for it.
                await asyncio.sleep(max(0.0, sent + DEBOUNCE - clock()))
            self._waiting.clear()
            sent = clock()
            await self.send_once()

    async def send_once(self) -> None:
        """Send the queued messages now; drop them if the store is unavailable."""
        channels, payloads = self._drain()
        if not payloads:
            return
        try:
            await self._control.run(
                lambda connection: connection.execute(_SQL["notify"], channels, payloads), SEND_TIMEOUT
            )
        except StoreError as error:
            self.dropped += len(payloads)
            log.debug("messages were dropped", number=len(payloads), reason=str(error))

    def _drain(self) -> tuple[list[str], list[str]]:
        queue, self._queue = self._queue, {}
        pending, self._pending = self._pending, set()
        self._bytes = 0
        channels: list[str] = []
        payloads: list[str] = []
        batches: list[tuple[str, list[Message]]] = [(f"{self._prefix}_{term}", list(queue[term])) for term in queue]
        if pending:
            batches.append((self._prefix, [Pending(sorted(pending))]))
        for channel, messages in batches:
            self._batch += 1
            text = encode(messages)
            pieces = [text[at : at + PIECE_LENGTH] for at in range(0, len(text), PIECE_LENGTH)]
            for place, piece in enumerate(pieces):
                channels.append(channel)
                payloads.append(f"{self._term} {self._batch} {place} {len(pieces)} {piece}")
        return channels, payloads
