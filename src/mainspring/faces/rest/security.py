"""Checks of each request before any other work: the host that it names, the site that it comes from, and its caller.

Loopback is no boundary: with DNS rebinding, a page of any site reaches a port on 127.0.0.1, but its requests name the host of the
page. So each request must name this node. Nothing answers without a token or a session.

Signing in and out are the only paths that answer without them. A sign-in link shows a page with a button, because a GET
changes nothing: a browser that fetches pages ahead would use up the link.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import parse_qs

from mainspring.access.proxy import (
    GROUPS,
    HostNames,
    SpoofedHeaderError,
    TooManySignInsError,
    TrustedProxies,
    is_of_this_site,
)
from mainspring.faces.rest.replies import HttpError
from mainspring.faces.web.exchange import LOGIN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mainspring.access.caller import Caller

PROTOCOL: Final = b"x-forwarded-proto"
SINGLE: Final = frozenset(
    {
        b"authorization",
        b"content-length",
        b"content-type",
        b"cookie",
        b"host",
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"origin",
        b"prefer",
        b"sec-fetch-site",
        PROTOCOL,
        GROUPS,
    }
)
"""Headers that a request has at most once: two parts of a system could otherwise read different values."""
COOKIE: Final = "mainspring"
"""The name of the session's cookie on a port without TLS, unless the node has a prefix."""
SECURE_COOKIE: Final = "__Host-mainspring"
"""The name with TLS: browsers accept it only from this host, over TLS, for all paths."""
NO_PROXIES: Final = TrustedProxies((), ())
_KEPT_HOSTS: Final = 64
_BEARER: Final = re.compile(rb"(?i:bearer) +([!-~]+) *")
_ANONYMOUS: Final = {b"www-authenticate": b'Bearer realm="mainspring"'}


def cookie_name(name: str, prefix: str) -> str:
    """Return the name of a cookie of the node that a proxy shows under a prefix: other prefixes of the host have others."""
    return name + prefix.replace("/", "!")  # names of cookies have no slash, and prefixes no "!"


class Access(Protocol):
    """Finds the callers of requests."""

    async def caller_of_token(self, text: str, address: str = "") -> Caller | None:
        """Return the caller of a token; None if it is wrong, revoked or expired."""

    async def caller_of_session(self, text: str, address: str = "") -> Caller | None:
        """Return the caller of a session, which is the value of a cookie; None if it has ended."""

    def watch(self, secret: str, ended: Callable[[], object]) -> Callable[[], None]:
        """Call a function within 3 s after a token or a session has ended; return a function that ends the watch."""


def collect(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers of a request by name: the values of one that is there twice with a comma, as proxies may join them.

    So no name of a user is read from one of several headers. Raises HttpError if a header of `SINGLE` is there twice.
    """
    headers: dict[bytes, bytes] = {}
    for name, value in pairs:
        if name not in headers:
            headers[name] = value
        elif name in SINGLE:
            raise HttpError("malformed", f"the header {name.decode('latin-1')} is there twice: send it once")
        else:
            headers[name] += b", " + value
    return headers


class Hosts:
    """Checks the ``Host`` of requests, see `HostNames`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = HostNames(names)
        self._accepted: set[bytes] = set()
        """Checked values, so that each connection costs one look-up."""

    def check(self, headers: dict[bytes, bytes]) -> None:
        """Raise HttpError unless a request names this node as its host."""
        host = headers.get(b"host", b"")
        if host in self._accepted:
            return
        accepted = self._names.accepts(host)
        if accepted is None:
            raise HttpError("malformed", "the request has no valid Host header")
        if not accepted:
            raise HttpError(
                "unknown_host", "this node does not have the name in the Host header: permit it with --http-host NAME"
            )
        if len(self._accepted) < _KEPT_HOSTS:
            self._accepted.add(host)


def check_site(method: str, headers: dict[bytes, bytes]) -> None:
    """Raise HttpError if a page of another site may have sent a request that changes something."""
    if not is_of_this_site(method, headers):
        raise HttpError("cross_site", "requests of other sites may change nothing: send it from a page of this node")


class Doorkeeper:
    """Finds the caller of each request, or refuses it. ``prefix`` is the path under which a proxy shows the node."""

    def __init__(self, access: Access, hosts: Hosts, proxies: TrustedProxies = NO_PROXIES, *, prefix: str = "") -> None:
        self._prefix = prefix
        self._access = access
        self._hosts = hosts
        self._proxies = proxies

    def check_host(self, headers: dict[bytes, bytes]) -> None:
        """Raise HttpError unless a request names this node as its host."""
        self._hosts.check(headers)

    def is_secure(self, headers: dict[bytes, bytes], address: str, scheme: str) -> bool:
        """Return whether the browser uses TLS: with this node, or with a trusted proxy."""
        if scheme == "https":
            return True
        return headers.get(PROTOCOL, b"").strip().lower() == b"https" and self._proxies.trusts(address)

    async def admit(self, method: str, headers: dict[bytes, bytes], *, address: str, secure: bool) -> Caller:
        """Return the caller of a request to a checked host. Raises HttpError."""
        caller = None
        if (token := bearer(headers)) is not None:
            caller = await self._access.caller_of_token(token, address)
        elif (session := session_of(headers, self._prefix, secure=secure)) is not None:
            caller = await self._access.caller_of_session(session, address)
        if caller is None and b"authorization" not in headers:
            caller = self._proxied(headers, address)
        if caller is None:
            has_token = b"authorization" in headers
            detail = "the token is wrong, revoked or expired" if has_token else "send Authorization: Bearer TOKEN"
            raise HttpError("unauthenticated", detail, headers=_ANONYMOUS)
        check_site(method, headers)
        return caller

    def _proxied(self, headers: dict[bytes, bytes], address: str) -> Caller | None:
        """Return the user that a trusted proxy has signed in. Raises HttpError for headers that a client may have sent."""
        try:
            return self._proxies.caller(address, headers)
        except SpoofedHeaderError as error:
            raise HttpError("malformed", str(error)) from None

    def watch(self, headers: dict[bytes, bytes], ended: Callable[[], object], *, secure: bool) -> Callable[[], None]:
        """Call a function when the token or the session of a request ends; return a function that ends the watch."""
        secret = bearer(headers) or session_of(headers, self._prefix, secure=secure)
        return self._access.watch(secret, ended) if secret is not None else lambda: None


def bearer(headers: dict[bytes, bytes]) -> str | None:
    """Return the token of a request; None if it has none, or another kind of authorization."""
    match = _BEARER.fullmatch(headers.get(b"authorization", b""))
    return None if match is None else match[1].decode("ascii")


def session_of(headers: dict[bytes, bytes], prefix: str, *, secure: bool) -> str | None:
    """Return the session of a request. A request with any authorization has none: the header decides."""
    if b"authorization" in headers or b"cookie" not in headers:
        return None
    return cookie(headers[b"cookie"], cookie_name(SECURE_COOKIE if secure else COOKIE, prefix)) or None


def cookie(header: bytes, name: str) -> str | None:
    """Return the value of a cookie; None if it is missing, or there twice."""
    pairs = (part.strip().partition("=") for part in header.decode("latin-1").split(";"))
    found = [value for key, _, value in pairs if key == name]
    return found[0] if len(found) == 1 else None


LOGOUT: Final = "/logout"
PATHS: Final = frozenset({LOGIN, LOGOUT})
FORM_LIMIT: Final = 8 << 10
"""Bytes of a form."""
COOKIE_LIFE: Final = 12 * 3600
"""Seconds for which a browser keeps the cookie. The session in the store decides."""
_FORM: Final = b"application/x-www-form-urlencoded"
_PAGE: Final = {
    b"content-type": b"text/html; charset=utf-8",
    b"content-security-policy": (
        b"default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; style-src 'self'"
    ),
}
_TEMPLATE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>Sign in to Mainspring</title>
{style}<main>
<h1>Sign in to Mainspring</h1>
{problem}<form class="panel" method="post" action="{action}">
{field}
<input type="hidden" name="next" value="{following}">
<button>Sign in</button>
</form>
</main>
</html>
"""
_FIELD: Final = """<label>Token <input type="password" name="token" required autofocus autocomplete="off"></label>
<p>{advice}</p>"""
_STORED: Final = """Administrators give tokens. On the machine of the node, this prints one:
<code>mainspring tokens create --name NAME --role admin</code>"""
_OF_START: Final = """The store keeps no tokens. The node prints one at each start, on its standard output, and at a terminal
a link that signs a browser in."""


class SignIn(Protocol):
    """Begins and ends sessions."""

    async def sign_in(self, token: str) -> str | None:
        """Begin a session with a token; return its secret, or None for an invalid token."""

    async def sign_in_by_link(self, link: str) -> str | None:
        """Begin a session with a sign-in link, which is then used up; None if it is not valid."""

    async def sign_out(self, session: str) -> None:
        """End a session."""


class Login:
    """The pages. ``prefix`` is the path under which a proxy shows the node, ``style`` that of their style sheet.

    ``keeps_tokens``: the store keeps tokens, so that a command can create one.
    """

    def __init__(self, sign_in: SignIn, *, prefix: str = "", style: str = "", keeps_tokens: bool = True) -> None:
        self._sign_in = sign_in
        self._field = _FIELD.format(advice=_STORED if keeps_tokens else _OF_START)
        self._prefix = prefix
        self._style = f'<link rel="stylesheet" href="{escape(style)}">\n' if style else ""

    async def answer(
        self,
        path: str,
        method: str,
        headers: dict[bytes, bytes],
        query: bytes,
        read: Callable[[int], Awaitable[bytes]],
        *,
        secure: bool,
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        """Answer a request for one of `PATHS`, whose host and site are checked. Raises HttpError."""
        if path == LOGIN and method in {"GET", "HEAD"}:
            given = parse_qs(query.decode("latin-1"))
            link, following = (given.get(name, [""])[0] for name in ("link", "next"))
            return 200, dict(_PAGE), self._page(link, following)
        if method != "POST":
            allowed = b"GET, HEAD, POST" if path == LOGIN else b"POST"
            raise HttpError(
                "method_not_allowed", f"this path has {allowed.decode()}, not {method}", headers={b"allow": allowed}
            )
        if path == LOGOUT:
            return await self._end(headers, secure=secure)
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _FORM:
            raise HttpError("media_type", f"send the form as Content-Type: {_FORM.decode()}")
        form = parse_qs((await read(FORM_LIMIT)).decode("latin-1"))
        token, link, following = (form.get(name, [""])[0].strip() for name in ("token", "link", "next"))
        try:
            session = await (self._sign_in.sign_in_by_link(link) if link else self._sign_in.sign_in(token))
        except TooManySignInsError as error:
            raise HttpError("too_many_requests", str(error), headers={b"retry-after": b"60"}) from None
        if session is None:
            problem = (
                "This link is used, older than 10 minutes, or incomplete. Sign in with a token."
                if link
                else "This token is wrong, revoked or expired."
            )
            return 401, dict(_PAGE), self._page("", following, problem)
        target = following if _is_ours(following) else "/"
        return (
            303,
            {b"location": self._to(target), b"set-cookie": self._cookie(session, COOKIE_LIFE, secure=secure)},
            b"",
        )

    async def _end(self, headers: dict[bytes, bytes], *, secure: bool) -> tuple[int, dict[bytes, bytes], bytes]:
        session = session_of(headers, self._prefix, secure=secure)
        if session is not None:
            await self._sign_in.sign_out(session)
        return 303, {b"location": self._to(LOGIN), b"set-cookie": self._cookie("", 0, secure=secure)}, b""

    def _cookie(self, value: str, seconds: int, *, secure: bool) -> bytes:
        name = cookie_name(SECURE_COOKIE if secure else COOKIE, self._prefix)
        flags = "; Secure" if secure else ""
        # A name with __Host- demands the path /.
        return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{flags}".encode()

    def _to(self, path: str) -> bytes:
        return (self._prefix + path).encode()

    def _page(self, link: str, following: str, problem: str = "") -> bytes:
        field = f'<input type="hidden" name="link" value="{escape(link)}">' if link else self._field
        shown = f'<p role="alert">{escape(problem)}</p>\n' if problem else ""
        action = escape(self._prefix + LOGIN)
        page = _TEMPLATE.format(
            style=self._style, problem=shown, action=action, field=field, following=escape(following)
        )
        return page.encode("utf-8", "replace")


def _is_ours(path: str) -> bool:
    """Return whether a path leads to a page of this node: those of other sites begin with two slashes, or a backslash."""
    return path.startswith("/") and path[1:2] not in {"/", "\\"} and path.isascii() and path.isprintable()
