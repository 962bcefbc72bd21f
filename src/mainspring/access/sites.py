"""Whether a page of another site may have sent a request that changes something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SAFE: Final = frozenset({"GET", "HEAD"})
"""Methods that change nothing."""


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
