"""The contract between a node and an engine: operations and their phases, queries and their budgets, and what engines share.

*Operations* are the requests of a node to its store, each with many rows of one kind. A service builds an operation from one read
of a connection, the commit queue adds it to a group, and the engine runs the group in one transaction and returns an outcome for
each operation.

*Phases* are the order in which a group runs its operations. Any serial order would be right, because the operations of a group
are
concurrent. In this order jobs end before others begin, so that a released unique can be used in the same group. Operations that
create jobs come before those that claim them. Reads come last, so that they see all changes.

*Queries* change nothing and are no barrier: an answer includes exactly the changes that were committed when it began. A client
therefore finds every change that was acknowledged before its query, and writes do not wait for a long list. No query runs for
long: a read ends when it has spent its budget, and its answer contains the place where the next read continues.
"""

from __future__ import annotations

import re
import sys
import time
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence

    from mainspring.errors import StoreError
    from mainspring.features import Feature
    from mainspring.ids import NodeId, Term


class Phase(IntEnum):
    """The phase of a kind of operation, named by its class. Kinds of the same phase run in the order of their arrival."""

    WATCH = 0
    """Finds the waiting clients of a job before its end removes them."""
    PUBLISH = 1
    """Writes the values of held jobs: those that a task has published right before its end are in the same group as the end."""
    RECOVER = 2
    SETTLE = 3
    ASSIGN = 4
    CANCEL = 5
    REDRIVE = 6
    SWEEP = 7
    WAKE = 8
    """The last phase that may end jobs; the following phases handle the consequences."""
    SLICES = 9
    """Writes of slices other than the one of jobs. They may create jobs."""
    INBOX = 10
    LEAVE = 11
    SUBMIT = 12
    CLAIM = 13
    WAIT = 14
    LIMITS = 15
    HOLDS = 16
    """Behind all operations that lock jobs: no later phase waits for another transaction that decides about holds."""
    LOGS = 17
    ACCESS = 18
    SERIES = 19
    EVENTS = 20
    PROBE = 21
    READ = 22


class Deferred(Enum):
    """The outcome, in a group's outcomes, of an operation that the engine answers separately."""

    DEFERRED = "deferred"
    """The engine has called the group's ``answer`` for this operation, or will call it later, on the node's thread."""


DEFERRED: Final = Deferred.DEFERRED


class Operation(msgspec.Struct, eq=False, kw_only=True):
    """One request to the store. The functions that receive its outcome are given to `CommitQueue.put`.

    A derived class declares its values as fields, and sets ``rows`` and ``size`` in ``__post_init__``.

    ``size`` is about how many bytes the operation holds in memory; ``rows`` is the largest number of rows that it may touch.
    """

    phase: ClassVar[Phase] = Phase.READ
    """The phase of a group in which it runs."""
    reads: ClassVar[bool] = False
    """Whether it changes nothing: a group of such operations needs no transaction, and no fence rejects it."""
    brings_jobs: ClassVar[bool] = False
    """Whether each of its rows is a job to be written; for other operations ``rows`` is only a bound."""
    is_request: ClassVar[bool] = False
    """Whether a request of a client has brought it, or it goes on with one: the node's own work makes way for such operations.
    Starts and ends of jobs do not count, because they may follow from the node's own work, such as fires of schedules."""
    acts: ClassVar[bool] = False
    """Whether it may be an act of a caller that the audit records (`access.audit.Acting`)."""

    keyed: ClassVar[bool] = False
    """Whether it has an attribute ``keyed_act``: the key of the client's request, or None (`access.idempotency.KeyedAct`)."""
    causes: ClassVar[frozenset[str]] = frozenset()
    """The types of events that it may cause (`event_log.types`), and its method ``caused`` yields by its outcome."""
    sifts: ClassVar[bool] = False
    """Whether ``caused`` also gets the types that somebody wants: it has many rows, and leaves out the others."""

    rows: int = 1
    size: int = 64
    urgent: bool = True
    """Whether a caller waits for the outcome. Other operations go with the next group, or after `GATHER_DELAY`."""
    open: bool = True
    """Whether rows may still be added: only until the operation is part of a group."""
    overtakes: bool = False
    """Whether it may run before earlier operations that wait for a locked store. Such an operation changes nothing, and no
    caller relies on its order: a barrier, or a query for uncommitted changes, must not overtake."""


class Probe(Operation):
    """Write what a submission writes and undo it. If the probe is committed, the store accepts writes.

    Outcome: None. Each engine goes as far as it can without a job: it checks permissions and writes pages.
    """

    phase = Phase.PROBE


def unknown(engine: str, kinds: Iterable[type]) -> TypeError:
    """Return the error of an engine that has no handler for an operation or a query, which is a defect."""
    return TypeError(
        f"{engine} cannot do {', '.join(sorted(kind.__name__ for kind in kinds))}: it has no handler for it"
    )


if TYPE_CHECKING:
    Plan = dict[type[Operation], list[tuple[int, Any]]]
    """Each operation with its place in the group; the kinds are in the order of their phases."""


def plan_of(group: Sequence[Operation]) -> Plan:
    """Return a group by kinds. Kinds of one phase keep the order of their arrival."""
    plan: Plan = {}
    for place, operation in enumerate(group):
        plan.setdefault(type(operation), []).append((place, operation))
    if len(plan) > 1:
        return {kind: plan[kind] for kind in sorted(plan, key=_phase)}
    return plan


def _phase(kind: type[Operation]) -> int:
    return kind.phase


def only_reads(plan: Plan) -> bool:
    """Return whether a group changes nothing: it needs no transaction, and no fence rejects it."""
    return all(kind.reads for kind in plan)


def has_keys(plan: Plan) -> bool:
    """Return whether a group may have acts with keys; most have none."""
    return any(kind.keyed for kind in plan)


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Budget(NamedTuple):
    """The limits of one read."""

    rows: int = 20_000
    """Rows that are examined, whether they match or not."""
    seconds: float = 0.06
    part: int = 1000
    """Rows before the first check of the clock. After a quick part, the next one is larger."""


class Query(msgspec.Struct, Generic[T_co], frozen=True):
    """A query to a store, whose answer is a ``T_co``."""

    is_small: ClassVar[bool] = False
    """Whether it reads a single row: it may run before queries that have waited longer."""


class Page(NamedTuple, Generic[T]):
    """The result of a read."""

    items: list[T]
    next: Any = None
    """The place up to which the read searched: `PageQuery.after` of the next page, which may be empty. None: no more rows."""
    searched_us: int = 0
    """The wall time in microseconds at which the last examined job was submitted, or run began, in a list that has a `next`."""
    size: int = 0
    """The bytes of the items, if the query has a budget of bytes."""


FIRST_PART: Final = 20
"""Rows that a read with a budget of bytes begins with: from their sizes it estimates how many fit into the rest."""
_encode: Final = msgspec.msgpack.Encoder().encode


class PageQuery(Query[Page[T]], Generic[T], frozen=True, kw_only=True):
    """A query whose answer may be long."""

    after: Any = None
    """`Page.next` of the previous page; None: from the first row."""
    limit: int = 100
    bytes: int = 0
    """The bytes of rows after which a page ends, for rows whose sizes clients choose; 0: any number."""

    @staticmethod
    def size_of(item: T) -> int:
        """Return the bytes of a row."""
        return len(_encode(item))


class Sizes(Generic[T]):
    """The rest of a query's budget of bytes during a read. It also decides how many rows are read at a time."""

    __slots__ = ("_next", "_number", "_query", "used")

    def __init__(self, query: PageQuery[T]) -> None:
        self._query = query
        self._next = FIRST_PART if query.bytes else sys.maxsize
        self._number = 0
        self.used = 0

    def part(self, rows: int) -> int:
        """Return how many of these rows may be read next."""
        return min(rows, self._next)

    def add(self, items: Sequence[T]) -> bool:
        """Count rows that were read; return whether the budget is spent."""
        query = self._query
        if not query.bytes or not items:
            return False
        self.used += sum(map(query.size_of, items))
        self._number += len(items)
        fit = (query.bytes - self.used) * self._number // max(self.used, 1)
        self._next = max(1, min(self._next * GROWTH, fit))
        return self.used >= query.bytes


GROWTH: Final = 4
"""How many times larger a part is than a quick one before it: each part costs a few statements, however few its rows are."""
QUICK: Final = 0.1
"""The share of a budget's time in which a quick part ends, so that the next one, too, ends within the budget."""


class Meter:
    """The rest of a budget during a read."""

    def __init__(
        self,
        budget: Budget,
        monotonic: Callable[[], float] = time.monotonic,
        next_turn: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``next_turn`` returns in a later turn of the node's loop, in a store whose reads run on it."""
        self._monotonic = monotonic
        self._next_turn = next_turn
        self._began = monotonic()
        self._until = self._began + budget.seconds
        self._quick = budget.seconds * QUICK
        self._remaining = budget.rows
        self._part = budget.part
        self._has_begun = False
        self.few = budget.rows // 4
        """Index entries that may be tried before all rows are searched."""

    def part(self) -> int:
        """Return how many rows may be read before the next call; 0 if the budget is spent, but never at the first call."""
        now = self._monotonic()
        if self._has_begun:
            if now >= self._until:
                return 0
            if now - self._began < self._quick:
                self._part *= GROWTH
        self._has_begun = True
        self._began = now
        return max(min(self._part, self._remaining), 0)

    def is_late(self) -> bool:
        """Return whether the time is spent."""
        return self._monotonic() >= self._until

    async def pause(self) -> None:
        """Let the node's loop do everything else that is ready, between two portions of the work on a read."""
        if self._next_turn is not None:
            await self._next_turn()

    def spend(self, rows: int) -> None:
        """Subtract rows from the budget."""
        self._remaining -= rows


async def in_parts(
    query: PageQuery[T],
    meter: Meter,
    read: Callable[[Any, int], Awaitable[Sequence[tuple[Any, T]]]],
) -> Page[T]:
    """Read a page whose rows all match.

    ``read`` receives a place and a number. It returns at most that number of the following rows, each with its own place.
    """
    items: list[T] = []
    after = query.after
    sizes = Sizes(query)
    while len(items) < query.limit and (rows := meter.part()):
        number = sizes.part(min(rows, query.limit - len(items)))
        found = await read(after, number)
        meter.spend(number)
        part = [item for _, item in found]
        items += part
        is_spent = sizes.add(part)
        if len(found) < number:
            return Page(items, size=sizes.used)
        after = found[-1][0]
        if is_spent:
            break
    return Page(items, after, size=sizes.used)


class NumberedRow(Protocol):
    """A row of a log, such as the audit."""

    @property
    def number(self) -> int:
        """Its place: later rows have higher numbers."""

    @property
    def at_us(self) -> int:
        """Its wall time in microseconds."""


R = TypeVar("R", bound=NumberedRow)


async def matching(
    query: PageQuery[R],
    meter: Meter,
    matches: Callable[[R], bool],
    read: Callable[[int | None, int], Awaitable[Sequence[R]]],
    most: int,
) -> Page[R]:
    """Read a page of those rows of a log that match, ``most`` rows at a time.

    ``read`` receives a place, None for the first page, and a number. It returns at most that number of the following rows.
    """
    found: list[R] = []
    place, searched_us = query.after, 0
    sizes = Sizes(query)
    while rows := sizes.part(min(meter.part(), most)):
        part = await read(place, rows)
        meter.spend(rows)
        is_spent = sizes.add(part)
        for row in part:
            if matches(row):
                found.append(row)
                if len(found) == query.limit:
                    return Page(found, row.number, row.at_us, sizes.used)
        if len(part) < rows:
            return Page(found, size=sizes.used)
        place, searched_us = part[-1].number, part[-1].at_us
        if is_spent:
            break
    return Page(found, place, searched_us, sizes.used)


if TYPE_CHECKING:
    Committed = Callable[[Sequence[Any] | StoreError], None]
    """Receives the outcomes of a group in the order of its operations, or the error if nothing of the group was committed.

    An outcome may be a StoreError if this operation alone failed, or DEFERRED if ``Answer`` was or will be called for it."""
    Answer = Callable[[int, Any | StoreError], None]
    """Receives the outcome of one operation of a group, named by its place."""
    Answered = Callable[[Any], None]
    """Receives the answer to a query, or the StoreError."""


class Opened(NamedTuple):
    """The result of opening a store."""

    term: Term
    """The number under which this run of the node holds jobs; never used before."""
    nodes: Mapping[int, str]
    """The node of each term, for the handles of jobs of earlier terms. A shared store adds the terms of other nodes before it
    returns jobs of these terms."""


class QueryPort(Protocol):
    """The part of an engine that answers queries."""

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query from what is committed, and call ``answered`` once, before returning or later on the node's thread.

        It is called as `commit` is, and runs beside a group: neither waits for the other. The answer includes everything that was
        committed before the call. A read that has spent its budget returns the rows found so far (`query.Page.next`); each read
        gets at least one part further. If the store is not reachable, the query fails within seconds, where a group would wait.
        """


class GroupPort(Protocol):
    """The part of an engine that commits groups."""

    whole: bool
    """Whether a group is one transaction: all of its operations happen, or none."""

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        """Run a group as one transaction and call ``committed`` once, before returning or later on the node's thread.

        ``answer`` is for outcomes that do not depend on the rest of the group. An engine may call it at any time, also long after
        the group has ended, once for each of these operations. Among the group's outcomes theirs are DEFERRED.

        Called on the node's thread, in its running loop if it has one. At most one group is in progress at a time.
        """


class Engine(QueryPort, GroupPort, Protocol):
    """One implementation of the store.

    A group is one transaction: all of its operations happen, or none. (On a store that has no transactions of that size, and is
    not ``whole``, each job of an operation happens as a whole or not at all.) The operations of one group are concurrent, so any
    serial order of them is right. Engines run them in an order of kinds that suits them: settlements first, so that a released
    unique can be used in the same group; claims after submissions.
    """

    durable: bool
    """Whether committed data survives the end of the process."""

    max_value: int
    """The largest payload or result that can be stored, in bytes."""

    step_secret: bytes
    """The secret from which the keys of runs follow (`workflows.model.step_key`), once the store is open. Empty: transactions of
    users record no steps in it."""

    shared: bool
    """Whether several nodes have the store open at once. Each group is then fenced by the node's term: once a node has ended
    the term, groups fail with StoreFencedError and change nothing."""

    lacks: frozenset[Feature]
    """The features that it does not have."""

    async def open(
        self, node: NodeId, deliver: Callable[[Callable[[], None]], object], lifecycle: Any = None
    ) -> Opened:
        """Open the store for a node and begin its next term.

        ``deliver`` runs a function on the node's own thread; engines with threads of their own call ``committed`` through it.
        ``lifecycle`` (`jobs.slices.JobLifecycle`, or None) is the node's part in creating jobs for slices; without it they
        create none. On a shared store, open may be called again after the term has ended, to begin another one.
        Raises StoreBusyError, StoreForeignError, StoreCorruptError, StoreFullError, StoreUnavailableError or StoreError.
        """

    async def close(self) -> None:
        """Release the store. No group may be under way. It may be closed again.

        On a shared store this ends the node's term, so that no other node waits for its lease, unless the node still holds jobs.
        The node that finds it dead releases these, as for any lost node. Never raises: if the store is not reachable, other nodes
        wait for the lease.
        """


def run_synchronously(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result. Engines without I/O run the coroutines that all engines share this way.

    Raises RuntimeError if the coroutine suspends.
    """
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError(f"{work!r} is suspended, and nothing would resume it")


_ENTRY: Final = re.compile(r"^-- (name|part): (\w+)\n(.*?);\s*$", re.MULTILINE | re.DOTALL)
_PLACE: Final = re.compile(r"\{((?:[a-z]\w*\.)?[a-z]\w*(?:\s*\|[^{}]*)?)\}")
_COLUMN: Final = re.compile(r",\s*(?![^()]*\))")


def statements_of(text: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the statements of a file, by name. Each follows a line ``-- name: NAME``, and ends with a semicolon.

    A text after ``-- part: NAME`` replaces ``{NAME}`` in statements and in other parts; ``given`` are more parts.
    A part that is a list of columns may be changed where it stands. ``{t.NAME}`` puts the name of a table before each column,
    ``{NAME | without a, b}`` leaves columns out, and ``{NAME | a: f(a) | b: 0}`` puts expressions in the places of columns.
    Raises KeyError for a part that the file does not have, or a column that the part does not have, and ValueError for a name
    that two statements have.
    A comment before such a line describes what follows.
    """
    entries: list[tuple[str, str, str]] = _ENTRY.findall(text)
    names = [name for kind, name, _ in entries if kind != "part"]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two statements have the same name: {', '.join(twice)}")
    parts = {**(given or {}), **{name: part for kind, name, part in entries if kind == "part"}}

    def expand(text: str) -> str:
        while (expanded := _PLACE.sub(lambda place: part(place[1]), text)) != text:
            text = expanded
        return text

    def part(place: str) -> str:
        source, *changes = re.split(r"\s*(?<!\|)\|(?!\|)\s*", place)
        table, _, name = source.rpartition(".")
        if not table and not changes:
            return parts[name]
        columns = _COLUMN.split(expand(parts[name]))
        shown = {column: f"{table}.{column}" if table else column for column in columns}
        for change in changes:
            column, _, expression = change.partition(": ")
            left_out = [] if expression else _COLUMN.split(column.removeprefix("without "))
            replaced = {column: expression} if expression else dict.fromkeys(left_out, "")
            if unknown := replaced.keys() - shown.keys():
                raise KeyError(f"{name} has no {', '.join(sorted(unknown))}")
            shown |= replaced
        return ", ".join(shown[column] for column in columns if shown[column])

    return {name: expand(statement) for kind, name, statement in entries if kind == "name"}
