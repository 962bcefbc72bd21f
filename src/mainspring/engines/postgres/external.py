"""The slice of work that runs elsewhere on PostgreSQL. Each operation locks its rows in the order of jobs and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.postgres.lists import look_up
from mainspring.engines.postgres.run_transaction import PostgresGround
from mainspring.engines.sql.external import WorkRows, WorkSlice
from mainspring.external.unit import WorkUnit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job


class PostgresWorks(PostgresGround, WorkRows):
    """The table of submissions."""

    async def look_up(self, ids: Iterable[int]) -> Mapping[int, Job]:
        return await look_up(self._tx, ids)


class PostgresWorkSlice(WorkSlice):
    """The slice of work that runs elsewhere."""

    def unit(self, tx: Transaction) -> WorkUnit:
        return WorkUnit(PostgresWorks(tx))
