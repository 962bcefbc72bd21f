"""The rows of a PostgreSQL store that remain until all work is done: open runs, live jobs, signals and errands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.postgres.server import name_of

from mainspring.engines.postgres.engine import migrate_store

if TYPE_CHECKING:
    from tests.postgres.server import PostgresServer

LEFT = """
SELECT 'open runs', count(*) FROM mainspring.runs_open UNION ALL
SELECT 'live jobs', count(*) FROM mainspring.jobs UNION ALL
SELECT 'submitted jobs', count(*) FROM mainspring.inbox UNION ALL
SELECT 'early signals', count(*) FROM mainspring.early_signals UNION ALL
SELECT 'errands', count(*) FROM mainspring.errands
"""


def left(server: PostgresServer, database: str) -> str:
    """Return what is left in a database's store, with its numbers; empty if nothing is."""
    return ", ".join(row for row in server.sql(LEFT, database).splitlines() if not row.endswith("|0"))


def migrated(server: PostgresServer) -> str:
    """Create a database with a store that nobody has used; return its DSN."""
    url = server.create_database()
    asyncio.run(migrate_store(url))
    return url


def keep_schema(server: PostgresServer, name: str) -> None:
    """Create such a database with a name, of which others are copies."""
    server.sql(f'ALTER DATABASE "{name_of(migrated(server))}" RENAME TO {name}')
