"""The address of a store on ZooKeeper: ``zookeeper://user:password@host:port,host:port/chroot?acl=world``."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from mainspring.errors import SettingsError

CHROOT: Final = "/mainspring"
"""The default chroot: the node below which all others are."""
PORT: Final = 2181
WRITE: Final = "write zookeeper://host:2181,host:2181,host:2181/chroot"

_HOST: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<name>[^\[\]:@\s]+))(?::(?P<port>[0-9]{1,5}))?")
_ACCESS: Final = ("creator", "world")


class Address(NamedTuple):
    """The parsed address of a store."""

    hosts: tuple[tuple[str, int], ...]
    """The members of the ensemble to connect to: name or IP address, and port."""
    chroot: str
    """The node below which all others are; it begins with a slash. A single slash is the root of the ensemble."""
    user: str | None
    password: str
    is_open: bool
    """Whether all clients may read and change the nodes; otherwise only those with the same credentials."""
    shown: str
    """The address for messages, without the password."""


def parse(url: str) -> Address:
    """Return the parsed address. Raises SettingsError.

    The session time-out is the lease of the fleet's nodes, and no part of the address.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:  # wrong brackets
        raise SettingsError(f"the store's address cannot be read: {error}; {WRITE}") from error
    if parts.scheme != "zookeeper":
        raise SettingsError(f"{parts.scheme}:// is not an address of ZooKeeper: {WRITE}")
    if parts.fragment:
        raise SettingsError(f"the store's address has a '#': write it as %23, or {WRITE}")
    credentials, at, listed = parts.netloc.rpartition("@")
    user, colon, password = credentials.partition(":")
    if at and not (user and colon and password):
        raise SettingsError("the store's address has an '@' without user and password: write user:password@host")
    user, password = unquote(user), unquote(password)
    if ":" in user:
        raise SettingsError("a user of ZooKeeper has no colon in the name")
    hosts = tuple(_host(host) for host in listed.split(","))
    chroot = _chroot(unquote(parts.path))
    access = _access(parts.query)
    if access == "creator" and not at:
        raise SettingsError("acl=creator needs credentials: write user:password@host, or leave it out")
    shown = f"zookeeper://{user}{at}{listed}{chroot}"
    return Address(hosts, chroot, user if at else None, password, not at or access == "world", shown)


def _host(text: str) -> tuple[str, int]:
    if not text:
        raise SettingsError(f"the store's address names no host, or has a comma too many: {WRITE}")
    found = _HOST.fullmatch(text)
    if found is None:
        raise SettingsError(
            f"{text!r} is not a host of ZooKeeper: {WRITE}; numbers with colons stand in brackets: [::1]:2181"
        )
    port = int(found["port"] or PORT)
    if not 0 < port < 65_536:
        raise SettingsError(f"{text!r}: a port is a number from 1 to 65535; ZooKeeper's own is {PORT}")
    return found["six"] or found["name"], port


def _chroot(path: str) -> str:
    if not path:
        return CHROOT
    chroot = path.rstrip("/") or "/"
    parts = chroot[1:].split("/")
    if chroot == "/":
        return chroot
    if any(part in {"", ".", ".."} or not part.isprintable() for part in parts):
        raise SettingsError(f"{path!r} cannot be a node of ZooKeeper: {WRITE}")
    if parts[0] == "zookeeper":
        raise SettingsError("/zookeeper is reserved for ZooKeeper itself: choose another chroot")
    return chroot


def _access(query: str) -> str | None:
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise SettingsError(f"the part of the store's address after the '?' cannot be read: {error}") from error
    access = options.pop("acl", None)
    if options:
        raise SettingsError(f"{next(iter(options))}= is not an option of a ZooKeeper address: there is only acl=world")
    if access is not None and access not in _ACCESS:
        raise SettingsError(f"acl={access}: known are {' and '.join(_ACCESS)}")
    return access
