"""Preparations of a reader's machine for a page: ``<!-- test: with NAME -->``. Their processes end with the reader."""

from __future__ import annotations

import getpass
import os
import shutil
import sqlite3
import time
from typing import TYPE_CHECKING, Final

from tests.conftest import leave_out
from tests.postgres import keeper
from tests.postgres.server import NotInstalledError, PostgresServer, memory_directory, programs
from tests.zookeeper import server as zookeeper_server

from .pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from .running import Reader

ZOOKEEPER_PROGRAMS: Final = "/usr/share/zookeeper/bin"
"""The path of the programs in Debian's package."""


def gearmand_queue(reader: Reader) -> None:
    """Create a queue file as gearmand 1.1.20 writes it with ``-q libsqlite3``."""
    with sqlite3.connect(reader.directory / "queue.db") as connection:
        connection.execute(
            "CREATE TABLE gearman_queue (unique_key TEXT, function_name TEXT, priority INTEGER, data BLOB,"
            " when_to_run INTEGER, PRIMARY KEY (unique_key, function_name))"
        )
        connection.executemany(
            "INSERT INTO gearman_queue VALUES (?, ?, ?, ?, ?)",
            [
                ("cat-100", "resize", 1, b"cat.png 100", 0),
                ("cat-200", "resize", 0, b"cat.png 200", 0),
                ("", "report", 2, b"", int(time.time()) + 86_400),
            ],
        )
    connection.close()


def javascript(reader: Reader) -> None:
    """Copy the example into the reader's directory."""
    shutil.copy(ROOT / "examples" / "javascript" / "mainspring.js", reader.directory)


def directory(example: str) -> Callable[[Reader], object]:
    """Return what copies the files of an example into the reader's directory."""
    return lambda reader: shutil.copytree(ROOT / "examples" / example, reader.directory, dirs_exist_ok=True)


def from_celery(reader: Reader) -> None:
    """Copy the example into the reader's directory."""
    shutil.copytree(ROOT / "examples" / "from-celery", reader.directory, dirs_exist_ok=True)


def program(example: str) -> Callable[[Reader], object]:
    """Return what copies the program of an example into the reader's directory."""
    return lambda reader: shutil.copy(ROOT / "examples" / example / "app.py", reader.directory)


DEBIAN_PG_HBA: Final = """
local all postgres peer{map}
local all all peer
host all all 127.0.0.1/32 scram-sha-256
host all all ::1/128 scram-sha-256
"""
"""The access rules of a new PostgreSQL on Debian."""


def postgresql(reader: Reader) -> None:
    """Run PostgreSQL on port 5432 with Debian's access rules, and its programs in PATH.

    ``su - postgres -c COMMAND`` connects to this server instead of Debian's own. If the reader is not root, it cannot become
    another user; then its own user has the superuser's access.
    """
    try:
        directory = programs()
    except NotInstalledError:
        leave_out("PostgreSQL")
    server = reader.until_the_end.enter_context(
        PostgresServer(parent=memory_directory(), max_connections=50, unix_socket_directories=".")
    )
    is_root = os.getuid() == 0
    data = keeper.data(server.directory)
    (data / "pg_hba.conf").write_text(DEBIAN_PG_HBA.format(map="" if is_root else " map=reader"))
    (data / "pg_ident.conf").write_text(f"reader {getpass.getuser()} postgres\n")
    server.restart()
    reader.ports["5432"] = str(server.port)
    commands = reader.directory / ".commands"
    commands.mkdir()
    here = f"export PGHOST={data} PGPORT={server.port} PGUSER=postgres PATH={directory}:$PATH"
    become = 'exec /usr/bin/su "$1" "$2" "$3" "$here; $4"' if is_root else 'exec sh -c "$here; $4"'
    (commands / "su").write_text(f"#!/bin/sh\nhere='{here}'\n{become}\n")
    (commands / "su").chmod(0o755)
    reader.environment["PATH"] = os.pathsep.join([str(commands), reader.environment["PATH"], str(directory)])
    for name in [name for name in reader.environment if name.startswith("PG")]:
        del reader.environment[name]


def zookeeper(reader: Reader) -> None:
    """Run a ZooKeeper server on port 2181, with its programs in PATH."""
    try:
        ensemble = zookeeper_server.Ensemble(parent=memory_directory())
    except zookeeper_server.NotInstalledError:
        leave_out("ZooKeeper")
    reader.until_the_end.enter_context(ensemble)
    reader.ports["2181"] = str(ensemble.ports[0])
    reader.environment["PATH"] += f"{os.pathsep}{ZOOKEEPER_PROGRAMS}"


PREPARATIONS: Final[dict[str, Callable[[Reader], object]]] = {
    "approval": directory("approval"),
    "encryption": directory("encryption"),
    "from_celery": from_celery,
    "gearmand_queue": gearmand_queue,
    "javascript": javascript,
    "media": program("media"),
    "order": program("order"),
    "polling": directory("polling"),
    "postgresql": postgresql,
    "printer": directory("printer"),
    "report": program("report"),
    "shared_cluster": directory("shared_cluster"),
    "shop": directory("shop"),
    "zookeeper": zookeeper,
}
