"""The store of a fleet, on PostgreSQL. It needs asyncpg: ``pip install 'mainspring[postgres]'``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.errors import StoreError

if TYPE_CHECKING:
    from mainspring.engines.postgres.engine import PostgresEngine


def postgres_engine(url: str, *, migrate: bool = True) -> PostgresEngine:
    """Return an engine for an address, not yet opened; raises SettingsError, and StoreError where asyncpg is missing."""
    try:
        from mainspring.engines.postgres.engine import PostgresEngine  # noqa: PLC0415 - what has no PostgreSQL needs no asyncpg
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise StoreError("a store on PostgreSQL needs asyncpg: pip install 'mainspring[postgres]'") from error
    return PostgresEngine(url, migrate=migrate)
