"""Listening addresses: ``HOST:PORT``, ``[V6]:PORT``, ``unix:PATH``, their namespaces and roles, and who reaches them."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass, replace

from mainspring.access.roles import Role
from mainspring.errors import SettingsError, UsageError
from mainspring.namespaces import check

GEARMAN_PORT = 4730


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port; port 0 is any free port."""

    host: str
    port: int
    namespace: str | None = None
    """Of a Gearman port: the namespace of all its connections; None: ``default``, or the one that a connection chooses."""
    role: Role = Role.DEVELOPER
    """Of a port with a namespace: the role of its connections there. Without a namespace, they may do everything."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" + ("" if self.namespace is None else f"/{self.namespace}{_shown(self.role)}")


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """The path of a socket in the file system; the permissions of its directory decide who may connect."""

    path: str
    namespace: str | None = None
    """As of `TcpAddress`."""
    role: Role = Role.DEVELOPER
    """As of `TcpAddress`."""

    def __str__(self) -> str:
        if self.namespace is None:
            return f"unix:{self.path}"
        return f"unix/{self.namespace}{_shown(self.role)}:{self.path}"


Address = TcpAddress | UnixAddress


def _shown(role: Role) -> str:
    return "" if role is Role.DEVELOPER else f"={role.name.lower()}"


def parse_address(text: str, *, default_port: int | None = GEARMAN_PORT) -> Address:
    """Parse one address. A missing port becomes ``default_port``, or is an error if that is None.

    Raises SettingsError for text that is not an address.
    """
    text = text.strip()
    if text.startswith("unix:"):
        if len(text) == len("unix:"):
            raise SettingsError("unix: lacks the path of the socket: write it as in unix:/run/mainspring.sock")
        return UnixAddress(text.removeprefix("unix:"))
    match = re.fullmatch(r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::(\d{1,5}))?", text)
    if match is None and text.count(":") > 1 and _is_ip(text):
        match = re.fullmatch(r"()(.*)()", text)  # an IPv6 address alone, without brackets or port
    if match is None or not (host := match[1] or match[2]):
        raise SettingsError(f"{text!r} is not an address: write HOST:PORT, such as 127.0.0.1:4730, or unix:PATH")
    port = int(match[3]) if match[3] else default_port
    if port is None:
        raise SettingsError(f"{text!r} has no port: write HOST:PORT, such as {host}:8080")
    if port > 65535:
        raise SettingsError(f"{text!r} has a port above 65535")
    return TcpAddress(host, port)


def parse_addresses(text: str, *, default_port: int | None = GEARMAN_PORT) -> tuple[Address, ...]:
    """Parse a comma-separated list of addresses; ``none`` is the empty list."""
    if text.strip().lower() == "none":
        return ()
    addresses = tuple(parse_address(part, default_port=default_port) for part in text.split(",") if part.strip())
    if not addresses:
        raise SettingsError(f"{text!r} names no address: write HOST:PORT, or none")
    return addresses


def parse_gearman_addresses(text: str) -> tuple[Address, ...]:
    """Parse the addresses of Gearman ports: as `parse_addresses`, each with a namespace or without.

    It is ``HOST:PORT/NAMESPACE`` and ``unix/NAMESPACE:PATH``: behind a path, a namespace could be a part of the path. Its
    connections are developers there, with payloads; ``NAMESPACE=ROLE`` gives another role.
    """
    if "/" not in text:
        return parse_addresses(text)
    return tuple(_with_namespace(part.strip()) for part in text.split(",") if part.strip())


def _with_namespace(text: str) -> Address:
    if text.startswith("unix/"):
        namespace, colon, path = text.removeprefix("unix/").partition(":")
        if not colon or not path:
            raise SettingsError(f"{text!r} lacks the path of the socket: write it as in unix/team:/run/mainspring.sock")
        address: Address = UnixAddress(path)
    else:
        place, slash, namespace = text.partition("/")
        if not slash or text.startswith("unix:"):
            return parse_address(text)
        address = parse_address(place)
    namespace, equals, role = namespace.partition("=")
    if equals and role.strip().upper() not in Role.__members__:
        raise SettingsError(
            f"{text!r}: {role.strip()!r} is no role: write {', '.join(one.name.lower() for one in Role)}"
        )
    try:
        return replace(
            address,
            namespace=check(namespace.strip()),
            role=Role[role.strip().upper()] if equals else Role.DEVELOPER,
        )
    except UsageError as error:
        raise SettingsError(f"{text!r}: {error}") from None


def is_local(address: Address) -> bool:
    """Return whether only this machine can reach an address; a host name must resolve to loopback addresses only."""
    if isinstance(address, UnixAddress):
        return True
    if _is_ip(address.host):
        return ipaddress.ip_address(address.host.partition("%")[0]).is_loopback
    try:
        found = socket.getaddrinfo(address.host, None, type=socket.SOCK_STREAM)
    except OSError:
        return address.host == "localhost"
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
