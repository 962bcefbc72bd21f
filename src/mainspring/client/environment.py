"""The variables of the environment that connections of clients and workers use, and the directory of relative paths in them.

Programs may set the variables until they first connect. A worker keeps them at its start (`keep`), before any task runs: a task
may change the environment or the working directory of its process, and all others still find their servers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVER_VARIABLE: Final = "MAINSPRING_SERVER"
TOKEN_VARIABLE: Final = "MAINSPRING_TOKEN"  # noqa: S105 - the name of a variable
NAMESPACE_VARIABLE: Final = "MAINSPRING_NAMESPACE"
REQUEST_TIMEOUT_VARIABLE: Final = "MAINSPRING_REQUEST_TIMEOUT"
TLS_VARIABLES_OF_FILES: Final = ("MAINSPRING_TLS_CA", "MAINSPRING_TLS_CERT", "MAINSPRING_TLS_KEY")
VARIABLES: Final = (
    SERVER_VARIABLE,
    TOKEN_VARIABLE,
    NAMESPACE_VARIABLE,
    REQUEST_TIMEOUT_VARIABLE,
    *TLS_VARIABLES_OF_FILES,
)


class Start(NamedTuple):
    """The environment of a process at one time."""

    variables: Mapping[str, str]
    """Those of `VARIABLES` that are set and not empty."""
    directory: Path | None
    """The working directory; None: it was removed."""


_kept: list[Start] = []  # at most one: a process has one environment


def now() -> Start:
    """Return the present variables and working directory."""
    try:
        directory = Path.cwd()
    except FileNotFoundError:
        directory = None
    return Start({name: value for name in VARIABLES if (value := os.environ.get(name))}, directory)


def keep(earlier: Start) -> None:
    """Use the present variables from now on, and those of ``earlier`` that code has removed since; and its directory."""
    _kept[:] = [Start({**earlier.variables, **now().variables}, earlier.directory)]


def kept() -> Start | None:
    """Return what this process has kept; None: nothing."""
    return _kept[0] if _kept else None


def variable(name: str) -> str | None:
    """Return a kept variable or, if none are kept, that of the present environment; None if it is missing or empty."""
    start = kept()
    return (os.environ.get(name) or None) if start is None else start.variables.get(name)


def directory() -> Path | None:
    """Return the kept directory or, if none is kept, the present working directory; None: it was removed."""
    return (kept() or now()).directory
