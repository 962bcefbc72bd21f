"""Requests with a key of their client: the answer is stored under the key in the transaction of the act.

Clients may send such a request again. Its answer is kept for a day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from mainspring.callbacks import awaited
from mainspring.clock import to_us
from mainspring.errors import MainspringError
from mainspring.storage.engine import Operation, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.callbacks import Ask
    from mainspring.clock import Clock
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.engine import Plan

T = TypeVar("T")
V = TypeVar("V")

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

    phase = Phase.ACCESS

    async def run(self, rows: Rows) -> object:
        """Make the change; return the outcome."""
        raise NotImplementedError


class Reserve(ReplyOperation):
    """Reserve a key for a request. Outcome: None, or the earlier `Reservation` of the key."""

    key: bytes
    request: bytes
    at_us: int
    expired_us: int

    async def run(self, rows: Rows) -> Reservation | None:
        return await rows.reserve(self.key, self.request, self.at_us, self.expired_us)


class FindReply(ReplyOperation):
    """Look up an earlier request with a key. Outcome: its `Reservation`, or None."""

    phase = Phase.READ
    reads = True
    key: bytes
    expired_us: int

    async def run(self, rows: Rows) -> Reservation | None:
        return await rows.find(self.key, self.expired_us)


class Keep(ReplyOperation):
    """Keep the answer to the request that has reserved a key. Outcome: None."""

    key: bytes
    reply: bytes
    """A `KeptReply`, encoded."""

    def __post_init__(self) -> None:
        self.size += len(self.reply)

    async def run(self, rows: Rows) -> None:
        await rows.keep(self.key, self.reply)


class Release(ReplyOperation):
    """Release a key, because its request has changed nothing. Outcome: None."""

    key: bytes

    async def run(self, rows: Rows) -> None:
        await rows.release(self.key)


class SweepReplies(ReplyOperation):
    """Delete the reservations made before a time. Outcome: how many, at most `SWEEP_ROWS`."""

    before_us: int

    def __post_init__(self) -> None:
        self.rows = SWEEP_ROWS
        self.urgent = False

    async def run(self, rows: Rows) -> int:
        return await rows.sweep(self.before_us, SWEEP_ROWS)


OPERATIONS: Sequence[type[ReplyOperation]] = (Reserve, FindReply, Keep, Release, SweepReplies)


class IdempotencyKey(NamedTuple):
    """The key of a request to the API, for calls that keep their answer in the transaction of their act."""

    key: RequestKey
    reply: Callable[[Any], KeptReply]
    """Returns what is kept for the answer of the call."""

    def act(self, answer: Callable[[Any], Any]) -> KeyedAct:
        """Return the key for the only operation of the request; ``answer`` returns the answer of the call for its outcome."""
        return KeyedAct(self.key, lambda outcomes: self.reply(answer(outcomes[0])))


class KeyedAct:
    """The key of the operations of one request, which are in one group.

    ``reply`` returns the answer to keep for their outcomes, in the order of the group. It is called before the commit, in each
    attempt to run the group. If it raises a MainspringError, the request is refused: its operations have changed nothing, and
    the key is free again.
    """

    __slots__ = ("key", "reply")

    def __init__(self, key: RequestKey, reply: Callable[[list[Any]], KeptReply]) -> None:
        self.key = key
        self.reply = reply


class RepeatedError(Exception):
    """A request with this key was made before, so nothing was done. It is no problem, so calls pass it on as it is."""

    def __init__(self, earlier: Reservation) -> None:
        super().__init__("a request with this key was made before")
        self.earlier = earlier


async def act_if_new(
    once: IdempotencyKey | None, act: Callable[[KeyedAct | None], Coroutine[Ask, Any, V]], answer: Callable[[V], T]
) -> T:
    """Return the answer to a request of one act, with a key or without one. Raises RepeatedError."""
    return answer(await act(None if once is None else once.act(answer)))


async def commit_keyed(commits: CommitQueue, operation: Operation) -> Any:
    """Return the outcome of an operation that may have a key. Raises RepeatedError if the request was made before."""
    outcome = await commits.committed(operation)
    if isinstance(outcome, Reservation):
        raise RepeatedError(outcome)
    return outcome


class KeyedGroup:
    """The acts with keys in one attempt to run a group."""

    def __init__(self, plan: Plan, rows: Rows, outcomes: list[Any]) -> None:
        self._rows = rows
        self._outcomes = outcomes
        self._places: dict[KeyedAct, list[int]] = {}
        for kind, placed in plan.items():
            if kind.keyed:
                for place, operation in placed:
                    if operation.keyed_act is not None:
                        self._places.setdefault(operation.keyed_act, []).append(place)
        self._new: dict[bytes, KeyedAct] = {}
        self._repeated: list[KeyedAct] = []
        """Acts whose key is that of an act of the same group."""

    async def reserve(self, plan: Plan) -> Plan:
        """Reserve the keys. The outcome of repeated operations is the earlier `Reservation`; return the plan without them."""
        left_out: set[int] = set()
        for act in sorted(self._places, key=lambda act: act.key.key):  # all nodes lock keys in the same order
            key = act.key
            if key.key in self._new:
                self._repeated.append(act)
            elif (earlier := await self._rows.reserve(*key)) is None:
                self._new[key.key] = act
                continue
            else:
                self._answer(act, earlier)
            left_out.update(self._places[act])
        if not left_out:
            return plan
        kept = {kind: [entry for entry in placed if entry[0] not in left_out] for kind, placed in plan.items()}
        return {kind: placed for kind, placed in kept.items() if placed}

    async def keep(self) -> None:
        """Keep the answers of the acts, once all operations have run."""
        replies: dict[bytes, KeptReply] = {}
        for key, act in self._new.items():
            try:
                replies[key] = reply = act.reply([self._outcomes[place] for place in sorted(self._places[act])])
            except MainspringError:
                await self._rows.release(key)
            else:
                await self._rows.keep(key, encode(reply))
        for act in self._repeated:
            first = self._new[act.key.key].key
            self._answer(act, Reservation(first.request, first.at_us, replies.get(first.key)))

    def _answer(self, act: KeyedAct, earlier: Reservation) -> None:
        for place in self._places[act]:
            self._outcomes[place] = earlier


SWEEP_INTERVAL: Final = 600.0


class ReplyService:
    """The `Replies` of a node: keeps answers for `KEPT_FOR` seconds. Its coroutines raise StoreError.

    ``atomic``: the store has the jobs, too, so that an answer can be in the transaction of its act.
    """

    def __init__(self, commits: CommitQueue, clock: Clock, *, atomic: bool = True) -> None:
        self.atomic = atomic
        self._commits = commits
        self._clock = clock
        self._swept = clock.monotonic()

    def key(self, key: bytes, request: bytes) -> RequestKey:
        now_us = to_us(self._clock.wall())
        return RequestKey(key, request, now_us, now_us - to_us(KEPT_FOR))

    async def find_reply(self, key: RequestKey) -> Reservation | None:
        found: Reservation | None = await self._commit(FindReply(key.key, key.expired_us))
        return found

    async def reserve_reply(self, key: RequestKey) -> Reservation | None:
        found: Reservation | None = await self._commit(Reserve(*key))
        return found

    async def keep_reply(self, key: bytes, reply: KeptReply) -> None:
        await self._commit(Keep(key, encode(reply)))

    async def release_reply(self, key: bytes) -> None:
        await self._commit(Release(key))

    def age(self, reservation: Reservation) -> float:
        return self._clock.wall() - reservation.at_us / 1e6

    def tick(self, now: float) -> None:
        """Delete old answers from time to time; called once a second with the monotonic time."""
        if now - self._swept >= SWEEP_INTERVAL:
            self._swept = now
            self._sweep()

    def _sweep(self) -> None:
        sweep = SweepReplies(to_us(self._clock.wall() - KEPT_FOR))
        self._commits.put(sweep, lambda number: self._sweep() if number >= SWEEP_ROWS else None)

    async def _commit(self, operation: Operation) -> Any:
        return await awaited(self._commits.committed(operation))
