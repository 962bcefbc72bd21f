"""Moves the open runs of workflows from a SQLite file to a PostgreSQL store.

At any time at most one of the two stores has runs with which a node goes on, and at least one has each of them:

| step | the file | the store |
|---|---|---|
| | open to nodes, has the runs | has none |
| 1. the file is marked | no node opens it | has none |
| 2. the store commits | no node opens it | has the runs |
| 3. the runs are deleted in the file | open to nodes, has none | has the runs |

If the store refuses the runs before its commit was requested, the mark is taken off again. A call that finds a mark continues
with step 2, which does nothing if the store has the number of the move already.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

from mainspring.engines.sqlite.leaving_runs import LeavingFile, Mark
from mainspring.engines.sqlite.store_file import moving
from mainspring.server.engines import driver_for

if TYPE_CHECKING:
    from mainspring.server.settings import StoreSettings


class Moved(NamedTuple):
    """The numbers of what has moved."""

    runs: int
    """Open runs."""
    jobs: int
    """Live jobs: those of runs, and those that wait to begin as runs."""


async def move_runs(source: StoreSettings, target: StoreSettings) -> Moved:
    """Move the open runs of a SQLite file that no node has open to a PostgreSQL store that no node has used.

    It can be repeated after any failure. Raises StoreError, UsageError, and SettingsError if the driver is missing.
    """
    assert source.path is not None
    with driver_for(target):
        from mainspring.engines.postgres.entering_runs import EnteredStore  # noqa: PLC0415
    with contextlib.closing(LeavingFile(source.path)) as file:
        if file.is_empty and file.mark is None:
            return Moved(0, 0)
        store = await EnteredStore.connect(target.url)
        try:
            if file.mark is None:
                await store.check_unused()
                file.begin(Mark(os.urandom(16), store.identity, store.shown))
            assert file.mark is not None
            if file.mark.target != store.identity:
                raise moving(file.path, file.mark.shown)
            await store.enter(file.mark.id, file)
            file.remove()
        finally:
            await store.close()
        return Moved(file.runs, file.jobs_number)
