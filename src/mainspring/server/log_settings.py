"""The settings of the log of a node or a worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - msgspec reads the annotations
from typing import Literal

LogFormat = Literal["auto", "text", "json"]
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The log's level, format and destination."""

    level: str = "info"
    """One of `LOG_LEVELS`."""

    format: LogFormat = "auto"
    """``text`` for people, ``json`` for programs; ``auto``: text on a terminal, JSON elsewhere."""

    file: Path | None = None
    """Reopened at SIGHUP; None: standard error."""

    tracebacks: bool = False
    """Workers log the tracebacks of failed attempts at any level, not only at ``debug``."""

    enabled: bool = True
    """False: nothing is logged."""

    syslog: bool = False
    """Write to the system's log instead of a file."""
