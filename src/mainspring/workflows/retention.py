"""Retention: the deletion of closed runs with their histories and root jobs, in steps of a bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.workflows.model import Status
from mainspring.workflows.reading import Unread

if TYPE_CHECKING:
    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.store import ForgetRuns

EVENTS_PER_STEP: Final = 20_000
"""Events after which a transaction deletes no further run: each may have been a row of its own."""


async def forget(changes: RunChanges, operation: ForgetRuns) -> int:
    """Delete old closed runs; see `ForgetRuns`."""
    tables = changes.tables
    runs: list[int] = []
    roots: list[int] = []
    events = 0
    for row in await tables.closed_runs(operation.namespace, operation.before_us, operation.rows):
        if row.unread:  # its status decides on its root job
            changes.set_aside(Unread(row, row.unread))
            continue
        runs.append(row.id)
        if row.status is not Status.CONTINUED_AS_NEW:  # the root job stays as long as the last run of its chain
            roots.append(row.root)
        events += row.events
        if events >= EVENTS_PER_STEP:
            break
    if runs:
        await tables.forget(runs)
        await tables.forget_roots(roots)
    return len(runs)
