"""Builds the C programs, and runs the load generator."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servers import Server

HERE = Path(__file__).resolve().parent
BIN = HERE / "bin"
LOAD = BIN / "load"
NULL_SERVER = BIN / "nullserver"


class LoadError(Exception):
    """The generator received a wrong answer or made no progress; the message has the details."""


def build() -> None:
    """Compile programs that are missing or older than their sources. Raises CalledProcessError if the compiler fails."""
    BIN.mkdir(exist_ok=True)
    for program in (LOAD, NULL_SERVER):
        sources = [HERE / f"{program.name}.c", HERE / "wire.h"]
        if program.exists() and program.stat().st_mtime > max(source.stat().st_mtime for source in sources):
            continue
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(sources[0])]
        subprocess.run(command, check=True)


def load(server: Server, mode: str, **options: Any) -> dict[str, Any]:
    """Run the generator once, against a server or spread over the nodes of a fleet, and return its output as an object.

    Raises LoadError if the generator fails.
    """
    command = [str(LOAD), "--mode", mode]
    for port in server.ports:
        command += ["--port", str(port)]
    for pid in server.pids():
        command += ["--pid", str(pid)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadError(f"{done.stderr.strip()} ({' '.join(command[1:])})")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures
