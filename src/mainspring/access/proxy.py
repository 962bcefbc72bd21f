"""How HTTP requests show who makes them: by secrets, by names that a trusted proxy states, and from which site they come.

`SignIn` is the interface between the faces of a node and its credentials. A request has to name this node, and a page of another
site must not have sent it.
"""

from __future__ import annotations

import ipaddress
import re
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mainspring.access.caller import Caller, Grant, Role, check_grant
from mainspring.errors import MainspringError, SettingsError, UsageError
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from ipaddress import IPv4Network, IPv6Network

    from mainspring.access.caller import Act


class TooManySignInsError(MainspringError):
    """A token has begun too many sessions in a short time."""


class SignIn(Protocol):
    """Finds the callers of secrets, and begins and ends sessions. Every coroutine raises StoreError if the store is away.

    Answers come from memory while the store has confirmed within the last seconds that nothing was revoked.
    """

    async def caller_of_token(self, text: str, address: str = "") -> Caller | None:
        """Return the caller of a token, or None: it is no token, unknown, expired or revoked."""

    async def caller_of_session(self, text: str, address: str = "") -> Caller | None:
        """Return the caller of a session, which is the value of a cookie; None if it has ended."""

    async def sign_in(self, token: str) -> str | None:
        """Begin a session with a token; return the session's secret for the cookie, or None for an invalid token.

        Raises TooManySignInsError if the token has begun too many in the last minute.

        It lasts `service.SESSION_LIFE` seconds, or until the token expires or is revoked.
        """

    async def sign_in_by_link(self, link: str) -> str | None:
        """Begin a session with a sign-in link, which is then used up; None if it is used, expired or invented."""

    async def sign_out(self, session: str) -> None:
        """End a session, on all nodes within 3 s."""

    async def new_link(self, name: str = "console") -> str:
        """Return the secret of a link that signs its user in once, within 10 minutes, as an administrator of everything."""

    def watch(self, secret: str, ended: Callable[[], object]) -> Callable[[], None]:
        """Call a function within 3 s after a token or a session has expired or was revoked, at most once.

        It is for connections and streams that outlive a request. Return a function that ends the watch.
        """

    def refused(self, act: Act) -> None:
        """Record in the audit, if few were recorded in the last minute, that a caller was refused."""


SAFE: Final = frozenset({"GET", "HEAD"})
"""Methods that change nothing."""
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+))(?::\d{1,5})?")


class HostNames:
    """The names under which clients may address the node: IP addresses, ``localhost``, and ``names``."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}

    def accepts(self, host: bytes) -> bool | None:
        """Return whether the value of a ``Host`` header names this node; None if it is no valid value."""
        match = _HOST.fullmatch(host.decode("latin-1"))
        if match is None:
            return None
        return _is_address(match[1] or match[2]) or match[2].lower().rstrip(".") in self._names


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_of_this_site(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request with a checked ``Host`` changes nothing, or comes from a page of this host or from no browser.

    Browsers send ``Sec-Fetch-Site``, and older ones ``Origin``. A request without both comes from no browser, and needs a bearer
    token: a cookie is no proof, because browsers add it by themselves.
    """
    if method in SAFE:
        return True
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site in (b"same-origin", b"none")
    origin = headers.get(b"origin")
    if origin is not None:
        host = headers.get(b"host", b"").lower()
        return origin.lower() in (b"http://" + host, b"https://" + host)
    return b"authorization" in headers


def may_be_foreign_page(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a page of another site may have sent a request, of any method, to a port without tokens.

    Browsers send ``Sec-Fetch-Site`` to addresses that they trust, such as loopback. Elsewhere a request of a page may have
    neither that nor ``Origin``, so there a browser is refused by its ``User-Agent``, which no page can change.
    """
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in (b"same-origin", b"none")
    if b"origin" in headers:
        return not is_of_this_site("", headers)
    return headers.get(b"user-agent", b"").startswith(b"Mozilla/")


if TYPE_CHECKING:
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
