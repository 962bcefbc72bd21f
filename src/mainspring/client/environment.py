"""The environment of connections of clients and workers: variables, the directory of relative paths, and servers.

Programs may set the variables until they first connect. A worker keeps them at its start (`keep`), before any task runs: a task
may change the environment or the working directory of its process, and all others still find their servers.

Addresses of servers are ``HOST:PORT`` or ``unix:PATH``, separated by commas. Clients try them in that order.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring import namespaces
from mainspring.errors import SettingsError

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


DEFAULT_PORT = 4730
DEFAULT_SERVER = f"127.0.0.1:{DEFAULT_PORT}"
_UNIX = "unix:"
SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103
"""The longest path of a Unix socket: a limit of operating systems."""

DESCRIPTORS: Final = Path("/proc/self/fd")
"""On Linux, sockets in deep directories have a short path below an open descriptor of their directory."""

_LONGEST_DESCRIPTOR: Final = len(f"{DESCRIPTORS}/1234567890/")


class Address(NamedTuple):
    """A server's host name or IP address and its port; or ``unix:`` and the path of a socket, with port 0."""

    host: str
    port: int

    @property
    def path(self) -> str | None:
        """The path of the Unix socket; None for a network address."""
        return self.host.removeprefix(_UNIX) if self.host.startswith(_UNIX) else None

    def __str__(self) -> str:
        if self.path is not None:
            return self.host
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, directory: Path | None = None) -> Address:
    """Parse ``HOST``, ``HOST:PORT``, ``:PORT``, ``[IPv6]:PORT`` or ``unix:PATH``; the default port is 4730.

    A relative path begins in ``directory``, by default in the working directory. Raises SettingsError for anything else.
    """
    text = text.strip()
    if "://" in text:
        scheme = text.partition("://")[0]
        raise SettingsError(
            f"{text!r} is a URL: write the Gearman port of a server as HOST:PORT, such as {DEFAULT_SERVER}, or unix:PATH, without"
            f" {scheme}://"
        )
    if text.startswith(_UNIX):
        if text == _UNIX:
            raise SettingsError("unix: is followed by the path of the socket, such as unix:/run/mainspring.sock")
        return Address(_UNIX + _absolute(text.removeprefix(_UNIX), directory), 0)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port_text = rest.removeprefix(":") if bracket and (not rest or rest.startswith(":")) else "?"
    elif text.count(":") > 1:
        host, port_text = text, "" if _is_ipv6(text) else "?"
    else:
        host, _, port_text = text.partition(":")
    if port_text == "":
        port_text = str(DEFAULT_PORT)
    if not port_text.isascii() or not port_text.isdigit() or not 0 < int(port_text) < 65536 or (not host and not text):
        raise SettingsError(
            f"{text!r} is not a server's address: write HOST:PORT, such as {DEFAULT_SERVER}, or unix:PATH"
        )
    return Address(host or "127.0.0.1", int(port_text))


def _absolute(path: str, directory: Path | None) -> str:
    """Return the path of a socket in a form that stays right when user code changes the working directory. Raises SettingsError.

    `mainspring.client.sockets` connects to sockets of longer paths, if their last part is short enough.
    """
    try:
        absolute = str((Path(path) if directory is None else directory / path).absolute())
    except FileNotFoundError:
        raise SettingsError(
            f"the path {path} is relative to a directory that was removed: give an absolute one"
        ) from None
    size, most = len(os.fsencode(absolute)), SOCKET_PATH_BYTES
    if size > most and DESCRIPTORS.is_dir():
        name = Path(absolute).name
        size, most = len(os.fsencode(name)), SOCKET_PATH_BYTES - _LONGEST_DESCRIPTOR
        if size > most:
            raise SettingsError(
                f"the name {name} of a socket has {size} bytes, and in a directory with a long path at most {most}: choose a"
                " shorter one"
            )
    if size > most:
        raise SettingsError(
            f"the path {absolute} has {size} bytes, and that of a socket has at most {most}: choose a shorter one"
        )
    return absolute


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def parse_servers(text: str, directory: Path | None = None) -> tuple[Address, ...]:
    """Parse one or more addresses separated by commas, as `parse_address` does.  Raises SettingsError."""
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise SettingsError(f"{text!r} names no server: write HOST:PORT, such as {DEFAULT_SERVER}")
    return tuple(dict.fromkeys(parse_address(part, directory) for part in parts))


def servers_or_default(text: str | None, directory: Path | None = None) -> tuple[Address, ...]:
    """Parse ``text``; if it is empty, MAINSPRING_SERVER; if that is empty, the default.  Raises SettingsError."""
    return parse_servers(text or variable(SERVER_VARIABLE) or DEFAULT_SERVER, directory)


def token_of_environment() -> str | None:
    """Return the token for servers that demand one; None if there is none."""
    return variable(TOKEN_VARIABLE)


def namespace_or_default(given: str | None) -> str:
    """Return a namespace; if it is None or empty, MAINSPRING_NAMESPACE; if that is empty, ``default``.

    Raises UsageError for an invalid one.
    """
    return namespaces.check(given or variable(NAMESPACE_VARIABLE) or namespaces.DEFAULT)
