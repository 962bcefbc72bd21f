"""A node and workers of workflows, or workers alone, each a process that can be killed and started again: see `workflow_host`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests import commands

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
LOG_TAIL = 4000
STOP_TIMEOUT = 20.0
"""Seconds in which a stopped worker ends."""


class Host:
    """The process that forks the processes of all tests of this tester. It ends with the tester, and they end with it."""

    def __init__(self) -> None:
        self._process = commands.start(
            [sys.executable, "-m", "tests.system.workflow_host"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def start(self, order: dict[str, Any]) -> int:
        """Start a process, and return its pid."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@functools.cache
def host() -> Host:
    """Return the host of this tester; the first call starts it."""
    started = Host()
    atexit.register(started.close)
    return started


class WorkflowProcesses:
    """The processes of some roles in one directory. A context manager: the processes end with it."""

    def __init__(self, directory: Path, roles: Sequence[str], plant: str | None = None, servers: str = "") -> None:
        """``plant`` names a defect to plant in all of them. ``servers``: the addresses of other nodes, separated by commas."""
        self.directory = directory
        self.effects = directory / "effects"
        """The file of executions."""
        self._plant = plant
        self.address = servers or f"unix:{directory / 's'}"
        """The addresses of the nodes, separated by commas."""
        self.pids = dict.fromkeys(roles, 0)

    def __enter__(self) -> Self:
        for role in self.pids:
            self.start(role)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(*self.pids)

    def start(self, role: str, **order: Any) -> None:
        """Start a process; it may not be ready yet."""
        order = {"kill_at": 0, "when": "after", "journal": None} | order
        order |= {"role": role, "directory": str(self.directory), "plant": self._plant, "servers": self.address}
        self.pids[role] = host().start(order)

    def kill(self, *roles: str) -> None:
        """Kill processes with SIGKILL, and wait for their ends."""
        for role in filter(self.lives, roles):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[role], 9)
        for role in roles:
            while self.lives(role):
                time.sleep(0.002)

    def stop(self, role: str) -> None:
        """Stop a worker politely, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[role], signal.SIGTERM)
        end = time.monotonic() + STOP_TIMEOUT
        while self.lives(role):
            assert time.monotonic() < end, f"{role} does not end\n{self.log()}"
            time.sleep(0.002)

    def lives(self, role: str) -> bool:
        try:
            stat = Path(f"/proc/{self.pids[role]}/stat").read_text()
        except OSError:
            return False
        return int(stat.rpartition(")")[2].split()[1]) == host().pid  # and no later process with its number

    def log(self) -> str:
        return "".join(path.read_text()[-LOG_TAIL:] for path in self.directory.glob("*.log"))
