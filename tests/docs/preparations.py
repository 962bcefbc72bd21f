"""What is on a reader's machine before a page begins: ``<!-- test: with NAME -->``. What has to end, ends with the reader."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from typing import TYPE_CHECKING, Final

from tests.conftest import leave_out
from tests.postgres.server import NotInstalledError, PostgresServer, memory_directory, programs
from tests.zookeeper import server as zookeeper_server

from .pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from .running import Reader

ZOOKEEPER_PROGRAMS: Final = "/usr/share/zookeeper/bin"
"""Where Debian's package has them."""


def gearmand_queue(reader: Reader) -> None:
    """Make a file as gearmand 1.1.20 writes it with ``-q libsqlite3``."""
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
    """Put the example beside what uses it."""
    shutil.copy(ROOT / "examples" / "javascript" / "mainspring.js", reader.directory)


def postgresql(reader: Reader) -> None:
    """Run PostgreSQL on port 5432, where the reader is its superuser, with its programs in PATH."""
    try:
        directory = programs()
    except NotInstalledError:
        leave_out("PostgreSQL")
    server = reader.until_the_end.enter_context(PostgresServer(parent=memory_directory(), max_connections=50))
    reader.ports["5432"] = str(server.port)
    path = os.pathsep.join([reader.environment["PATH"], str(directory)])
    reader.environment |= {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "postgres", "PATH": path}


def zookeeper(reader: Reader) -> None:
    """Run one ZooKeeper on port 2181, with its programs in PATH."""
    try:
        ensemble = zookeeper_server.Ensemble(parent=memory_directory())
    except zookeeper_server.NotInstalledError:
        leave_out("ZooKeeper")
    reader.until_the_end.enter_context(ensemble)
    reader.ports["2181"] = str(ensemble.ports[0])
    reader.environment["PATH"] += f"{os.pathsep}{ZOOKEEPER_PROGRAMS}"


PREPARATIONS: Final[dict[str, Callable[[Reader], None]]] = {
    "gearmand_queue": gearmand_queue,
    "javascript": javascript,
    "postgresql": postgresql,
    "zookeeper": zookeeper,
}
