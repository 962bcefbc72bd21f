"""The stores of simulated nodes with workflows: a group is executed when the node is notified of it, or at a crash."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.memory.tables import Tables
from mainspring.engines.memory.workflows import MemoryWorkflowSlice
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.workflows import SqliteWorkflowSlice
from mainspring.errors import StoreError, StoreFullError
from mainspring.workflows.reading import RunCache
from tests.postgres.server import memory_directory
from tests.simulation.store import SlowStore, refuse_separate_answer
from tests.simulation.stores import INLINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mainspring.storage.engine import Answer, Answered, Budget, Committed, Engine, Operation, Query
    from mainspring.workflows.observers import RunObserver

    Make = Callable[[RunObserver, int], Engine]
    """Returns the engine of a life of the node, with an observer of its runs and the size of their cache."""


class FlowStore(SlowStore):
    """A group begins and ends when ``finish`` is called: the notes of its slices come together with its outcome."""

    fails = False
    """Whether the next group fails at its commit, after all of its statements; a store in memory fails before them."""

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        del answer
        assert self._group is None, "one group at a time"
        self._group, self._committed, self._outcomes = group, committed, None

    def finish(self) -> None:
        group, committed = self._group, self._committed
        if self.full:
            super().finish()
            return
        assert group is not None
        assert committed is not None
        self._group = None
        fails, self.fails = self.fails, False
        if not fails:
            self._execute_for(group, committed)
        elif isinstance(self.engine, SqliteEngine):
            with patch.object(self.engine, "_lock", _Refusing()):
                self._execute_for(group, committed)
        else:
            self.failed = self._clock.monotonic()
            committed(_full())

    def _execute_for(self, group: Sequence[Operation], committed: Committed) -> None:
        def ended(outcomes: Sequence[Any] | StoreError) -> None:
            if isinstance(outcomes, StoreError):
                self.failed = self._clock.monotonic()
                assert isinstance(outcomes, StoreFullError), f"the engine refuses a group: {outcomes!r}"
            committed(outcomes)

        self.engine.commit(group, ended, refuse_separate_answer)

    def look(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query of the simulation itself, even if the node's reads fail."""
        away, self.away = self.away, False
        self.read(query, budget, answered)
        self.away = away

    def crash(self) -> None:
        """Commit the group in progress, or not; nobody is notified."""
        if self._group is not None and self._chance.random() < 0.5 and not self.full:
            self.engine.commit(self._group, lambda _: None, refuse_separate_answer)


class _Refusing:
    """In the place of the lock of a file, which is checked directly before a commit: one commit fails."""

    def __init__(self) -> None:
        self._refused = False

    def check(self) -> None:
        if not self._refused:
            self._refused = True
            raise _full()


def _full() -> StoreFullError:
    return StoreFullError("the simulated disk is full")


@contextmanager
def memory() -> Iterator[Make]:
    """Yield a function that returns engines with one content, as if it were durable."""
    tables, terms = Tables(), dict[int, str]()

    def make(observer: RunObserver, cache: int) -> Engine:
        slice_ = MemoryWorkflowSlice(cache=RunCache(cache))
        slice_.subscribe(observer)
        engine = MemoryEngine([slice_])
        engine._tables, engine._terms = tables, terms
        return engine

    yield make


@contextmanager
def sqlite() -> Iterator[Make]:
    """Yield a function that returns engines on one file."""
    engines: list[SqliteEngine] = []

    def make(observer: RunObserver, cache: int) -> Engine:
        slice_ = SqliteWorkflowSlice(cache=RunCache(cache))
        slice_.subscribe(observer)
        engines.append(
            SqliteEngine(Path(directory) / "jobs.db", synchronous="normal", thread_rows=INLINE, slices=[slice_])
        )
        return engines[-1]

    with tempfile.TemporaryDirectory(prefix="mainspring-", dir=memory_directory()) as directory:
        try:
            yield make
        finally:
            for engine in engines:
                engine._close()


STORES: dict[str, Any] = {"memory": memory, "sqlite": sqlite}
