"""A node and workers of workflows, each a process that can be killed and started again: see `workflow_host`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
LOG_TAIL = 4000
STOP_TIMEOUT = 20.0
"""Seconds in which a stopped worker ends."""


class WorkflowProcesses:
    """The processes of some roles in one directory. A context manager: the processes end with it."""

    def __init__(self, directory: Path, roles: Sequence[str], plant: str | None = None) -> None:
        """``plant`` names a defect to plant in all of them."""
        self.directory = directory
        self.effects = directory / "effects"
        """The file of executions."""
        self._plant = plant
        self.pids = dict.fromkeys(roles, 0)

    def __enter__(self) -> Self:
        self._host = subprocess.Popen(
            [sys.executable, "-m", "tests.system.workflow_host"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for role in self.pids:
            self.start(role)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        self._host.stdin.close()
        self._host.stdout.close()
        self._host.wait()

    @property
    def address(self) -> str:
        return f"unix:{self.directory / 's'}"

    def start(self, role: str, **order: Any) -> None:
        """Start a process; it may not be ready yet."""
        order = {"kill_at": 0, "when": "after", "journal": None} | order
        order |= {"role": role, "directory": str(self.directory), "plant": self._plant}
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        self._host.stdin.write(json.dumps(order) + "\n")
        self._host.stdin.flush()
        self.pids[role] = int(self._host.stdout.readline())

    def kill(self, *roles: str) -> None:
        """Kill processes with SIGKILL, and wait for their ends."""
        for role in roles:
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
        return Path(f"/proc/{self.pids[role]}").exists()

    def log(self) -> str:
        return "".join(path.read_text()[-LOG_TAIL:] for path in self.directory.glob("*.log"))
