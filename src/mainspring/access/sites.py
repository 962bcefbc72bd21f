"""Whether a request names this node, and whether a page of another site may have sent it."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
