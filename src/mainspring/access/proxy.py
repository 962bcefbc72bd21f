"""Users that a trusted proxy has signed in: it states their names in headers.

One header names the user: the one of ``--proxy-user-header``. Others that name users are ignored: users choose some of them, such
as a nickname, and a nickname may look like an address that has roles.

Anybody can send such headers, so they count only on connections from the proxy itself: the address of the peer decides, never a
header such as ``X-Forwarded-For``. The proxy must remove the headers from its clients' requests. A doubled header is refused, and
so is one with ``_`` in place of ``-``, which some proxies let through.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.access.caller import Caller
from mainspring.access.grants import check_grant
from mainspring.access.roles import Grant, Role
from mainspring.errors import SettingsError, UsageError
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from ipaddress import IPv4Network, IPv6Network

    Network = IPv4Network | IPv6Network

USER_HEADER: Final = b"x-forwarded-email"
"""The default: providers of identities verify addresses, while many let users choose their names, as in ``X-Forwarded-User``."""
GROUPS: Final = b"x-forwarded-groups"
_RESERVED: Final = frozenset(
    {
        b"authorization",
        b"cookie",
        b"host",
        b"origin",
        b"referer",
        b"user-agent",
        b"forwarded",
        b"x-forwarded-for",
        GROUPS,
    }
)
"""Headers that browsers or proxies set for other purposes."""
_HEADER: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{2,99}")
_NAME: Final = re.compile(r"[A-Za-z0-9._%+@/:-]{1,200}")
"""A name of a user or a group. Spaces and commas could join two of them."""
_RULE: Final = re.compile(
    r"(?P<group>group:)?(?P<pattern>[^=]+)=(?P<role>[a-z]+)(?:@(?P<namespace>[^+]+))?(?P<payloads>\+payloads)?"
)
GROUP: Final = "group:"


class ProxyRule(NamedTuple):
    """The grant of the users, or of the members of the groups, whose whole name a pattern matches."""

    pattern: str
    """A name; one ``*`` in it stands for any characters except ``@``."""
    is_group: bool
    grant: Grant

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches a whole name."""
        start, star, end = self.pattern.partition("*")
        if not star:
            return name == start
        middle = name.removeprefix(start).removesuffix(end)
        return len(name) == len(start) + len(middle) + len(end) and "@" not in middle


class SpoofedHeaderError(UsageError):
    """A header of the proxy is spelled in a way that the proxy might not remove."""


class TrustedProxies:
    """The proxies whose headers count, and the rights of their users."""

    def __init__(
        self, networks: Iterable[Network], rules: Iterable[ProxyRule], user_header: bytes = USER_HEADER
    ) -> None:
        self._networks = tuple(networks)
        self._rules = tuple(rules)
        self._user_header = user_header
        self._header_text = user_header.decode("latin-1")
        self._headers = frozenset({user_header, GROUPS})

    def caller(self, peer: str, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Return the user of a request from an address; None if the peer is no trusted proxy, or the user has no rights.

        ``headers`` are those of a request by their names in lower case, without doubled ones. Raises SpoofedHeaderError.
        """
        if not self.trusts(peer):
            return None
        for name in headers:
            if b"_" in name and name.replace(b"_", b"-") in self._headers:
                raise SpoofedHeaderError(
                    f"the header {name.decode('latin-1')} is not accepted: the proxy has to remove it"
                )
        if self._user_header not in headers:
            return None
        user = _text(headers[self._user_header])
        groups = [_text(part.strip()) for part in headers.get(GROUPS, b"").split(b",") if part.strip()]
        names = [user]
        grants = tuple(rule.grant for rule in self._rules if any(map(rule.matches, groups if rule.is_group else names)))
        if not grants:
            return None
        return Caller(user, tuple(dict.fromkeys(grants)), address=peer, header=self._header_text)

    def trusts(self, peer: str) -> bool:
        """Return whether a connection from an address is the proxy's."""
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def _text(value: bytes) -> str:
    text = value.decode("latin-1").strip()
    if not _NAME.fullmatch(text) or text.count("@") > 1:
        raise SpoofedHeaderError("a header of the proxy has no valid name of a user or a group")
    return text


def parse_networks(text: str) -> tuple[Network, ...]:
    """Return networks such as ``10.0.0.0/8,::1``. Raises SettingsError."""
    try:
        return tuple(ip_network(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise SettingsError(f"{text!r} is not a list of networks: {error}; write 10.0.0.5 or 10.0.0.0/8") from None


def parse_user_header(text: str) -> str:
    """Return the name of a header in lower case. Raises SettingsError for one that names no user."""
    name = text.lower()
    if not _HEADER.fullmatch(name) or name.encode() in _RESERVED:
        raise SettingsError(
            f"{text!r} is not the name of a header with a user: write the one that the proxy sets, such as X-Forwarded-Email"
        )
    return name


def parse_rules(text: str) -> tuple[ProxyRule, ...]:
    """Return rules such as ``ann@example.com=admin,group:ops=operator@shop+payloads``. Raises SettingsError."""
    return tuple(_rule(part.strip()) for part in text.split(","))


def _rule(text: str) -> ProxyRule:
    match = _RULE.fullmatch(text)
    names = [role.name.lower() for role in Role]
    if match is None or match["role"] not in names or match["pattern"].count("*") > 1 or match["pattern"] == "*":
        raise SettingsError(
            f"{text!r} is no rule: write USER=ROLE or group:GROUP=ROLE, where ROLE is {', '.join(names)}, then maybe @NAMESPACE"
            " and +payloads; one * in a name stands for any characters, as in *@example.com=viewer"
        )
    grant = Grant(Role[match["role"].upper()], match["namespace"] or DEFAULT, payloads=bool(match["payloads"]))
    try:
        check_grant(grant)
    except UsageError as error:
        raise SettingsError(f"{text!r}: {error}") from None
    return ProxyRule(match["pattern"], bool(match["group"]), grant)
