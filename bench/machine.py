"""The machine and the versions of a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from servers import GEARMAND

import mainspring
import postgres

PACKAGE = Path(mainspring.__file__).parent
"""The measured package: ``PYTHONPATH`` may select another one than the checkout's."""


def describe(directory: Path) -> dict[str, Any]:
    """Describe the machine; `directory` will hold the stores, so its file system and fsync matter."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") / 2**30, 1),
        "system": f"{_distribution()}, Linux {platform.release()}",
        "filesystem": _output_of("stat", "-f", "-c", "%T", str(directory)),
        "fsync_p50_us": round(fsync_seconds(directory) * 1e6),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "sqlite": {"python": sqlite3.sqlite_version, "apsw": _version_of("apsw")},
        "postgresql": postgres.version() or "not installed",
        "gearmand": _output_of(GEARMAND, "--version").strip().split(" - ")[0],
        "mainspring_commit": _output_of("git", "-C", str(PACKAGE), "rev-parse", "--short", "HEAD"),
        "mainspring_core": ", ".join(compiled_modules()) or "pure Python",
    }


def compiled_modules() -> list[str]:
    """Return the compiled modules of the package; the others are pure Python."""
    return sorted(str(path.relative_to(PACKAGE)).split(".")[0] for path in PACKAGE.rglob("*.so"))


def fsync_seconds(directory: Path) -> float:
    """Return the median time to write and sync 4 KiB."""
    times = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(200):
            file.write(b"x" * 4096)
            file.flush()
            before = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - before)
    return statistics.median(times)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
        return "unknown"


def _version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
