"""Messages between nodes: best effort, in order, never in a transaction that does other work.

NOTIFY has no rights: any role that may connect can send on a channel, and listen to it, if it knows the name. So:

- The names of the channels follow from a secret of the store, which only roles with a right to its table can read.
- A notification is a hint, of ids only: jobs have ended, functions (by number) have pending jobs, logs have new lines, or mail
  has arrived. A forged one costs the receiver a look at the store, and it looks at most every `WAKE_INTERVAL`.
- All other messages, those with contents or that change something, wait for their receiver in the table ``mail``.

A notification takes a lock of the whole server at its commit, so queued messages are sent in one batch, and hints about pending
jobs wait for more of them first. A notification is ``<sender's term> <kind> <ids>``.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import structlog

from mainspring.engines.postgres.transaction import columns, key_of, load_statements
from mainspring.errors import StoreError
from mainspring.events import (
    Ask,
    Direct,
    FollowLog,
    FollowStreams,
    FollowValues,
    InterestsChanged,
    Logged,
    Pending,
    Progress,
    ProgressText,
    Running,
    Settled,
    Stop,
    StopRequested,
    StreamsWritten,
    TakeSlots,
    ValuesPublished,
)
from mainspring.sizes import CANNOT_READ

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from asyncpg import Connection, Record

    from mainspring.engines.postgres.control import Control
    from mainspring.events import Message
    from mainspring.nodes.model import Cluster, NodeRow

log = structlog.get_logger("mainspring.postgres")
_SQL = load_statements("engine.sql")

DEBOUNCE: Final = 0.005
"""Seconds that hints wait for more of them: it limits a node to 200 batches of hints per second."""
BACKLOG_LIMIT: Final = 8 * 2**20
"""Bytes that may be queued; beyond that, the newest messages are dropped."""
IDS_PER_MESSAGE: Final = 350
"""The most ids in one notification."""
SEND_TIMEOUT: Final = 5.0
WAKE_INTERVAL: Final = 0.005
"""Seconds between two deliveries: notifications, even forged ones, wake a node at most 200 times per second."""
HINTS_LIMIT: Final = 50_000
"""The most ids of each kind that wait for a delivery; more are dropped."""
NAMES_LIMIT: Final = 20_000
"""The most functions whose numbers are cached: any client can name new ones."""
NUMBERS_AT_ONCE: Final = 1000
"""The most numbers of functions that one delivery looks up."""

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
    InterestsChanged,
    TakeSlots,
    FollowValues,
    ValuesPublished,
    FollowStreams,
    StreamsWritten,
)
"""A kind is sent as its index here: append new kinds at the end."""


_FAULTS: Final = (*CANNOT_READ, TypeError, IndexError)
"""The errors of decoding a message."""


def encode(messages: Iterable[Message]) -> bytes:
    """Encode messages."""
    return _encode([[_KINDS.index(type(message)), *message] for message in messages])


def decode(body: bytes) -> list[Message]:
    """Decode messages, without kinds of newer versions. Raises ValueError or TypeError."""
    return [_KINDS[kind](*values) for kind, *values in _decode(body) if kind < len(_KINDS)]


class _Hints:
    """Ids of some kinds that wait for the next delivery, in the order of their arrival."""

    def __init__(self) -> None:
        self.settled: dict[int, None] = {}
        self.logged: dict[int, None] = {}
        self.pending: dict[int, None] = {}
        """Numbers of functions."""
        self.mail = False

    def add(self, kind: str, ids: str) -> None:
        """Add the ids of a notification. Raises ValueError for one that no node sends."""
        if kind == _MAIL:
            self.mail = True
            return
        found = {_SETTLED: self.settled, _LOGGED: self.logged, _PENDING: self.pending}.get(kind)
        if found is None:
            return  # of a newer version
        numbers = [int(one) for one in ids.split(",")]
        if len(found) + len(numbers) <= HINTS_LIMIT and all(0 < one < 2**63 for one in numbers):
            found.update(dict.fromkeys(numbers))


_MAIL, _SETTLED, _LOGGED, _PENDING = "m", "s", "l", "p"


class Relay:
    """One node's end of the channels: implements ``mainspring.events.Relay``."""

    def __init__(self, control: Control, cluster: Cluster | None = None) -> None:
        """A cluster carries the messages if there is one and this node has joined it."""
        self._control = control
        self._cluster = cluster
        self._mixed = False
        """Whether some nodes are not in the cluster."""
        self._secret = b""
        self._listener: Callable[[Message], None] | None = None
        self._term = 0
        self._queue: dict[int, list[Message]] = {}
        self._pending: set[bytes] = set()
        self._bytes = 0
        self._waiting = asyncio.Event()
        self._hints = _Hints()
        self._arrived = asyncio.Event()
        self._names: dict[int, bytes] = {}
        self._numbers: dict[bytes, int] = {}
        self.dropped = 0

    def use_secret(self, secret: bytes) -> None:
        """Compute the names of channels from a secret of the store; called once, before `greet`."""
        self._secret = secret

    def channel(self, term: int | None) -> str:
        """Return the channel of the node of a term; None: the one of all nodes."""
        text = b"all" if term is None else b"term %d" % term
        return f"ms_{hmac.digest(self._secret, text, 'sha256').hex()[:40]}"

    def observe(self, rows: Sequence[NodeRow]) -> None:
        """Note whether all nodes are in the cluster."""
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
        elif isinstance(message, (Settled, Logged, ValuesPublished, StreamsWritten)):
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
        for old in {self._term} - {term, 0}:
            await connection.remove_listener(self.channel(old), self._receive)
        self._term = term
        for channel in (self.channel(None), self.channel(term)):
            await connection.add_listener(channel, self._receive)
        self._hints.mail = True  # it may have come while there was no connection
        self._arrived.set()

    def _receive(self, connection: Any, pid: int, channel: str, payload: Any) -> None:
        del connection, pid, channel
        try:
            sender, kind, *ids = payload.split(" ", 2)
            if int(sender) == self._term:
                return
            self._hints.add(kind, ids[0] if ids else "")
        except ValueError:
            log.warning("a notification could not be read", payload=str(payload)[:100])
            return
        self._arrived.set()

    def _deliver(self, messages: Iterable[Message]) -> None:
        if self._listener is None:
            return
        for message in messages:
            try:
                self._listener(message)
            except Exception:  # one message costs no other
                log.exception("a message of another node could not be processed", kind=type(message).__name__)

    async def receive(self) -> None:
        """Deliver what notifications announce, until cancelled."""
        clock = asyncio.get_running_loop().time
        last = clock() - WAKE_INTERVAL
        while True:
            await self._arrived.wait()
            # The first one after a pause is delivered at once.
            await asyncio.sleep(max(0.0, last + WAKE_INTERVAL - clock()))
            last = clock()
            await self.receive_once()

    async def receive_once(self) -> None:
        """Deliver the announced messages now. Mail comes first: progress of a job is sent before its end."""
        self._arrived.clear()
        hints, self._hints = self._hints, _Hints()
        if hints.mail:
            await self._read(self._take_mail)
        if hints.settled:
            self._deliver([Settled(list(hints.settled))])
        if hints.logged:
            self._deliver([Logged(list(hints.logged))])
        if any(number not in self._names for number in hints.pending):
            unknown = [number for number in hints.pending if number not in self._names][:NUMBERS_AT_ONCE]
            await self._read(lambda connection: self._name(connection, unknown))
        functions = sorted(self._names[number] for number in hints.pending if number in self._names)
        if functions:
            self._deliver([Pending(functions)])

    async def _read(self, work: Callable[[Connection[Record]], Awaitable[None]]) -> None:
        try:
            await self._control.run(work, SEND_TIMEOUT)
        except StoreError as error:
            log.debug("messages could not be read", reason=str(error))

    async def _take_mail(self, connection: Connection[Record]) -> None:
        for _, body in sorted(map(tuple, await connection.fetch(_SQL["take_mail"], self._term))):
            try:
                messages = decode(body)
            except _FAULTS as error:
                log.warning("mail of another node could not be read", error=str(error))
                continue
            self._deliver(messages)

    async def _name(self, connection: Connection[Record], numbers: list[int]) -> None:
        self._cache(await connection.fetch(_SQL["functions_numbered"], [one for one in numbers if one < 2**31]))

    async def _number(self, connection: Connection[Record], names: list[bytes]) -> None:
        stored = [columns(name) for name in names]
        self._cache(await connection.fetch(_SQL["functions_named"], *map(list, zip(*stored, strict=True))))

    def _cache(self, rows: Iterable[Record]) -> None:
        if len(self._names) > NAMES_LIMIT:
            self._names.clear()
            self._numbers.clear()
        for number, namespace, name in rows:
            self._names[number] = key_of(namespace, name)
            self._numbers[self._names[number]] = number

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
        unknown = [name for name in self._pending if name not in self._numbers]
        if unknown:
            await self._read(lambda connection: self._number(connection, unknown))
        batch = self._drain()
        if not batch.payloads:
            return
        statement, values = ("post", batch) if batch.terms else ("notify", batch[:2])
        try:
            await self._control.run(lambda connection: connection.execute(_SQL[statement], *values), SEND_TIMEOUT)
        except StoreError as error:
            self.dropped += len(batch.payloads)
            log.debug("messages were dropped", number=len(batch.payloads), reason=str(error))

    def _drain(self) -> _Batch:
        queue, self._queue = self._queue, {}
        pending, self._pending = self._pending, set()
        self._bytes = 0
        batch = _Batch([], [], [], [])
        for term, messages in queue.items():
            self._add(batch, term, messages)
        if pending:
            numbers = [self._numbers[name] for name in pending if name in self._numbers]
            self._add_ids(batch, self.channel(None), _PENDING, sorted(numbers))
        return batch

    def _add(self, batch: _Batch, term: int, messages: Sequence[Message]) -> None:
        channel = self.channel(term)
        mail = [message for message in messages if not isinstance(message, (Settled, Logged))]
        if mail:
            batch.terms.append(term)
            batch.bodies.append(encode(mail))
            batch.channels.append(channel)
            batch.payloads.append(f"{self._term} {_MAIL}")
        for kind, name in ((Settled, _SETTLED), (Logged, _LOGGED)):
            ids = [job_id for message in messages if isinstance(message, kind) for job_id in message.ids]
            self._add_ids(batch, channel, name, ids)

    def _add_ids(self, batch: _Batch, channel: str, kind: str, ids: Sequence[int]) -> None:
        for at in range(0, len(ids), IDS_PER_MESSAGE):
            batch.channels.append(channel)
            batch.payloads.append(f"{self._term} {kind} {','.join(map(str, ids[at : at + IDS_PER_MESSAGE]))}")


class _Batch(NamedTuple):
    """The arguments of the statement ``post``; those of ``notify`` come first."""

    channels: list[str]
    payloads: list[str]
    terms: list[int]
    """Of the receivers of mail, with the bodies."""
    bodies: list[bytes]
