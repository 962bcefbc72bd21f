"""The audit: who did what, when and why. A row is written in the transaction of its act: neither exists without the other.

`ActRecorder` is a node's part in it: it records acts and refusals, and reads them.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from mainspring.access.caller import Act
from mainspring.event_log.interests import NewEvent
from mainspring.event_log.types import ACTED, ActFields
from mainspring.sizes import CANNOT_READ
from mainspring.storage.engine import Operation, Page, PageQuery, Phase, matching

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.access.idempotency import KeyedAct
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.engine import Meter, Plan
    from mainspring.storage.reads import Reads


class Recorded(msgspec.Struct, frozen=True):
    """An act in the audit."""

    number: int
    """Its place: later acts have higher numbers."""
    at_us: int
    """Wall time in microseconds, by the store's clock if it has one."""
    act: Act


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Act).decode
UNREADABLE: Final = "unreadable"
"""The name of a stored act that cannot be read."""


def decode_act(stored: bytes) -> Act:
    """Return a stored act; one of the name `UNREADABLE` for bytes that are none: one row must not break the audit."""
    try:
        return _decode(stored)
    except CANNOT_READ as error:
        return Act(UNREADABLE, "", reason=f"this version cannot read the stored act: {error}")


def object_number(name: str) -> int:
    """Return the number by which an index finds the acts on an object: names may be too long for one."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


def row_of(act: Act) -> tuple[str, str, int, bytes]:
    """Return the columns of an act in a table: namespace, what, object, act."""
    return act.namespace, act.what, object_number(act.object), _encode(act)


class Acting(Operation, kw_only=True):
    """An operation that may have an act, which the engine records if the operation has changed something.

    If it is the request of a client with a key, it also has a ``keyed_act``. The outcome may be a `Reservation` then.
    """

    acts = True
    keyed = True
    act: Act | None = None
    keyed_act: KeyedAct | None = None

    def recorded(self, outcome: Any) -> Act | None:
        """Return the act to record after this outcome; None if nothing has changed. Derived classes may complete the act."""
        return self.act if outcome else None


def recorded_acts(plan: Plan, outcomes: Sequence[Any]) -> list[Act]:
    """Return the acts of a group that has run, in the order of its phases."""
    found = []
    for kind, placed in plan.items():
        if kind.acts:
            for place, operation in placed:
                if operation.act is not None and (act := operation.recorded(outcomes[place])) is not None:
                    found.append(act)
    return found


def event_of(act: Act) -> NewEvent:
    """Return the event of an act."""
    fields = ActFields(what=act.what, by=act.who, reason=act.reason, depth=act.depth)
    return NewEvent(ACTED, act.namespace, "", act.object, 0, fields)


class RecordActs(Acting):
    """Record acts that no other operation records, such as refusals. Outcome: None."""

    phase = Phase.ACCESS
    more: Sequence[Act]

    def __post_init__(self) -> None:
        self.rows = len(self.more)


class ListActs(PageQuery[Recorded], frozen=True, kw_only=True):
    """List acts, newest first; None matches all. A page continues after a number."""

    namespace: str | None = None
    who: str | None = None
    what: str | None = None
    object: str | None = None
    without_refusals: bool = False
    """Whether to leave out the attempts that were refused: they have done nothing."""

    def matches(self, act: Act) -> bool:
        """Return whether an act matches the query."""
        return (
            (self.namespace is None or act.namespace == self.namespace)
            and (self.who is None or act.who == self.who)
            and (self.what is None or act.what == self.what)
            and (self.object is None or act.object == self.object)
            and not (self.without_refusals and act.refused)
        )

    @property
    def index(self) -> tuple[str, tuple[str | int, ...]]:
        """The name of the engines' statement that reads the fewest rows, and the value that it needs."""
        if self.object is not None:
            return "acts_on_object", (object_number(self.object),)
        if self.what is not None:
            return "acts_of_what", (self.what,)
        if self.namespace is not None:
            return "acts_of_namespace", (self.namespace,)
        return "acts", ()


PART: Final = 200
"""Rows that are read at a time; few are left out."""


async def list_acts(
    query: ListActs, meter: Meter, read: Callable[[int | None, int], Awaitable[Sequence[Recorded]]]
) -> Page[Recorded]:
    """Answer a query. ``read`` returns at most a number of acts below a place, newest first, by the query's index."""
    return await matching(query, meter, lambda recorded: query.matches(recorded.act), read, PART)


REFUSALS_PER_MINUTE: Final = 60
"""Refusals of one caller with a name that a node records in a minute; it counts the others."""
UNKNOWN_PER_MINUTE: Final = 10
"""The same of callers without a name, from one address."""
ALL_PER_MINUTE: Final = 10 * REFUSALS_PER_MINUTE
"""Refusals of all callers with a name."""
ALL_UNKNOWN_PER_MINUTE: Final = 10 * UNKNOWN_PER_MINUTE
"""Those of all callers without a name."""


log = structlog.get_logger("mainspring.access")


class _Quota:
    """The refusals that are recorded in a minute: at most ``most`` of one origin, and ``of_all`` of all together."""

    def __init__(self, most: int, of_all: int) -> None:
        self._most = most
        self._of_all = of_all
        self._recorded: Counter[str] = Counter()

    def take(self, origin: str) -> bool:
        """Count a refusal of an origin; return False if it is not recorded."""
        if self._recorded[origin] >= self._most or self._recorded.total() >= self._of_all:
            return False
        self._recorded[origin] += 1
        return True

    def renew(self) -> int:
        """Begin another minute; return how many were recorded in the last one."""
        recorded, self._recorded = self._recorded.total(), Counter()
        return recorded


class ActRecorder:
    """Records acts that no operation of their own records. ``now`` is the monotonic time."""

    def __init__(self, commits: CommitQueue, reads: Reads, now: float) -> None:
        self._commits = commits
        self._reads = reads
        self._refusals_since = now
        self._callers = _Quota(REFUSALS_PER_MINUTE, ALL_PER_MINUTE)
        self._addresses = _Quota(UNKNOWN_PER_MINUTE, ALL_UNKNOWN_PER_MINUTE)
        self._left_out = 0

    async def list_acts(self, query: ListActs) -> Page[Recorded]:
        """Return a part of the audit: it may have fewer acts than the query wants, and a place where the next one begins."""
        return await self._reads.read(query)

    async def record(self, act: Act) -> None:
        """Record an act that changes nothing else, such as a mark."""
        await self._commits.committed(RecordActs([act]))

    def refused(self, act: Act) -> None:
        """Record a refusal, unless the quota of its caller is used up: clients can cause any number.

        Each caller has its own quota, so that one cannot hide the refusals of others.
        """
        if not (self._callers.take(act.token or act.who) if act.who else self._addresses.take(act.address)):
            self._left_out += 1
            return
        operation = RecordActs([act])
        operation.urgent = False
        self._commits.put(operation)

    def tick(self, now: float) -> None:
        """Begin another minute of refusals when one is over; called with the monotonic time."""
        if now - self._refusals_since >= 60.0:
            recorded = self._callers.renew() + self._addresses.renew()
            if self._left_out:
                log.warning("refusals are not in the audit", left_out=self._left_out, recorded=recorded)
            self._refusals_since, self._left_out = now, 0
