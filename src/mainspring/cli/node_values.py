"""The values of a node's options: how text is read, and how the help shows defaults."""

from __future__ import annotations

import re

from mainspring.errors import SettingsError
from mainspring.nodes.strategies import strategy
from mainspring.server.addresses import Address, parse_address
from mainspring.server.log_settings import LOG_LEVELS
from mainspring.server.settings import MIB


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
