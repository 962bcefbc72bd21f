"""Procrastinate and SAQ on PostgreSQL, each with one worker process, in a separate environment of the benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine
from generator import LoadError
from measure import NotMeasured, Run, Scale

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres import Database

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
ENVIRONMENT = HERE / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STOP_SECONDS = 20.0


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
        prepare()
        self._program(database, "schema")
        with self._worker(database):
            fsync_us = round(machine.fsync_seconds(database.directory) * 1e6)
            database_cpu_before = database.cpu_seconds()
            figures: dict[str, Any] = json.loads(
                self._program(database, "client", str(scale.count(self.jobs, self.quick)))
            )
            figures |= {"fsync_p50_us": fsync_us, "database_cpu_s": database.cpu_seconds() - database_cpu_before}
        return Run(figures["rate"], figures)

    def _command(self, *arguments: str) -> list[str]:
        return [str(PYTHON), str(PEERS / f"{self.name}_peer.py"), *arguments]

    def _program(self, database: Database, *arguments: str) -> str:
        done = subprocess.run(
            self._command(*arguments), capture_output=True, text=True, check=False, env=_environment(database)
        )
        if done.returncode:
            raise LoadError(f"{self.name} {' '.join(arguments)}: {done.stderr.strip()[-500:]}")
        return done.stdout

    @contextlib.contextmanager
    def _worker(self, database: Database) -> Iterator[None]:
        with (database.directory / "worker.log").open("wb") as log:
            process = subprocess.Popen(self._command("worker"), stdout=log, stderr=log, env=_environment(database))
        try:
            yield
            if process.poll() is not None:
                raise LoadError(f"{self.name}'s worker has ended with {process.returncode}")
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def prepare() -> None:
    """Install the pinned versions if necessary. Raises NotMeasured if that fails."""
    requirements, installed = PEERS / "requirements.txt", ENVIRONMENT / "installed.txt"
    if installed.exists() and installed.read_bytes() == requirements.read_bytes():
        return
    print("  installing Procrastinate and SAQ into bench/.venv", file=sys.stderr, flush=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        install = [str(PYTHON), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)]
        subprocess.run(install, check=True, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotMeasured(f"bench/peers/requirements.txt could not be installed: {error}") from None
    shutil.copyfile(requirements, installed)


def _environment(database: Database) -> dict[str, str]:
    return {**os.environ, "BENCH_DSN": database.dsn}
