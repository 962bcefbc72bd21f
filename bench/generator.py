"""The C programs: building them, and running the load generator."""

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
    """The generator saw a wrong answer, or no progress; its message says what."""


def build() -> None:
    """Compile what is missing or older than its sources. Raises CalledProcessError where the compiler refuses."""
    BIN.mkdir(exist_ok=True)
    for program in (LOAD, NULL_SERVER):
        sources = [HERE / f"{program.name}.c", HERE / "wire.h"]
        if program.exists() and program.stat().st_mtime > max(source.stat().st_mtime for source in sources):
            continue
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(sources[0])]
        subprocess.run(command, check=True)


def load(server: Server, mode: str, **options: Any) -> dict[str, Any]:
    """Run the generator once against a server, or spread over the nodes of a fleet, and return the object that it prints.

    Raises LoadError where it stops with an error.
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
