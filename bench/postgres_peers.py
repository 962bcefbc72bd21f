"""Procrastinate and SAQ on PostgreSQL, each with one worker process, in a separate environment of the benchmarks."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import machine
import processes
from generator import LoadError
from measure import Run, Scale
from peer_environment import PEERS, PYTHON, install_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres import Database


@dataclass(frozen=True)
class Peer:
    """A scenario: a no-op task end to end, by the program of this name.

    The figure is jobs per second from the first submit until the database shows the last job as done. A first job, before the
    clock starts, shows that the worker is running.
    """

    name: str
    jobs: int
    quick: int

    def __call__(self, database: Database, scale: Scale) -> Run:
        install_python()
        processes.output_of(self._command("schema"), _environment(database))
        with self._worker(database):
            fsync_us = round(machine.fsync_seconds(database.directory) * 1e6)
            database_cpu_before = database.cpu_seconds()
            client = self._command("client", str(scale.count(self.jobs, self.quick)))
            figures = processes.figures_of(client, _environment(database))
            figures |= {"fsync_p50_us": fsync_us, "database_cpu_s": database.cpu_seconds() - database_cpu_before}
        return Run(figures["rate"], figures)

    def _command(self, *arguments: str) -> list[str]:
        return [str(PYTHON), str(PEERS / f"{self.name}_peer.py"), *arguments]

    @contextlib.contextmanager
    def _worker(self, database: Database) -> Iterator[None]:
        log = database.directory / "worker.log"
        with processes.running(self._command("worker"), log, _environment(database)) as process:
            yield
            if process.poll() is not None:
                raise LoadError(f"{self.name}'s worker has ended with {process.returncode}")


def _environment(database: Database) -> dict[str, str]:
    return {**os.environ, "BENCH_DSN": database.dsn}
