"""Answers to requests that clients may send again: each is kept for a day under the key that its client has chosen.

A second request with a key gets the answer to the first one, whichever node receives it, and nothing is done twice. Requests
that make something store their key and their answer in the transaction of their act (`access.once`). Other requests reserve their
key, act, and keep their answer, in one transaction each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT_FOR: Final = 86400.0
"""Seconds for which an answer is kept."""
SWEEP_ROWS: Final = 1000


class KeptReply(msgspec.Struct, frozen=True):
    """An answer."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class RequestKey(NamedTuple):
    """The key of a request."""

    key: bytes
    """The digest of the caller, the path and the client's key."""
    request: bytes
    """The digest of the request."""
    at_us: int
    """The time of the request."""
    expired_us: int
    """An earlier request with the key counts if it was made since this time."""


class Reservation(msgspec.Struct, frozen=True):
    """An earlier request with the same key."""

    request: bytes
    """The digest of the request."""
    at_us: int
    """When it was made."""
    reply: KeptReply | None
    """None: it is under way, or its node has ended before it was answered."""


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KeptReply).decode


def reservation_of(request: bytes, at_us: int, reply: bytes | None) -> Reservation:
    """Return a reservation from the columns of its row."""
    return Reservation(request, at_us, None if reply is None else _decode(reply))


class Rows(Protocol):
    """The reservations inside a transaction of an engine."""

    async def reserve(self, key: bytes, request: bytes, at_us: int, expired_us: int) -> Reservation | None:
        """Insert a reservation, and return None; or return the existing one, if it was made after ``expired_us``."""

    async def find(self, key: bytes, expired_us: int) -> Reservation | None:
        """Return the existing reservation, if it was made after ``expired_us``."""

    async def keep(self, key: bytes, reply: bytes) -> None:
        """Set the answer of a reservation."""

    async def release(self, key: bytes) -> None:
        """Delete a reservation without an answer."""

    async def sweep(self, before_us: int, rows: int) -> int:
        """Delete reservations made before a time; return how many."""


class ReplyOperation(Operation):
    """A change of reservations: `run` is the same on all engines."""

    __slots__ = ()

    phase = Phase.ACCESS

    async def run(self, rows: Rows) -> object:
        """Make the change; return the outcome."""
        raise NotImplementedError


class Reserve(ReplyOperation):
    """Reserve a key for a request. Outcome: None, or the earlier `Reservation` of the key."""

    __slots__ = ("at_us", "expired_us", "key", "request")

    def __init__(self, key: bytes, request: bytes, at_us: int, expired_us: int) -> None:
        super().__init__()
        self.key = key
        self.request = request
        self.at_us = at_us
        self.expired_us = expired_us

    async def run(self, rows: Rows) -> Reservation | None:
        """Reserve it."""
        return await rows.reserve(self.key, self.request, self.at_us, self.expired_us)


class FindReply(ReplyOperation):
    """Look up an earlier request with a key. Outcome: its `Reservation`, or None."""

    __slots__ = ("expired_us", "key")

    phase = Phase.READ
    reads = True

    def __init__(self, key: bytes, expired_us: int) -> None:
        super().__init__()
        self.key = key
        self.expired_us = expired_us

    async def run(self, rows: Rows) -> Reservation | None:
        """Find it."""
        return await rows.find(self.key, self.expired_us)


class Keep(ReplyOperation):
    """Keep the answer to the request that has reserved a key. Outcome: None."""

    __slots__ = ("key", "reply")

    def __init__(self, key: bytes, reply: KeptReply) -> None:
        super().__init__()
        self.key = key
        self.reply = encode(reply)
        self.size += len(self.reply)

    async def run(self, rows: Rows) -> None:
        """Keep it."""
        await rows.keep(self.key, self.reply)


class Release(ReplyOperation):
    """Release a key, because its request has changed nothing. Outcome: None."""

    __slots__ = ("key",)

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self.key = key

    async def run(self, rows: Rows) -> None:
        """Release it."""
        await rows.release(self.key)


class SweepReplies(ReplyOperation):
    """Delete the reservations made before a time. Outcome: how many, at most `SWEEP_ROWS`."""

    __slots__ = ("before_us",)

    def __init__(self, before_us: int) -> None:
        super().__init__()
        self.before_us = before_us
        self.rows = SWEEP_ROWS
        self.urgent = False

    async def run(self, rows: Rows) -> int:
        """Delete them."""
        return await rows.sweep(self.before_us, SWEEP_ROWS)


OPERATIONS: Sequence[type[ReplyOperation]] = (Reserve, FindReply, Keep, Release, SweepReplies)
