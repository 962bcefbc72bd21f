"""The options of ``run``, ``serve`` and ``worker`` for the log, the process, its limits and its stop.

The limits are of what a node's peers can make it use, and of runs of workflows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from mainspring.cli.options import (
    DURATION_OPTION,
    SIZE_OPTION,
    OptionGroup,
    at_least,
    count,
    reading,
    within,
)
from mainspring.errors import SettingsError
from mainspring.nodes.strategies import strategy
from mainspring.quantities import format_duration, parse_duration, parse_size
from mainspring.server.log_writer import LOG_LEVELS, LogSettings
from mainspring.server.settings import (
    DAY,
    MIB,
    STOP_GRACE,
    Address,
    LimitSettings,
    ProcessSettings,
    WorkflowSettings,
    parse_address,
)


def http_address(text: str) -> Address | None:
    """Return an address for HTTP, which needs a port; None for ``none``. Raises SettingsError."""
    return None if text.strip().lower() == "none" else parse_address(text, default_port=None)


def host_names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas. Raises SettingsError for one that no host has."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise SettingsError(f"{name!r} is not the name of a host: write it without a port, as in jobs.example.com")
    return names


def path_prefix(text: str) -> str:
    """Return a path without a slash at its end. Raises SettingsError."""
    path = text.rstrip("/")
    if path and not re.fullmatch(r"(/[A-Za-z0-9_.~-]+)+", path):
        raise SettingsError(f"{text!r} is not a path: write it as in /mainspring")
    return path


def socket_mode(text: str) -> int:
    """Return the mode of a socket from octal digits: its owner may use it, and nothing is executable. Raises SettingsError."""
    if not re.fullmatch(r"0?6[0246][0246]", text):
        raise SettingsError(
            f"{text!r} is not the mode of a socket: write 0600 for its owner alone, 0660 also for its group, or 0666 for every"
            " user of this machine"
        )
    return int(text, 8)


def mode_text(mode: int | None) -> str:
    """Return the text of a mode."""
    return "0660 or less, by the umask" if mode is None else f"{mode:04o}"


def strategy_name(text: str) -> str:
    """Return a strategy's name from ``NAME`` or ``FILE.py:NAME``, and import that file. Raises SettingsError."""
    place, colon, name = text.rpartition(":")
    if colon:
        from mainspring.worker.selector import import_place  # noqa: PLC0415 - few nodes have a strategy of their own

        import_place(place)
    strategy(name)
    return name


def log_level(text: str) -> str:
    """Return a log level in lower case. Raises SettingsError."""
    if text.lower() not in LOG_LEVELS:
        raise SettingsError(f"{text!r} is not a log level: use one of {', '.join(LOG_LEVELS)}")
    return text.lower()


def addresses_text(addresses: tuple[Address, ...]) -> str:
    """Return addresses as the help shows them."""
    return ",".join(str(address) for address in addresses)


def size_text(size: int) -> str:
    """Return a size as the help shows it."""
    return f"{size // MIB}M" if size >= MIB else f"{size >> 10}K"


PROCESS_GROUP = OptionGroup("Log and process", sort_key=7)
LOG_LEVEL_HELP = f"The lowest level to log: {', '.join(LOG_LEVELS)}."


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """The options of ``serve`` and ``run`` for the log and the process."""

    log_level: Annotated[
        str,
        PROCESS_GROUP.option("--log-level", LOG_LEVEL_HELP, converter=reading(log_level)),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "text", "json"],
        PROCESS_GROUP.option("--log-format", "auto: text on a terminal, JSON elsewhere."),
    ] = "auto"
    log_file: Annotated[
        Path | None,
        PROCESS_GROUP.file("--log-file", "Log to this file instead of standard error; SIGHUP reopens it."),
    ] = None
    pid_file: Annotated[
        Path | None,
        PROCESS_GROUP.file("--pid-file", "A file for the process id while the node runs."),
    ] = None
    daemon: Annotated[
        bool,
        PROCESS_GROUP.flag("--daemon", "Run in the background. The command returns when the ports are open."),
    ] = False
    user: Annotated[
        str | None, PROCESS_GROUP.option("--user", "Switch to this user at the start.", show_default=False)
    ] = None

    def log(self) -> LogSettings:
        """Return the settings of the log."""
        return LogSettings(level=self.log_level, format=self.log_format, file=self.log_file)

    def process(self, grace: float) -> ProcessSettings:
        """Return the settings of the process; ``grace``: the seconds of `StopOptions`."""
        return ProcessSettings(daemon=self.daemon, pid_file=self.pid_file, user=self.user, grace=grace)


DEFAULT_PROCESS: Final = ProcessOptions()

STOP_GROUP = OptionGroup("Stop", sort_key=8)


def _default(_grace: float | None) -> str:
    return format_duration(STOP_GRACE)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class StopOptions:
    """How long a stop waits."""

    grace: Annotated[
        float | None,
        STOP_GROUP.option(
            "--grace",
            "How long a stop waits for running jobs before it releases them: puts them back into the queue.",
            show_default=_default,
            **DURATION_OPTION,
        ),
    ] = None

    @property
    def seconds(self) -> float:
        """The time for running jobs in seconds."""
        return STOP_GRACE if self.grace is None else self.grace


DEFAULT_STOP = StopOptions()


LIMITS_GROUP = OptionGroup("Limits", sort_key=6)

SMALLEST_PACKET = 8 << 10
"""Bytes, the most that the arguments before a payload may have: a smaller limit could refuse a job without a payload."""

SHORTEST_SILENCE = 1.0
"""Seconds. A working client may pause this long between two packets."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """The options of ``serve`` and ``run`` that limit packets, connections and functions."""

    max_packet: Annotated[
        int,
        LIMITS_GROUP.option(
            "--max-packet",
            "The largest packet.",
            show_default=size_text,
            **SIZE_OPTION
            | at_least(SMALLEST_PACKET, parse_size, size_text, "is too small for a job: give {least} or more"),
        ),
    ] = 64 * MIB
    max_connections: Annotated[
        int,
        LIMITS_GROUP.option(
            "--max-connections",
            "The most connections at a time; 0: as many as the limit of open files allows.",
            **at_least(
                0, count, str, "is negative: give 1 or more, or 0 for as many as the limit of open files allows"
            ),
        ),
    ] = 0
    max_functions: Annotated[
        int,
        LIMITS_GROUP.option(
            "--max-functions",
            "The most functions with jobs or workers; 0: any number.",
            **at_least(0, count, str, "is negative: give 1 or more, or 0 for any number"),
        ),
    ] = 100_000
    idle_timeout: Annotated[
        float | None,
        LIMITS_GROUP.option(
            "--idle-timeout",
            "Close connections of clients that have been silent for this time; by default never.",
            **DURATION_OPTION
            | at_least(
                SHORTEST_SILENCE,
                parse_duration,
                format_duration,
                "would disconnect working clients: give {least} or more, or leave it out for never",
            ),
        ),
    ] = None
    keepalive: Annotated[
        bool, LIMITS_GROUP.option("--keepalive", "Probe silent connections to detect peers that are gone.")
    ] = True

    def settings(self) -> LimitSettings:
        """Return the settings of a node."""
        return LimitSettings(
            max_packet=self.max_packet,
            max_connections=self.max_connections,
            max_functions=self.max_functions,
            idle_timeout=self.idle_timeout,
        )


DEFAULT_LIMITS: Final = LimitOptions()

WORKFLOWS_GROUP = OptionGroup("Workflows", sort_key=5)

SHORTEST_RUN = 1.0
LONGEST_RUN = 366 * DAY
"""Seconds; the limit of timers."""

SHORTEST_HISTORY = 2_000
"""Events. The last 1,000 take no signals."""
LONGEST_HISTORY = 1_000_000
"""Events. Workers keep all of them in memory, and read them again after a restart."""

MOST_OPEN = 10_000
"""The number of commands that one report of a worker may have."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimitOptions:
    """The options of ``serve`` and ``run`` for runs of workflows."""

    retention: Annotated[
        float,
        WORKFLOWS_GROUP.duration(
            "--workflow-retention", "How long closed runs of workflows are kept, with their histories."
        ),
    ] = 14 * DAY
    timeout: Annotated[
        float,
        WORKFLOWS_GROUP.option(
            "--workflow-timeout",
            "The longest time that a run may last. Runs without a time-out of their own get this one.",
            show_default=format_duration,
            **DURATION_OPTION
            | within(
                SHORTEST_RUN,
                LONGEST_RUN,
                parse_duration,
                format_duration,
                "is no limit for runs: give {least} to {most}",
            ),
        ),
    ] = LONGEST_RUN
    events: Annotated[
        int,
        WORKFLOWS_GROUP.option(
            "--workflow-events",
            "The most events in the history of a run. At this limit the run is terminated.",
            **within(
                SHORTEST_HISTORY, LONGEST_HISTORY, count, str, "is no limit for histories: give {least} to {most}"
            ),
        ),
    ] = 25_000
    open: Annotated[
        int,
        WORKFLOWS_GROUP.option(
            "--workflow-open",
            "The most activities that a run may have open at a time, the most timers, and the most children.",
            **within(1, MOST_OPEN, count, str, "is no limit for open activities: give {least} to {most}"),
        ),
    ] = 1_000

    def settings(self) -> WorkflowSettings:
        """Return the settings of a node."""
        return WorkflowSettings(self.retention, self.timeout, self.events, self.open)


DEFAULT_RUN_LIMITS = RunLimitOptions()
