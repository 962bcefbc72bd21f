"""Worker processes of one run of chaos, ``mainspring worker`` as users start it: they are killed, held and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from .fleet import ForkServer
    from .ledger import Ledger

APP = Path(__file__).with_name("accounted_workflows.py")
LONGEST_HOLD = 5.0
"""Seconds for which a process is held with SIGSTOP."""
LATE = 2.0
"""Seconds in which a process that was held reads what has happened meanwhile, on a busy machine."""
END_TIMEOUT = 20.0


class Crew:
    """Some workers of the same nodes. A context manager: they end with it."""

    def __init__(
        self,
        fork_server: ForkServer,
        directory: Path,
        servers: Sequence[str],
        functions: Sequence[str],
        number: int,
        *,
        app: str | Path = APP,
    ) -> None:
        """``functions`` are the tasks to run, all tasks and workflows of the App if there are none."""
        self._fork_server = fork_server
        self._directory = directory
        self.effects = directory / "effects"
        """The file of executions."""
        self._arguments = ["worker", str(app), "--server", ",".join(servers)]
        if functions:
            self._arguments += ["--functions", ",".join(functions)]
        self._workers = dict.fromkeys(range(number), 0)
        """The pids of the supervisors."""
        self._held: dict[int, tuple[float, float]] = {}
        """Held processes, with the begin and the end of that in monotonic time."""
        self._holds: list[tuple[int, float, float]] = []
        """All that were held, with the begin and the end in monotonic time."""

    def __enter__(self) -> Self:
        self.effects.touch()
        for number in self._workers:
            self._start(number)
        return self

    def __exit__(self, *_: object) -> None:
        self.calm()
        for pid in self._workers.values():
            _send(pid, signal.SIGKILL)
        end = time.monotonic() + END_TIMEOUT
        while any(Path(f"/proc/{pid}").exists() for pid in self._workers.values()):
            assert time.monotonic() < end, "a worker does not end"
            time.sleep(0.01)

    def _start(self, number: int) -> None:
        log = str(self._directory / f"worker-{number}.log")
        Path(log).touch()
        self._workers[number] = self._fork_server.start(
            {
                "arguments": self._arguments,
                "directory": str(self._directory),
                "stdout": log,
                "log": log,
                "plant": None,
                "environment": {"WORKFLOW_EFFECTS": str(self.effects)},
            }
        )

    def disturb(self, chance: random.Random, ledger: Ledger) -> None:
        """SIGKILL or SIGTERM a worker and start it again, SIGKILL its process of tasks, or hold this process for a while."""
        self._release(time.monotonic())
        number = chance.choice(sorted(self._workers))
        supervisor = self._workers[number]
        children = _children(supervisor)
        what = chance.choice(["kill", "stop", "kill process", "hold", "hold"])
        ledger.note(f"workers: {what}")
        match what:
            case "kill" | "stop":
                _send(supervisor, signal.SIGKILL if what == "kill" else signal.SIGTERM)
                self._start(number)
            case "kill process":
                for pid in children:
                    _send(pid, signal.SIGKILL)
            case _:
                for pid in children:
                    _send(pid, signal.SIGSTOP)
                    now = time.monotonic()
                    self._held[pid] = (now, now + chance.uniform(0, LONGEST_HOLD))

    def kill(self) -> None:
        """SIGKILL all workers and start them again."""
        for number, supervisor in self._workers.items():
            _send(supervisor, signal.SIGKILL)
            self._start(number)

    def was_held(self, pid: int, at: float) -> bool:
        """Return whether a process was held shortly before a monotonic time: it does not know what others did meanwhile."""
        return any(pid == held and begin <= at <= end + LATE for held, begin, end in self._holds)

    def calm(self) -> None:
        """End all disturbances."""
        self._release(float("inf"))

    def _release(self, now: float) -> None:
        for pid in [pid for pid, (_, until) in self._held.items() if until <= now]:
            begin, _ = self._held.pop(pid)
            _send(pid, signal.SIGCONT)
            self._holds.append((pid, begin, time.monotonic()))


def _children(pid: int) -> list[int]:
    """Return the processes that a process has started, if it has not ended."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
