"""Signing in and out: the only paths that answer without a token or a session.

A sign-in link shows a page with a button, because a GET changes nothing: a browser that fetches pages ahead would use up the
link.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import parse_qs

from mainspring.access.sign_in import TooManySignInsError
from mainspring.faces.rest.problems import HttpError
from mainspring.faces.rest.security import COOKIE, SECURE_COOKIE, cookie_name, session_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LOGIN: Final = "/login"
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
