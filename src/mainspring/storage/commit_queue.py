"""Group commit: whatever gathers while one transaction runs is committed as the next one.

When a node is idle, an operation is committed at the end of the turn of the loop that brought it; when it is busy, one
transaction carries thousands. Either way each operation waits for one commit, and nobody waits on a timer: only what nobody
waits for does.

Where another program has locked the store, a group is kept and tried again by a timer, so that the loop goes on. What is put
meanwhile waits behind it; only what may overtake (`Operation.overtakes`) does, for a writer's lock does not keep readers out.
Once a lock has lasted for about 5 s, groups fail at once until one is through: whoever waits is answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.errors import StoreBusyError, StoreError, UsageError
from mainspring.storage.operation import DEFERRED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.storage.engine import GroupPort
    from mainspring.storage.operation import Operation

    Told = tuple[Operation, Callable[[Any], None], Callable[[StoreError], None]]
    """An operation, and who is told: of its outcome, or why it has not happened."""
    Entry = tuple[Operation, Callable[[Any], None], Callable[[StoreError], None], bool]
    """The same, and whether the next one has to be in the same group."""

GROUP_ROWS = 4096
"""A group is closed when it has so many rows: more would only make everybody in it wait longer."""

PATIENCE = 0.005
"""Seconds that operations wait for company at most where nobody waits for their outcome: a commit costs the disk as much for
one row as for a hundred."""
PATIENCE_BYTES = 2**20
"""With so many bytes, a group has company enough."""

PAUSES: Final = (0.001, 0.002, 0.005, 0.01, 0.02, *[0.05] * 99)
"""Seconds between the attempts to commit what finds the store locked: 5 s together, about what clients wait for an answer."""


def _nothing(_: object) -> None:
    pass


class CommitQueue:
    """Gathers operations into groups and hands them to the engine, one group at a time.

    ``call_soon`` runs a function at the end of the current turn of the node's loop, ``call_later`` after some seconds.
    ``limit`` is the number of bytes that may wait; above it ``pressure(True)`` is called, and ``pressure(False)`` once half of it
    is free again: the owner stops reading from its connections in between. ``failing`` is called with the reason where nothing of
    a group was committed, before its operations are told.
    """

    def __init__(
        self,
        engine: GroupPort,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
        *,
        limit: int = 64 * 2**20,
        pressure: Callable[[bool], None] | None = None,
        failing: Callable[[StoreError], None] | None = None,
    ) -> None:
        self._engine = engine
        self._call_soon = call_soon
        self._call_later = call_later
        self._limit = limit
        self._pressure = pressure
        self._failing = failing
        self._waiting: list[Entry] = []
        self._group: Sequence[Entry] = ()
        self._locked_out: list[Entry] = []
        """The group that the store's lock has kept out; nothing that writes passes it."""
        self._ahead: list[Entry] = []
        """What overtakes it."""
        self._is_ahead = False
        """Whether that is the group under way, or the last one."""
        self._tries = 0
        """How often the store was found locked since the last group that got in."""
        self._is_resting = False
        """Whether a timer runs until the next try."""
        self._is_closed = False
        self._bytes = 0
        self._full = False
        self._scheduled = False
        self._urgent = False
        self._patient = False
        self._idle: list[Callable[[], None]] = []
        self._is_answering = False
        self._afterwards: list[Callable[[], None]] = []
        self.locked: StoreBusyError | None = None
        """Why a group waits for the store's lock; None where none does."""
        self.groups = 0
        """How many were handed to the engine; another try is not another group."""
        self.answered = 0
        """How many groups have ended, one way or the other; those that overtake others are left out."""
        self.jobs = 0
        """How many jobs they brought: submitted, recorded as running, settled."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._waiting and not self._group and not self._locked_out and not self._ahead

    @property
    def waiting(self) -> Sequence[Operation]:
        """The operations of later groups than the one that is under way, or is being answered."""
        return [entry[0] for entry in self._waiting]

    @property
    def bytes(self) -> int:
        """Bytes held by the operations that wait or are under way."""
        return self._bytes

    def put(
        self,
        operation: Operation,
        done: Callable[[Any], None] = _nothing,
        failed: Callable[[StoreError], None] = _nothing,
    ) -> None:
        """Add an operation to the next group, which is committed soon if the operation is urgent.

        ``done`` is called with the outcome after the commit, ``failed`` with the error where the group, or this operation alone,
        could not be committed: nothing of it has happened then.
        """
        if self._tries and operation.overtakes:
            self._ahead.append((operation, done, failed, False))
        else:
            self._waiting.append((operation, done, failed, False))
        self.grown(operation.size)
        if operation.urgent:
            self.hurry()
        elif not self._patient:
            self._patient = True
            self._call_later(PATIENCE, self._lose_patience)

    def put_together(self, told: Sequence[Told]) -> None:
        """Add operations that one group takes whole, however large that becomes: all of them happen, or none.

        Where they fail, whoever has put them puts them together again. Raises UsageError where the store has no such groups.
        """
        if not self._engine.whole:
            raise UsageError(
                "operations cannot be put together here: this store's unit is one job, not the group; "
                "take a store that commits groups (SQLite, PostgreSQL), or put them one by one"
            )
        last = len(told) - 1
        for place, (operation, done, failed) in enumerate(told):
            operation.overtakes = False
            self._waiting.append((operation, done, failed, place < last))
            self.grown(operation.size)
        if told:
            self.hurry()

    def close(self) -> None:
        """Hand nothing more to the engine: what is still put has happened to nobody, and nobody is told."""
        self._is_closed = True

    def hurry(self) -> None:
        """Commit what waits as soon as possible: somebody waits for it."""
        self._urgent = True
        if not self._scheduled and not self._group:
            self._scheduled = True
            self._call_soon(self.flush)

    def _lose_patience(self) -> None:
        self._patient = False
        if self._waiting:
            self.hurry()

    def grown(self, size: int) -> None:
        """Count bytes that were added to an operation after it was put."""
        self._bytes += size
        if self._bytes > PATIENCE_BYTES:
            self.hurry()
        if self._bytes > self._limit and not self._full:
            self._full = True
            if self._pressure is not None:
                self._pressure(True)

    def flush(self) -> None:
        """Hand the next group to the engine, unless one is under way."""
        self._scheduled = False
        if self._group or self._is_closed:
            return
        may_write = bool(self._waiting) and not self._locked_out
        if self._locked_out and not self._is_resting:
            self._group, self._locked_out = self._locked_out, []
            self._is_ahead = False
        elif self._ahead and not (self._is_ahead and may_write):  # an endless row of them keeps nobody out
            self._group, self._ahead = self._ahead, []
            self._is_ahead = True
            self.groups += 1
        elif may_write:
            self._group = self._next()
            self._is_ahead = False
            self._urgent = bool(self._waiting)
            self.groups += 1
        else:
            return
        group = self._group
        self._engine.commit(
            [entry[0] for entry in group], self._committed, lambda place, outcome: _give(group[place], outcome)
        )

    def _next(self) -> Sequence[Entry]:
        """Take the next group from what waits."""
        waiting = self._waiting
        rows = 0
        for end, entry in enumerate(waiting, 1):  # noqa: B007 - the count outlives the loop
            operation = entry[0]
            operation.open = False
            rows += operation.rows
            if operation.brings_jobs:
                self.jobs += operation.rows
            if rows >= GROUP_ROWS and not entry[3]:
                break
        self._waiting = waiting[end:]
        return waiting[:end]

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call ``then`` once nothing waits and nothing is under way; at once if that is so."""
        if self.idle:
            then()
        else:
            self._idle.append(then)
            self.hurry()

    def afterwards(self, then: Callable[[], None]) -> None:
        """Call ``then`` once all operations of the group that is being answered are answered; at once where none is."""
        if self._is_answering:
            self._afterwards.append(then)
        else:
            then()

    @staticmethod
    def _answer(group: Sequence[Entry], outcomes: Sequence[Any] | StoreError) -> None:
        if isinstance(outcomes, StoreError):
            for entry in group:
                entry[2](outcomes)
            return
        for entry, outcome in zip(group, outcomes, strict=True):
            if outcome is not DEFERRED:
                _give(entry, outcome)

    def _committed(self, outcomes: Sequence[Any] | StoreError) -> None:
        group, self._group = self._group, ()
        if isinstance(outcomes, StoreBusyError):
            group = self._keep_locked_out(group, outcomes)
            if not group:
                self._go_on()
                return
        elif self._tries and not self._is_ahead:
            self._let_in()
        if not self._is_ahead:
            self.answered += 1
        for entry in group:
            self._bytes -= entry[0].size
        error = _failure(outcomes)
        if error is not None and self._failing is not None:
            self._failing(error)
        self._is_answering = True
        try:
            self._answer(group, outcomes)
        finally:
            self._is_answering = False
        if self._afterwards:
            afterwards, self._afterwards = self._afterwards, []
            for function in afterwards:
                function()
        if self._full and self._bytes * 2 < self._limit:
            self._full = False
            if self._pressure is not None:
                self._pressure(False)
        self._go_on()

    def _go_on(self) -> None:
        """See to the next group, or tell who waits that there is none."""
        if self._locked_out:
            ready = bool(self._ahead) or not self._is_resting
        else:
            ready = bool(self._ahead) or (bool(self._waiting) and self._urgent)
        if ready:
            self.hurry()
        elif self.idle and self._idle:
            then, self._idle = self._idle, []
            for function in then:
                function()

    # ---- a store that another program has locked ----

    def _keep_locked_out(self, group: Sequence[Entry], error: StoreBusyError) -> Sequence[Entry]:
        """Keep a group for another try; returns those of it that have waited for long enough."""
        if not self._tries:
            self._waiting = self._let_ahead(self._waiting)
        if not all(entry[0].overtakes for entry in group):
            group = self._let_ahead(group)
        if self._tries >= len(PAUSES):
            self.locked = None
            return group
        self.locked = error
        self._locked_out += group
        if not self._is_resting:
            self._is_resting = True
            self._call_later(PAUSES[self._tries], self._try_again)
            self._tries += 1
        return ()

    def _let_ahead(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return those that may not overtake the others."""
        self._ahead += [entry for entry in entries if entry[0].overtakes]
        return [entry for entry in entries if not entry[0].overtakes]

    def _try_again(self) -> None:
        self._is_resting = False
        self.hurry()

    def _let_in(self) -> None:
        """The lock is gone."""
        self._tries = 0
        self.locked = None
        if self._ahead:
            self._waiting[:0] = self._ahead
            self._ahead = []
            self._urgent = True


def _give(entry: Entry, outcome: Any) -> None:
    """Tell who has put an operation what became of it."""
    if isinstance(outcome, StoreError):
        entry[2](outcome)
    else:
        entry[1](outcome)


def _failure(outcomes: Sequence[Any] | StoreError) -> StoreError | None:
    """Return why nothing of a group was committed; None where something was."""
    if isinstance(outcomes, StoreError):
        return outcomes
    first = outcomes[0] if outcomes else None
    if isinstance(first, StoreError) and all(isinstance(outcome, StoreError) for outcome in outcomes):
        return first
    return None
