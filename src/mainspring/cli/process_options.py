"""The options of a node for its log and its process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import Annotated, Final, Literal

from cyclopts import Group, Parameter

from mainspring.cli.node_values import log_level
from mainspring.cli.options import FILE_OPTION, flag, option, reading
from mainspring.server.log_settings import LOG_LEVELS, LogSettings
from mainspring.server.settings import ProcessSettings

PROCESS_GROUP = Group("Log and process", sort_key=7)
LOG_LEVEL_HELP = f"The lowest level to log: {', '.join(LOG_LEVELS)}."


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """The options of ``serve`` and ``run`` for the log and the process."""

    log_level: Annotated[
        str,
        option(
            "--log-level",
            LOG_LEVEL_HELP,
            group=PROCESS_GROUP,
            converter=reading(log_level),
        ),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "text", "json"],
        option("--log-format", "auto: text on a terminal, JSON elsewhere.", group=PROCESS_GROUP),
    ] = "auto"
    log_file: Annotated[
        Path | None,
        option(
            "--log-file",
            "Log to this file instead of standard error; SIGHUP reopens it.",
            group=PROCESS_GROUP,
            **FILE_OPTION,
        ),
    ] = None
    pid_file: Annotated[
        Path | None,
        option("--pid-file", "A file for the process id while the node runs.", group=PROCESS_GROUP, **FILE_OPTION),
    ] = None
    daemon: Annotated[
        bool,
        flag("--daemon", "Run in the background. The command returns when the ports are open.", group=PROCESS_GROUP),
    ] = False
    user: Annotated[
        str | None, option("--user", "Switch to this user at the start.", group=PROCESS_GROUP, show_default=False)
    ] = None

    def log(self) -> LogSettings:
        """Return the settings of the log."""
        return LogSettings(level=self.log_level, format=self.log_format, file=self.log_file)

    def process(self, grace: float) -> ProcessSettings:
        """Return the settings of the process; ``grace``: the seconds of `StopOptions`."""
        return ProcessSettings(daemon=self.daemon, pid_file=self.pid_file, user=self.user, grace=grace)


DEFAULT_PROCESS: Final = ProcessOptions()
