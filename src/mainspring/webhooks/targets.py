"""The URLs and addresses to which webhooks are sent: pure rules.

A webhook's URL comes from users, and the node that connects to it stands inside a network that these users may not enter. So a
URL is read strictly, every address of its host is checked (`refusal`), and the node connects to a checked address, not to the
name: a name server may give another answer the second time.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LONGEST_URL: Final = 2048
"""Characters."""
PORTS: Final = {"https": 443, "http": 80}
"""The schemes with their usual ports."""
FIRST_FREE_PORT: Final = 1024
"""The lowest port that is permitted beside the usual ones."""
NO_HTTP_PORTS: Final = frozenset({
    *(1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, *range(6665, 6670), 6679, 6697, 10080)
})  # fmt: skip
"""Ports above 1023 to which browsers do not send either, by the fetch standard: other protocols would take HTTP as commands."""


class Policy(msgspec.Struct, frozen=True):
    """A node's settings for targets."""

    allowed: tuple[Network, ...] = ()
    """Networks that are permitted although they are not public."""
    ports: frozenset[int] | None = None
    """The permitted ports; None: 80, 443, and those from 1024 on without `NO_HTTP_PORTS`."""

    def permits_port(self, port: int) -> bool:
        """Return whether webhooks may be sent to a port."""
        if self.ports is not None:
            return port in self.ports
        return port in PORTS.values() or (port >= FIRST_FREE_PORT and port not in NO_HTTP_PORTS)


PUBLIC: Final = Policy()
"""Public addresses alone."""


class Target(NamedTuple):
    """The parts of a URL that was read."""

    scheme: str
    """``https`` or ``http``."""
    host: str
    """A name in lower case without a dot at its end, or an address in its usual form, without brackets."""
    port: int
    path: str
    """With the query; begins with a slash."""

    @property
    def is_tls(self) -> bool:
        """Whether it is ``https``."""
        return self.scheme == "https"

    @property
    def address(self) -> Address | None:
        """The address that stands in place of a host name, if one does."""
        return _address_of(self.host)

    @property
    def authority(self) -> str:
        """The value of the header ``Host``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


_URL: Final = re.compile(r"[!-~]+")
"""No spaces, no control characters, nothing beyond ASCII: other characters would be mapped to these, by rules that differ."""
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A last label of a host that makes it an IPv4 address for `inet_aton`, browsers and resolvers, in some spelling."""
_PORT: Final = re.compile(r"[0-9]{1,5}")


def parse_target(url: str, policy: Policy = PUBLIC) -> Target:
    """Read the URL of a webhook. Raises UsageError, which does not repeat it: its path may be a secret.

    Addresses are checked when they are known: a name's after its resolution, an address in the URL by `check_addresses` as well.
    """
    if len(url) > LONGEST_URL:
        raise UsageError(f"the URL has at most {LONGEST_URL:,} characters")
    if not _URL.fullmatch(url) or "\\" in url:
        raise UsageError(
            "the URL has no spaces, backslashes, control characters or characters beyond ASCII: "
            "write other names of hosts with xn--, and other characters with %"
        )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UsageError("the URL cannot be read") from None
    if parts.scheme not in PORTS or not parts.netloc:
        raise UsageError("the URL begins with https:// or http:// and a host")
    if "@" in parts.netloc:
        raise UsageError("the URL has no user and no password: use a header, or verify the signature")
    if "#" in url:
        raise UsageError("the URL has no fragment (#…): it would not be sent")
    host, port = _split(parts.netloc.lower())
    number = PORTS[parts.scheme] if port is None else port
    if not policy.permits_port(number):
        raise UsageError(f"nothing may be sent to port {number}: the settings permit others")
    query = f"?{parts.query}" if "?" in url else ""
    return Target(parts.scheme, host, number, f"{parts.path or '/'}{query}")


def _split(authority: str) -> tuple[str, int | None]:
    """Return the host and the port of an authority in lower case."""
    if authority.startswith("["):
        inside, bracket, rest = authority[1:].partition("]")
        host = _literal(inside) if bracket and "%" not in inside else None
        if not isinstance(host, IPv6Address) or (rest and not rest.startswith(":")):
            raise UsageError("the brackets in the URL have an IPv6 address, without a zone")
        return str(host), _port(rest[1:]) if rest else None
    name, colon, digits = authority.partition(":")
    return _host(name.removesuffix(".")), _port(digits) if colon else None


def _port(digits: str) -> int:
    if not _PORT.fullmatch(digits) or not 0 < int(digits) < 2**16:
        raise UsageError("the port in the URL is a number from 1 to 65535")
    return int(digits)


def _host(name: str) -> str:
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        address = _literal(name)
        if not isinstance(address, IPv4Address):
            raise UsageError("an IPv4 address in the URL is written as four decimal numbers, such as 203.0.113.9")
        return str(address)
    if not _NAME.fullmatch(name):
        raise UsageError("the host in the URL is no valid name")
    return name


def _literal(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _address_of(host: str) -> Address | None:
    """Return the address of a host that is none of a name."""
    return _literal(host) if ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]) else None


# ---- addresses ----


def _table(*rows: tuple[str, str]) -> tuple[tuple[Network, str], ...]:
    return tuple((ip_network(network), kind) for networks, kind in rows for network in networks.split())


METADATA: Final = frozenset(
    map(
        ip_address,
        # AWS, Azure, Google and others; Alibaba; Oracle; Azure's host, which has a public address; AWS and Google by IPv6.
        (
            "169.254.169.254",
            "169.254.170.2",
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "fd00:ec2::254",
            "fd20:ce::254",
        ),
    )
)
"""Addresses at which clouds give a machine its credentials. A network in `Policy.allowed` permits one only if it has no other."""
_NOT_PUBLIC: Final = _table(
    # IPv4, by IANA's registry of special addresses.
    ("0.0.0.0/8", "unspecified"),
    ("127.0.0.0/8", "loopback"),
    ("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16", "private"),
    ("100.64.0.0/10", "shared by a provider"),
    ("169.254.0.0/16", "link-local"),
    ("192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4", "reserved"),
    ("224.0.0.0/4", "multicast"),
    # IPv6: first its kinds, then the parts of 2000::/3 that are not public.
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "private"),
    ("ff00::/8", "multicast"),
    ("::/96 ::ffff:0:0:0/96 64:ff9b:1::/48", "an IPv4 address in another form"),
    ("2001::/32 2002::/16", "a tunnel to an IPv4 address"),
    ("2001::/23 2001:db8::/32 3fff::/20", "reserved"),
)  # fmt: skip
_PUBLIC_IPV6: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
"""Behind these, a network without IPv4 reaches public IPv4 addresses."""
_ISATAP: Final = 0x5EFE
"""The upper half of an interface's id that has an IPv4 address in its lower half, without the bit for a public one."""
_ISATAP_MASK: Final = 0xFDFFFFFF


def _is_metadata(address: Address) -> bool:
    """Return whether it is one of `METADATA`, also inside of an IPv6 address behind any prefix of a translator or a tunnel."""
    if isinstance(address, IPv6Address) and (
        IPv4Address(int(address) & 0xFFFFFFFF) in METADATA or address.sixtofour in METADATA
    ):
        return True
    return address in METADATA


def refusal(address: Address, allowed: Collection[Network] = ()) -> str:
    """Return why nothing may be sent to an address, such as ``private``; empty if it may.

    ``allowed`` are networks that are permitted although they are not public. An IPv4 address inside of an IPv6 address is
    judged as what it is: the system connects to that of ``::ffff:0:0/96`` by IPv4, and a translator to that of ``64:ff9b::/96``.
    """
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or IPv6Address(int(address))  # without a zone, which makes equal addresses differ
    if _is_metadata(address):
        is_named = any(network.num_addresses == 1 and address in network for network in allowed)
        return "" if is_named else "a cloud's metadata"
    if any(address in network for network in allowed):
        return ""
    if isinstance(address, IPv6Address) and address in _NAT64:
        return refusal(IPv4Address(int(address) & 0xFFFFFFFF))
    for network, kind in _NOT_PUBLIC:
        if address in network:
            return kind
    if isinstance(address, IPv6Address):
        if address not in _PUBLIC_IPV6:
            return "reserved"
        if int(address) >> 32 & _ISATAP_MASK == _ISATAP:
            return "a tunnel to an IPv4 address"
    return ""


def check_addresses(texts: Iterable[str], policy: Policy = PUBLIC) -> tuple[Address, ...]:
    """Return the addresses of a host, each once, in their order. Raises UsageError if there is none, or one is not permitted.

    One address that is not permitted refuses all: no honest name has both kinds. The error does not have the address, so that
    nobody reads an inner name server through it.
    """
    addresses = tuple(dict.fromkeys(map(ip_address, texts)))
    if not addresses:
        raise UsageError("the host has no address")
    for one in addresses:
        kind = refusal(one, policy.allowed)
        if kind:
            raise UsageError(f"the host has an address to which nothing may be sent: it is {kind}")
    return addresses
