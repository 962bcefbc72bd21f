"""Runs on SQLite: their tables with the services of this engine, and their slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.sql.workflows import RunWrites, WorkflowSlice, find_alarms
from mainspring.engines.sqlite.jobs import find_job
from mainspring.engines.sqlite.slice_transaction import SqliteGround
from mainspring.engines.sqlite.statements import synchronous
from mainspring.workflows.store import FindAlarms
from mainspring.workflows.tables import SerialRuns

if TYPE_CHECKING:
    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.workflows.model import Limits
    from mainspring.workflows.reading import RunCache


async def _find_job(tx: Transaction, job_id: int, namespace: str) -> Job | None:
    return find_job(tx, job_id, namespace)


class SqliteRuns(SerialRuns, RunWrites, SqliteGround):
    """``workflows.tables.RunTables``."""

    def __init__(self, tx: Transaction) -> None:
        RunWrites.__init__(self, tx, _find_job)
        SqliteGround.__init__(self, tx)


class SqliteWorkflowSlice(WorkflowSlice):
    """The slice on this engine."""

    def __init__(self, *, cache: RunCache | None = None, limits: Limits | None = None) -> None:
        super().__init__(SqliteRuns, _find_job, {FindAlarms: synchronous(find_alarms)}, cache, limits)
