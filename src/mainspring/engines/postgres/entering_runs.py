"""Runs that enter a PostgreSQL store from the file of a SQLite store (``engines.sql.moved_runs``).

One transaction writes all of them, with the terms of the other store as ended ones. So handles keep their nodes, the ids of later
terms are higher, and a node recovers the held jobs as those of a node that has died. No node may have used the store before: its
terms would have the numbers of the others. The transaction leaves the number of the move, by which a later call finds it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.postgres import connections, migrate, partitions
from mainspring.engines.postgres.transaction import (
    JOBS_SQL,
    SQL,
    Functions,
    key_column,
    load_statements,
    stored_options,
)
from mainspring.engines.sql.moved_runs import COLUMNS
from mainspring.errors import StoreError
from mainspring.jobs import rules
from mainspring.jobs.model import counted_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from asyncpg import Connection, Record

    from mainspring.engines.sql.moved_runs import LeavingRuns, MovedJob

_SQL: Final = load_statements("entering_runs.sql")
_NO_LIMITS: Final = (
    "SET LOCAL lock_timeout = '30s'; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"
)
_JOB_COLUMNS: Final = (
    "id", "place", "created_us", "term", "due_us", "expires_us", "started_us", "function", "attempt", "suspects",
    "input_size", "state", "priority", "slot", "keep", "uniq", "options", "error", "payload", "key", "attempts", "stopping",
)  # fmt: skip


class EnteredStore:
    """A PostgreSQL store for the runs of another one."""

    def __init__(self, connection: Connection[Record], address: connections.Address, identity: bytes) -> None:
        self._connection = connection
        self._address = address
        self.identity = identity
        """The same for each connection to the store, and for no other store."""
        self.shown = address.shown
        """Its address, without a password."""

    @classmethod
    async def connect(cls, url: str) -> EnteredStore:
        """Connect to a store. Raises SettingsError, and StoreError if it cannot be reached or has not the present schema."""
        address = connections.parse_address(url)
        connection = await connections.connect(address, "mainspring:move-runs")
        try:
            await migrate.prepare(connection, address.schema, apply=False)
            await partitions.maintain(connection)
            return cls(connection, address, await connection.fetchval(_SQL["identity"]))
        except BaseException as error:
            await connections.disconnect(connection)
            if isinstance(error, connections.ERRORS):
                raise connections.explain(error, address) from error
            raise

    async def close(self) -> None:
        """Disconnect."""
        await connections.disconnect(self._connection)

    async def check_unused(self) -> None:
        """Raise StoreError if a node has used the store."""
        if await self._connection.fetchval(_SQL["has_terms"]):
            raise StoreError(
                f"nodes have used {self.shown}: runs move only to a store before its first node starts, because both stores "
                "would have the same numbers of jobs; create an empty database, or name another schema with ?schema=…"
            )

    async def enter(self, move: bytes, runs: LeavingRuns) -> None:
        """Store the runs of a move, unless an earlier call has. Raises StoreError.

        If they certainly do not enter, it lets them stay. If the result of the commit is unknown, it does not.
        """
        try:
            await self._enter(move, runs)
        except connections.ERRORS as error:
            raise connections.explain(error, self._address) from error

    async def _enter(self, move: bytes, runs: LeavingRuns) -> None:
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            await self._connection.execute(_NO_LIMITS)
            await self._connection.execute(_SQL["lock_terms"])
            if await self._connection.fetchval(_SQL["entered"]) != move:
                try:
                    await self.check_unused()
                    await self._write(move, runs)
                except BaseException:
                    runs.stay()  # the server ends the transaction without the commit, which was never sent
                    raise
        except BaseException:
            if not self._connection.is_closed():
                await transaction.rollback()
            raise
        await transaction.commit()

    async def _write(self, move: bytes, runs: LeavingRuns) -> None:
        connection = self._connection
        terms = [*runs.terms()]
        await connection.execute(_SQL["terms"], [term for term, _ in terms], [node for _, node in terms])
        await connection.execute(_SQL["next_term"])
        await self._write_jobs(runs)
        now_us = await connection.fetchval(JOBS_SQL["now"])
        for table, columns in COLUMNS.items():
            rows: Iterable[tuple[Any, ...]] = runs.rows(table)
            if table == "history":
                rows, columns = ((*row, now_us) for row in rows), (*columns, "written_us")
            elif table == "early_signals":  # as `workflows.PostgresRuns.add_early` stores their names
                rows = ((*row[:4], row[4].replace("\0", "\\x00"), row[5]) for row in rows)
            await connection.copy_records_to_table(table, records=rows, columns=columns)
        await connection.execute(SQL["need_version"])  # nodes that know no runs are refused from now on
        await connection.execute(_SQL["need_version_of_pauses"])  # and those that would go on with paused ones
        if await connection.fetchval(_SQL["has_payloads"]):
            await connection.execute(SQL["need_payloads"])
        await connection.execute(_SQL["note_entered"], move)

    async def _write_jobs(self, runs: LeavingRuns) -> None:
        connection = self._connection
        functions = Functions()
        functions.use(connection)
        await functions.ensure({moved.job.function for moved in runs.jobs()})
        counts = Counter[tuple[int, int, int]]()
        first: int = await connection.fetchval(_SQL["places"])

        def rows() -> Iterator[tuple[Any, ...]]:
            for rank, moved in enumerate(runs.jobs()):
                function = functions.numbers[moved.job.function]
                counts[function, counted_as(moved.job.state), moved.job.priority] += 1
                yield _row(moved, function, first + rank)

        await connection.copy_records_to_table("jobs", records=rows(), columns=_JOB_COLUMNS)
        columns = [[key[at] for key in counts] for at in range(3)]
        await connection.execute(_SQL["add_counts"], *columns, list(counts.values()))


def _row(moved: MovedJob, function: int, place: int) -> tuple[Any, ...]:
    """Return the values of `_JOB_COLUMNS`; a time of 0 is NULL, as everywhere in this table."""
    job = moved.job
    return (
        job.id, place, job.created_us, job.term,
        job.due_us or (None if job.state else 0), job.expires_us or None, job.started_us or None,
        function, job.attempt, job.suspects, job.input_size, job.state, job.priority, rules.slot(job),
        moved.keep or None, job.unique or None, stored_options(job), job.error or None, job.payload,
        key_column(job.key) if job.key else None, moved.attempts, moved.stopping,
    )  # fmt: skip
