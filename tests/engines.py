"""Engines with the slices that a server registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.engines.memory.bulk import MemoryBulkSlice
from mainspring.engines.memory.conflicts import MemoryConflictSlice
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.memory.external import MemoryWorkSlice
from mainspring.engines.memory.schedules import MemoryScheduleSlice
from mainspring.engines.memory.subscriptions import MemorySubscriptionSlice
from mainspring.engines.memory.workflows import MemoryWorkflowSlice
from mainspring.engines.postgres.changing import PostgresBulkSlice
from mainspring.engines.postgres.conflicts import PostgresConflictSlice
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.postgres.external import PostgresWorkSlice
from mainspring.engines.postgres.schedules import PostgresScheduleSlice
from mainspring.engines.postgres.subscriptions import PostgresSubscriptionSlice
from mainspring.engines.postgres.workflows import PostgresWorkflowSlice
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.slice_transaction import (
    SqliteBulkSlice,
    SqliteConflictSlice,
    SqliteScheduleSlice,
    SqliteSubscriptionSlice,
    SqliteWorkSlice,
)
from mainspring.engines.sqlite.workflows import SqliteWorkflowSlice

if TYPE_CHECKING:
    from pathlib import Path


def no_time() -> float:
    """Return the same time always: a fire takes none, so that the sizes of operations do not depend on the machine."""
    return 0.0


def memory_engine() -> MemoryEngine:
    """Return a store in memory."""
    return MemoryEngine(
        [
            MemoryBulkSlice(),
            MemoryWorkflowSlice(),
            MemoryScheduleSlice(no_time),
            MemorySubscriptionSlice(),
            MemoryWorkSlice(),
            MemoryConflictSlice(),
        ]
    )


def sqlite_engine(path: Path, **options: Any) -> SqliteEngine:
    """Return a store in a file."""
    return SqliteEngine(
        path,
        slices=[
            SqliteBulkSlice(),
            SqliteWorkflowSlice(),
            SqliteScheduleSlice(no_time),
            SqliteSubscriptionSlice(),
            SqliteWorkSlice(),
            SqliteConflictSlice(),
        ],
        **options,
    )


def postgres_engine(url: str, **options: Any) -> PostgresEngine:
    """Return a store on a server."""
    slices: list[Any] = [
        PostgresBulkSlice(),
        PostgresWorkflowSlice(),
        PostgresScheduleSlice(no_time),
        PostgresSubscriptionSlice(),
        PostgresWorkSlice(),
        PostgresConflictSlice(),
    ]
    return PostgresEngine(url, slices=slices, **options)
