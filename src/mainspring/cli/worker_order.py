"""The order of a supervisor to a worker process, and the tasks of an App that it chooses.

This module loads nothing of the worker, which the supervisor does not need.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.cli.display import did_you_mean
from mainspring.client.sockets import TlsFiles
from mainspring.errors import SettingsError
from mainspring.server.log_writer import LogSettings
from mainspring.worker.processes import python
from mainspring.worker.settings import WAITING_PLACES, WORKFLOW_CACHE

if TYPE_CHECKING:
    from collections.abc import Sequence


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The work and settings of one worker process."""

    app: str
    """``FILE.py[:name]`` or ``module[:name]``."""

    servers: list[str]
    """``HOST:PORT`` or ``unix:PATH``."""

    concurrency: int
    waiting_places: int = WAITING_PLACES
    grace: float
    """Seconds for running jobs at a stop."""

    frozen_after: float = 0.0
    """Seconds for which the event loop may be blocked; 0: any time."""

    namespace: str = ""
    """The namespace of an App that names none itself; empty: that of the environment."""

    functions: tuple[str, ...] = ()
    """Patterns of the tasks to run; empty: all tasks of the App."""

    unwanted: tuple[str, ...] = ()
    """Patterns of the tasks not to run."""

    no_workflows: bool = False
    """Whether to leave out all workflows."""

    strict: bool = False
    """Whether to refuse workflows with code that a replay cannot repeat."""

    max_jobs: int | None = None
    max_memory: int | None = None
    """Bytes."""

    workflow_cache: int = WORKFLOW_CACHE
    """Bytes of the runs of workflows in memory."""

    check_replay: bool = False
    """Whether to replay runs of workflows from their start for each decision."""

    tls: TlsFiles = TlsFiles()
    """Absolute paths."""

    log: LogSettings = LogSettings()
    """The process reopens the log file when it was moved away: only the supervisor receives signals."""

    parent: int = 0
    """The supervisor's process id."""

    named: bool = True
    """Whether the process names itself in error messages."""

    counters: int = msgspec.field(default=-1, name="slate")
    """The file descriptor of its `mainspring.worker.supervisor`."""

    left_out: dict[str, float] = {}
    """Functions whose jobs it takes later, each with the monotonic time at which it begins."""

    dies_with_parent: bool = False
    """Whether the process is killed when its parent ends; otherwise it stops gracefully then."""

    def command(self) -> list[str]:
        """Return the command of the process."""
        order = msgspec.json.encode(self, enc_hook=str).decode()  # paths
        return python("-m", "mainspring.cli.worker_process", order)


LISTED_TASKS: Final = 20
"""The most tasks that an error names."""


def select_tasks(names: Sequence[str], wanted: Sequence[str], unwanted: Sequence[str]) -> list[str]:
    """Return the names that match a wanted pattern (without wanted patterns: all) and no unwanted pattern.

    The patterns are shell patterns and case-sensitive. Raises SettingsError for a pattern that matches no name, and if no name
    remains.
    """
    for option, patterns in (("--functions", wanted), ("--not", unwanted)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise SettingsError(f"{option} {pattern!r} matches no task of the App{_near(pattern, names)}")
    chosen = [
        name
        for name in names
        if (not wanted or any(fnmatchcase(name, pattern) for pattern in wanted))
        and not any(fnmatchcase(name, pattern) for pattern in unwanted)
    ]
    if names and not chosen:
        raise SettingsError(f"--functions and --not leave no task of the App: {_listed(names)}")
    return chosen


def _near(pattern: str, names: Sequence[str]) -> str:
    # A lower cutoff: a misspelt pattern is less similar to a name than a misspelt name is.
    return f", which has {_listed(names)}{did_you_mean(pattern, names, most=3, cutoff=0.5)}"


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - LISTED_TASKS} more" if len(names) > LISTED_TASKS else ""
    return ", ".join(sorted(names)[:LISTED_TASKS]) + more
