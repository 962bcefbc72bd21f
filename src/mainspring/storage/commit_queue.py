"""Group commit: operations that arrive while one transaction runs are committed as the next one.

On an idle node, an operation is committed at the end of the loop's turn that brought it. On a busy node, one transaction carries
thousands of operations. In both cases each operation waits for one commit and not for a timer; only operations without a waiting
caller wait for a timer (`GATHER_DELAY`).

If another program has locked the store, a timer retries the group, so the loop never blocks. Later operations wait behind that
group. Only operations that may overtake (`Operation.overtakes`) run before it, because a writer's lock does not block readers.
If a lock lasts for about 5 s, groups fail at once until one succeeds, so that callers get an answer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mainspring.callbacks import Callback
from mainspring.errors import StoreBusyError, StoreError, UsageError
from mainspring.storage.engine import DEFERRED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mainspring.storage.engine import GroupPort, Operation

    OperationWithCallbacks = tuple[Operation, Callable[[Any], None], Callable[[StoreError], None]]
    """An operation, and the functions that receive its outcome or its error."""
    Entry = tuple[Operation, Callable[[Any], None], Callable[[StoreError], None], bool]
    """The same, and whether the next one has to be in the same group."""

GROUP_ROWS = 4096
"""Rows after which a group is closed. More rows would only delay every operation of the group."""

GATHER_DELAY = 0.005
"""Seconds that operations without a waiting caller wait at most for others, because a commit costs the disk as much for one row
as for a hundred."""
GATHER_BYTES = 2**20
"""Bytes after which operations no longer wait for others."""

LOCK_RETRY_DELAYS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, *[0.05] * 99)
"""Seconds between attempts to commit to a locked store. Their sum is 5 s, about as long as clients wait for an answer."""


def _nothing(_: object) -> None:
    pass


class CommitQueue:
    """Gathers operations into groups and gives them to the engine, one group at a time.

    ``call_soon`` runs a function at the end of the current turn of the node's loop, ``call_later`` after some seconds.
    ``limit`` is the number of bytes that may be queued. Above it ``pressure(True)`` is called, and ``pressure(False)`` once half
    of it is free; in between the owner stops reading from its connections. ``failing`` is called with the error of a group that
    was not committed at all, before its operations fail.
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
        self._blocked: list[Entry] = []
        """The group that the store's lock blocks; no later write overtakes it."""
        self._overtaking: list[Entry] = []
        """Operations that overtake it."""
        self._is_overtaking = False
        """Whether the current or last group is one that overtakes."""
        self._tries = 0
        """Attempts that found the store locked since the last successful group."""
        self._is_retry_set = False
        """Whether a timer for the next attempt is set."""
        self._is_closed = False
        self._bytes = 0
        self._full = False
        self._scheduled = False
        self._urgent = False
        self._is_gathering = False
        self._idle: list[Callable[[], None]] = []
        self._is_answering = False
        """Whether the callbacks of a group are being called."""
        self._before_answers: list[Callable[[], None]] = []
        self._after_answers: list[Callable[[], None]] = []
        self.locked: StoreBusyError | None = None
        """The error of the group that waits for the store's lock; None if no group does."""
        self.groups = 0
        """Number of groups given to the engine; a retry does not count."""
        self.answered = 0
        """Number of groups that have succeeded or failed, without those that overtake others."""
        self.requests = 0
        """Number of operations in these groups that requests of clients have brought."""
        self.jobs = 0
        """Number of jobs in these groups: submitted, recorded as running, settled."""

    @property
    def idle(self) -> bool:
        """Return whether no operation is queued or in progress."""
        return not self._waiting and not self._group and not self._blocked and not self._overtaking

    @property
    def waiting(self) -> Sequence[Operation]:
        """Return the queued operations, without those of the group that is in progress or being answered."""
        return [entry[0] for entry in self._waiting]

    @property
    def bytes(self) -> int:
        """Return the number of bytes of the operations that are queued or in progress."""
        return self._bytes

    def put(
        self,
        operation: Operation,
        done: Callable[[Any], None] = _nothing,
        failed: Callable[[StoreError], None] = _nothing,
    ) -> None:
        """Add an operation to the next group, which is committed soon if the operation is urgent.

        After the commit, ``done`` is called with the outcome. ``failed`` is called with the error if the group, or this operation
        alone, could not be committed; then nothing of the operation is stored.
        """
        if self._tries and operation.overtakes:
            self._overtaking.append((operation, done, failed, False))
        else:
            self._waiting.append((operation, done, failed, False))
        self.add_bytes(operation.size)
        if operation.urgent:
            self.hurry()
        elif not self._is_gathering:
            self._is_gathering = True
            self._call_later(GATHER_DELAY, self._gathered)

    def committed(self, operation: Operation) -> Callback[Any]:
        """Return the outcome of an operation for a coroutine, which adds it to the next group when it awaits the outcome."""
        return Callback(partial(self.put, operation))

    def put_atomic(self, operations: Sequence[OperationWithCallbacks]) -> None:
        """Add operations that are committed in one group of any size: all of them or none.

        After an error the caller puts all of them again. Raises UsageError if the store does not commit groups as a whole.
        """
        if not self._engine.whole:
            raise UsageError(
                "operations cannot be atomic here: this store commits single jobs, not groups; "
                "use a store that commits groups (SQLite, PostgreSQL), or put the operations one by one"
            )
        last = len(operations) - 1
        for place, (operation, done, failed) in enumerate(operations):
            operation.overtakes = False
            self._waiting.append((operation, done, failed, place < last))
            self.add_bytes(operation.size)
        if operations:
            self.hurry()

    def withdraw(self, operations: Collection[Operation], error: StoreError) -> None:
        """Drop those of some operations that are in no group yet, and fail them: nobody waits for their outcomes any more.

        Operations of an atomic group cannot be withdrawn.
        """
        dropped = [entry for entry in self._waiting if entry[0] in operations]
        if not dropped:
            return
        self._waiting = [entry for entry in self._waiting if entry[0] not in operations]
        self._bytes -= sum(entry[0].size for entry in dropped)
        for entry in dropped:
            entry[2](error)
        self._relieve()

    def close(self) -> None:
        """Give no more groups to the engine. Queued operations are dropped, and their functions are not called."""
        self._is_closed = True

    def hurry(self) -> None:
        """Commit the queued operations as soon as possible."""
        self._urgent = True
        if not self._scheduled and not self._group:
            self._scheduled = True
            self._call_soon(self.flush)

    def _gathered(self) -> None:
        self._is_gathering = False
        if self._waiting:
            self.hurry()

    def add_bytes(self, size: int) -> None:
        """Count bytes that were added to an operation after it was put."""
        self._bytes += size
        if self._bytes > GATHER_BYTES:
            self.hurry()
        if self._bytes > self._limit and not self._full:
            self._full = True
            if self._pressure is not None:
                self._pressure(True)

    def flush(self) -> None:
        """Give the next group to the engine, unless one is in progress."""
        self._scheduled = False
        if self._group or self._is_closed:
            return
        may_write = bool(self._waiting) and not self._blocked
        if self._blocked and not self._is_retry_set:
            self._group, self._blocked = self._blocked, []
            self._is_overtaking = False
        elif self._overtaking and not (self._is_overtaking and may_write):  # reads do not starve writes
            self._group, self._overtaking = self._overtaking, []
            self._is_overtaking = True
            self.groups += 1
        elif may_write:
            self._group = self._next()
            self._is_overtaking = False
            self._urgent = bool(self._waiting)
            self.groups += 1
        else:
            return
        group = self._group
        self._engine.commit(
            [entry[0] for entry in group], self._committed, lambda place, outcome: _call_back(group[place], outcome)
        )

    def _next(self) -> Sequence[Entry]:
        """Remove the next group from the queue and return it."""
        waiting = self._waiting
        rows = 0
        for end, entry in enumerate(waiting, 1):  # noqa: B007 - the count outlives the loop
            operation = entry[0]
            operation.open = False
            rows += operation.rows
            if operation.brings_jobs:
                self.jobs += operation.rows
            if operation.is_request:
                self.requests += 1
            if rows >= GROUP_ROWS and not entry[3]:
                break
        self._waiting = waiting[end:]
        return waiting[:end]

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call ``then`` once no operation is queued or in progress; at once if that is so."""
        if self.idle:
            then()
        else:
            self._idle.append(then)
            self.hurry()

    def answers(self) -> bool:
        """Return whether the outcomes of a group are being delivered."""
        return self._is_answering

    def before_answers(self, then: Callable[[], None]) -> None:
        """Call ``then`` before the current group's operations are answered; after them if that has begun.

        It is called at once if no group is in progress.
        """
        if self._group:
            self._before_answers.append(then)
        else:
            self.after_answers(then)

    def after_answers(self, then: Callable[[], None]) -> None:
        """Call ``then`` once the current group's operations are all answered; at once if no group is in progress."""
        if self._is_answering or self._group:
            self._after_answers.append(then)
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
                _call_back(entry, outcome)

    def _committed(self, outcomes: Sequence[Any] | StoreError) -> None:
        group, self._group = self._group, ()
        if self._before_answers:
            before_answers, self._before_answers = self._before_answers, []
            for function in before_answers:
                function()
        if isinstance(outcomes, StoreBusyError):
            group = self._keep_blocked(group, outcomes)
            if not group:
                self._continue()
                return
        elif self._tries and not self._is_overtaking:
            self._unblock()
        if not self._is_overtaking:
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
        if self._after_answers:
            after_answers, self._after_answers = self._after_answers, []
            for function in after_answers:
                function()
        self._relieve()
        self._continue()

    def _relieve(self) -> None:
        """End the pressure once half of the queue is free."""
        if self._full and self._bytes * 2 < self._limit:
            self._full = False
            if self._pressure is not None:
                self._pressure(False)

    def _continue(self) -> None:
        """Start the next group, or call the functions that wait for an idle queue."""
        if self._blocked:
            ready = bool(self._overtaking) or not self._is_retry_set
        else:
            ready = bool(self._overtaking) or (bool(self._waiting) and self._urgent)
        if ready:
            self.hurry()
        elif self.idle and self._idle:
            then, self._idle = self._idle, []
            for function in then:
                function()

    # ---- a store that another program has locked ----

    def _keep_blocked(self, group: Sequence[Entry], error: StoreBusyError) -> Sequence[Entry]:
        """Keep a blocked group for a retry. Return its entries that have waited long enough and fail."""
        if not self._tries:
            self._waiting = self._split_overtaking(self._waiting)
        if not all(entry[0].overtakes for entry in group):
            group = self._split_overtaking(group)
        if self._tries >= len(LOCK_RETRY_DELAYS):
            self.locked = None
            return group
        self.locked = error
        self._blocked += group
        if not self._is_retry_set:
            self._is_retry_set = True
            self._call_later(LOCK_RETRY_DELAYS[self._tries], self._retry)
            self._tries += 1
        return ()

    def _split_overtaking(self, entries: Sequence[Entry]) -> list[Entry]:
        """Move the entries that may overtake ahead. Return the others."""
        self._overtaking += [entry for entry in entries if entry[0].overtakes]
        return [entry for entry in entries if not entry[0].overtakes]

    def _retry(self) -> None:
        self._is_retry_set = False
        self.hurry()

    def _unblock(self) -> None:
        """Reset the state of the lock after a commit that succeeded."""
        self._tries = 0
        self.locked = None
        if self._overtaking:
            self._waiting[:0] = self._overtaking
            self._overtaking = []
            self._urgent = True


def _call_back(entry: Entry, outcome: Any) -> None:
    """Call an operation's function for its outcome or error."""
    if isinstance(outcome, StoreError):
        entry[2](outcome)
    else:
        entry[1](outcome)


def _failure(outcomes: Sequence[Any] | StoreError) -> StoreError | None:
    """Return the error of a group of which nothing was committed; None if something was."""
    if isinstance(outcomes, StoreError):
        return outcomes
    first = outcomes[0] if outcomes else None
    if isinstance(first, StoreError) and all(isinstance(outcome, StoreError) for outcome in outcomes):
        return first
    return None
