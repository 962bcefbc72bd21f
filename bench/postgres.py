"""Contestants that store jobs in PostgreSQL. Each turn has a separate database server, on the same cores."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processor_time
import servers
from servers import Contestant, Server

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.postgres.server import NotInstalledError, PostgresError, PostgresServer, name_of, programs  # noqa: E402 - found by the path above

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "2GB", "wal_segment_mb": 16}
"""The same for all contestants; other settings, such as `fsync` and `synchronous_commit`, have PostgreSQL's defaults."""


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raise StartError for an error of the database server."""
    try:
        yield
    except PostgresError as error:
        raise servers.StartError(str(error)) from None


@dataclass(frozen=True)
class OnPostgres(Contestant):
    """A server whose command contains {database}, the URL of an empty database."""

    @contextlib.contextmanager
    def running(self, parent: Path) -> Iterator[Server]:
        """Run a database server and the server itself. Raises StartError."""
        with Database.running(parent) as database:
            command = self.command.replace("{database}", database.dsn)
            with ServerOnPostgres(Contestant(self.name, command), parent, database) as server:
                yield server


@dataclass(frozen=True)
class DatabaseAlone(Contestant):
    """A contestant that needs a database and no server: the scenario gets a `Database`."""

    command: str = field(default="postgres")

    def running(self, parent: Path) -> contextlib.AbstractContextManager[Database]:
        """Run a database server. Raises StartError."""
        return Database.running(parent)


class Database:
    """A database server with one database: an existing one, or a new and empty one."""

    def __init__(self, server: PostgresServer, dsn: str = "") -> None:
        self.dsn = dsn or server.create_database()
        self.directory = server.directory
        self._server = server

    @classmethod
    @contextlib.contextmanager
    def running(cls, parent: Path) -> Iterator[Database]:
        """Run a database server, with its files in a new directory below `parent`. Raises StartError."""
        with explained(), PostgresServer(parent=parent, **SETTINGS) as server:
            yield cls(server)

    def sql(self, statement: str) -> list[list[str]]:
        """Execute a statement, and return its rows with all values as text. Raises StartError."""
        with explained():
            lines = self._server.sql(statement, name_of(self.dsn)).splitlines()
        return [line.split("|") for line in lines]

    def set(self, **settings: str) -> None:
        """Change settings that need no restart; sessions apply them a moment later."""
        self._server.set(**settings)

    def log(self) -> str:
        """Return the server's log."""
        return self._server.log()

    @property
    def pid(self) -> int:
        """Return the process of the postmaster."""
        return self._server.pid

    def cpu_seconds(self) -> float:
        """Return the processor time of the postmaster and all its children, including ended ones."""
        return processor_time.seconds(self.pid)


class ServerOnPostgres(Server):
    """A running server and its database."""

    def __init__(self, contestant: Contestant, parent: Path, database: Database) -> None:
        super().__init__(contestant, parent)
        self.database = database


def mainspring(template: str | None = None) -> OnPostgres:
    """Return Mainspring on PostgreSQL; a template with {store} replaces the command."""
    return OnPostgres(
        "mainspring postgresql", (template or servers.MAINSPRING_COMMAND).replace("{store}", "{database}")
    )


GEARMAND_POSTGRES = OnPostgres(
    "gearmand postgresql", f"{servers.GEARMAND_COMMAND} -q Postgres --libpq-conninfo={{database}}"
)


def version() -> str | None:
    """Return PostgreSQL's version; None if it is not installed."""
    with contextlib.suppress(NotInstalledError):
        command: list[Any] = [programs() / "postgres", "--version"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[2]
    return None
