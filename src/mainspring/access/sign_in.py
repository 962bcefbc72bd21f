"""The interface between the faces of a node and its credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mainspring.errors import MainspringError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.acts import Act
    from mainspring.access.caller import Caller


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
