"""DBOS and Restate, which run durable workflows with their steps recorded one by one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import processes
from measure import Run, Scale, Side
from peer_environment import PEERS, PYTHON, install_python, install_restate
from servers import START_SECONDS, Contestant, Server, StartError, free_port

from postgres import DatabaseAlone

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from postgres import Database


def sides(steps: int, clients: int) -> tuple[Side, ...]:
    """Return the peers, with workflows of this number of steps, started by this number of concurrent clients."""
    dbos = Dbos(steps, 100 if steps else 500, clients)
    restate = RestateCalls(steps, (100 if steps else 400) * (1 if clients == 1 else 6), clients)
    return (
        Side("DBOS on SQLite", SqliteFile("DBOS on SQLite", "in the client's process"), dbos),
        Side("DBOS on PostgreSQL", DatabaseAlone("DBOS on PostgreSQL"), dbos),
        Side("Restate", Restate("Restate", RESTATE_COMMAND), restate),
    )


class File:
    """The URL of an SQLite database that does not exist yet, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.dsn = f"sqlite:///{directory}/workflows.db"


@dataclass(frozen=True)
class SqliteFile(Contestant):
    """A contestant that needs a file and no server: the scenario gets a `File`."""

    @contextlib.contextmanager
    def running(self, parent: Path) -> Iterator[File]:  # type: ignore[override]
        directory = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
        try:
            yield File(directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True)
class Dbos:
    """A scenario: workflows per second of DBOS on the database."""

    steps: int
    runs: int
    clients: int

    def __call__(self, database: File | Database, scale: Scale) -> Run:
        install_python()
        numbers = (self.steps, scale.count(self.runs, 20), self.clients)
        command = [str(PYTHON), str(PEERS / "dbos_peer.py"), *map(str, numbers)]
        figures = processes.figures_of(command, {**os.environ, "BENCH_DSN": database.dsn})
        return Run(figures["rate"], figures)


RESTATE_COMMAND = (
    "env RESTATE_LISTEN_MODE=tcp RESTATE_BIND_IP=127.0.0.1 RESTATE_ADVERTISED_HOST=127.0.0.1 RESTATE_NODE_NAME=bench"
    " RESTATE_BIND_PORT={node} RESTATE_ADMIN__BIND_PORT={admin} RESTATE_INGRESS__BIND_PORT={port}"
    " RESTATE_DISABLE_TELEMETRY=true RESTATE_LOG_FILTER=error {program} --no-logo --base-dir {dir}/data"
)
"""Restate's own settings, except for addresses, the log and telemetry. {program}, {node} and {admin} are filled in first."""


@dataclass(frozen=True)
class Restate(Contestant):
    """Restate's server, with one process that runs the handlers."""

    @contextlib.contextmanager
    def running(self, parent: Path) -> Iterator[Server]:
        """Run both processes, and register the handlers. Raises NotMeasured and StartError."""
        install_python()
        values = {"program": install_restate(), "node": free_port(), "admin": free_port()}
        command = self.command
        for name, value in values.items():
            command = command.replace(f"{{{name}}}", str(value))
        with Server(Contestant(self.name, command), parent) as server:
            port = free_port()
            service = [str(PYTHON), str(PEERS / "restate_peer.py"), "service", str(port)]
            log = server.directory / "service.log"
            # SIGKILL: after SIGTERM the process waits until the server closes its connections.
            with processes.running(service, log, os.environ, signal.SIGKILL) as process:
                _register(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{values['admin']}", process)
                yield server


def _register(service: str, admin: str, process: subprocess.Popen[bytes]) -> None:
    """Register the handlers once both processes listen."""
    request = urllib.request.Request(
        f"{admin}/deployments", json.dumps({"uri": service}).encode(), {"Content-Type": "application/json"}
    )
    without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            without_proxy.open(request, timeout=10).close()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise StartError(f"Restate does not accept the handlers: {error}") from None
            time.sleep(0.05)
        else:
            return


@dataclass(frozen=True)
class RestateCalls:
    """A scenario: calls per second of a handler."""

    steps: int
    runs: int
    clients: int

    def __call__(self, server: Server, scale: Scale) -> Run:
        numbers = (server.port, self.steps, scale.count(self.runs, 20), self.clients)
        command = [str(PYTHON), str(PEERS / "restate_peer.py"), "client", *map(str, numbers)]
        figures = processes.figures_of(command, os.environ)
        return Run(figures["rate"], figures)
