"""Stores with many jobs, written directly into their tables: a node would take minutes.

    python bench/filled.py sqlite|postgres JOBS DIR      make one in DIR, where `run.py --jobs JOBS --filled DIR` finds it

Of a hundred consecutive jobs, 60 succeeded, 30 are pending, seven failed, one was cancelled, one expired, and one is scheduled.
Nine of ten hundreds are of the function ``f``, the others of ten others. The oldest 50 jobs are of ten rare functions. One job of
a hundred has the tag ``often``, and six jobs have ``seldom``. They were submitted in the last eight hours, which is less than
their retention.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import servers
from servers import Contestant, Server

import postgres
from postgres import SETTINGS, Database, OnPostgres, PostgresServer, ServerOnPostgres, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

STATEMENTS = Path(__file__).resolve().parent / "fill"
FIRST = 10**12 + 10_000
"""The first id: the first node of a store has the first term."""
SPAN_US = 8 * 3600 * 1_000_000
FRESH_SECONDS = 12 * 3600
"""The age up to which a kept store is used."""


@dataclass(frozen=True)
class Fill:
    """How many jobs stores get, and the directory that keeps filled stores for other turns; None: none does."""

    jobs: int
    directory: Path | None = None

    def contestant(self, empty: Contestant) -> FilledContestant:
        """Return the same server on a filled store."""
        kind = FilledPostgres if isinstance(empty, OnPostgres) else FilledSqlite
        return kind(empty.name, empty.command, self)

    def statements(self, store: str) -> str:
        """Return the statements that fill an empty store."""
        begin_us = int(time.time() * 1e6) - SPAN_US
        text = (STATEMENTS / f"{store}.sql").read_text()
        return text.format(jobs=self.jobs, first=FIRST, begin_us=begin_us, step_us=SPAN_US // self.jobs)


@dataclass(frozen=True)
class FilledContestant(Contestant):
    """A server that starts on a copy of a filled store."""

    fill: Fill

    @property
    def kind(self) -> str:
        raise NotImplementedError

    def make(self, store: Path, parent: Path) -> None:
        """Make a filled store at a path, with the help of servers in directories below `parent`."""
        raise NotImplementedError

    @contextmanager
    def store(self, parent: Path) -> Iterator[Path]:
        """Yield the path of a filled store, which must not be changed."""
        if self.fill.directory is None:
            with tempfile.TemporaryDirectory(prefix="filled-", dir=parent) as directory:
                self.make(Path(directory) / "store", parent)
                yield Path(directory) / "store"
            return
        kept = self.fill.directory / f"{self.kind}-{self.fill.jobs}"
        if not kept.exists() or time.time() - kept.stat().st_mtime > FRESH_SECONDS:
            shutil.rmtree(kept, ignore_errors=True)
            kept.unlink(missing_ok=True)
            self.fill.directory.mkdir(parents=True, exist_ok=True)
            new = kept.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            self.make(new, parent)
            new.rename(kept)
        yield kept


@dataclass(frozen=True)
class FilledSqlite(FilledContestant):
    """A server on a copy of a filled file."""

    kind = "sqlite"

    def make(self, store: Path, parent: Path) -> None:
        """Make the file."""
        with Server(Contestant(self.name, self.command), parent) as server:
            server.stop()
            file = server.directory / "jobs.db"
            connection = sqlite3.connect(file, isolation_level=None)
            connection.executescript(self.fill.statements("sqlite"))
            connection.close()
            file.rename(store)

    @contextmanager
    def running(self, parent: Path) -> Iterator[Server]:
        """Run the server. Raises StartError."""
        server = Server(self, parent)
        with self.store(parent) as store:
            shutil.copyfile(store, server.directory / "jobs.db")
        os.sync()  # or the disk would write the copy during the measurement
        with server:
            yield server


@dataclass(frozen=True)
class FilledPostgres(FilledContestant, OnPostgres):
    """A server and a database server on a copy of a filled data directory."""

    kind = "postgres"

    def make(self, store: Path, parent: Path) -> None:
        """Make the data directory."""
        with PostgresServer(parent=parent, **SETTINGS) as server:
            name = name_of(server.create_database())
            with Server(Contestant(self.name, self.command.replace("{database}", server.dsn(name))), parent):
                pass
            for statement in self.fill.statements("postgres").split(";\n"):
                server.sql(statement, f"{name}?options=-csearch_path%3Dmainspring")
            server.stop()
            (server.directory / "data").rename(store)

    @contextmanager
    def running(self, parent: Path) -> Iterator[Server]:
        """Run the server. Raises StartError."""
        with postgres.explained(), self.store(parent) as store, _Copy(store, parent) as server:
            database = Database(server, server.dsn("d1"))
            command = self.command.replace("{database}", database.dsn)
            with ServerOnPostgres(Contestant(self.name, command), parent, database) as node:
                yield node


class _Copy(PostgresServer):
    """A database server on a copy of a data directory."""

    def __init__(self, source: Path, parent: Path) -> None:
        super().__init__(parent=parent)
        self._source = source

    def _create(self) -> None:
        self._make_directory()
        subprocess.run(["cp", "-a", self._source, self.directory / "data"], check=True)
        os.sync()


def main() -> None:
    """Make a filled store."""
    kind, jobs, directory = sys.argv[1:]
    sqlite, _ = servers.mainspring()
    empty = postgres.mainspring() if kind == "postgres" else sqlite
    with Fill(int(jobs), Path(directory)).contestant(empty).store(Path(tempfile.gettempdir())) as store:
        print(store)


if __name__ == "__main__":
    main()
