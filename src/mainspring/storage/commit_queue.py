"""Group commit: whatever gathers while one transaction runs is committed as the next one.

When a node is idle, an operation is committed at the end of the turn of the loop that brought it; when it is busy, one
transaction carries thousands. Either way each operation waits for one commit, and nobody waits on a timer: only what nobody
waits for does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.errors import StoreError
from mainspring.storage.operation import DEFERRED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.storage.engine import Engine
    from mainspring.storage.operation import Operation

GROUP_ROWS = 4096
"""A group is closed when it has so many rows: more would only make everybody in it wait longer."""

PATIENCE = 0.005
"""Seconds that operations wait for company at most where nobody waits for their outcome: a commit costs the disk as much for
one row as for a hundred."""
PATIENCE_BYTES = 2**20
"""With so many bytes, a group has company enough."""


class CommitQueue:
    """Gathers operations into groups and hands them to the engine, one group at a time.

    ``call_soon`` runs a function at the end of the current turn of the node's loop, ``call_later`` after some seconds.
    ``limit`` is the number of bytes that may wait; above it ``pressure(True)`` is called, and ``pressure(False)`` once half of it
    is free again: the owner stops reading from its connections in between.
    """

    def __init__(
        self,
        engine: Engine,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
        *,
        limit: int = 64 * 2**20,
        pressure: Callable[[bool], None] | None = None,
    ) -> None:
        self._engine = engine
        self._call_soon = call_soon
        self._call_later = call_later
        self._limit = limit
        self._pressure = pressure
        self._waiting: list[Operation] = []
        self._group: Sequence[Operation] = ()
        self._bytes = 0
        self._full = False
        self._scheduled = False
        self._urgent = False
        self._patient = False
        self._idle: list[Callable[[], None]] = []
        self._is_answering = False
        self._afterwards: list[Callable[[], None]] = []
        self.groups = 0
        """How many were handed to the engine."""
        self.jobs = 0
        """How many jobs they brought: submitted, recorded as running, settled."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._waiting and not self._group

    @property
    def waiting(self) -> Sequence[Operation]:
        """The operations of later groups than the one that is under way, or is being answered."""
        return self._waiting

    @property
    def bytes(self) -> int:
        """Bytes held by the operations that wait or are under way."""
        return self._bytes

    def put(self, operation: Operation) -> None:
        """Add an operation to the next group, which is committed soon if the operation is urgent."""
        self._waiting.append(operation)
        self.grown(operation.size)
        if operation.urgent:
            self.hurry()
        elif not self._patient:
            self._patient = True
            self._call_later(PATIENCE, self._lose_patience)

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
        if self._group or not self._waiting:
            return
        waiting = self._waiting
        rows = 0
        for end, operation in enumerate(waiting, 1):  # noqa: B007 - the count outlives the loop
            operation.open = False
            rows += operation.rows
            if operation.brings_jobs:
                self.jobs += operation.rows
            if rows >= GROUP_ROWS:
                break
        self._group = waiting[:end]
        self._waiting = waiting[end:]
        self._urgent = bool(self._waiting)
        self.groups += 1
        self._engine.commit(self._group, self._committed)

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
    def _answer(group: Sequence[Operation], outcomes: Sequence[Any] | StoreError) -> None:
        if isinstance(outcomes, StoreError):
            for operation in group:
                operation.failed(outcomes)
            return
        for operation, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, StoreError):
                operation.failed(outcome)
            elif outcome is not DEFERRED:
                operation.done(outcome)

    def _committed(self, outcomes: Sequence[Any] | StoreError) -> None:
        group, self._group = self._group, ()
        for operation in group:
            self._bytes -= operation.size
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
        if self._waiting:
            if self._urgent:
                self.hurry()
        elif self.idle and self._idle:
            then, self._idle = self._idle, []
            for function in then:
                function()
