"""The answer of a webhook's receiver, or the error in its place."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from mainspring.errors import MainspringError


class Answer(NamedTuple):
    """The answer to one attempt."""

    status: int
    """The status of HTTP: 200 to 599."""
    seconds: float
    """From the resolution of the host's name to the end of the answer."""
    retry_after: str
    """The header ``Retry-After`` as it was sent, at most 40 characters; empty if there was none."""
    excerpt: str
    """The beginning of the body as text, without control characters other than line feeds and tabs."""

    @property
    def is_success(self) -> bool:
        """Whether the receiver has taken the message: 200 to 299."""
        return 200 <= self.status < 300


class Reply(NamedTuple):
    """The answer to a request, with its body."""

    status: int
    seconds: float
    retry_after: str
    location: str
    """The header ``Location``, which may be a stranger's; empty if there was none, or if it is not printable ASCII."""
    body: bytes
    is_whole: bool
    """Whether the body is all that was sent: it was not late, too long or cut off."""


class Cause(StrEnum):
    """The step of an attempt that failed."""

    HOST = "host"
    """The host's name has no address, or the name server did not answer."""
    REFUSED = "refused"
    """The URL or an address is not permitted."""
    CONNECTION = "connection"
    """No connection, or it ended too early."""
    TLS = "tls"
    """The certificate is not that of the host, or no common version of TLS."""
    TIMEOUT = "timeout"
    """The receiver was too slow."""
    PROTOCOL = "protocol"
    """The answer was none of HTTP/1.1."""


class SendError(MainspringError):
    """An attempt ended without an answer. Its text is a sentence for the owner of the webhook, without addresses.

    ``cause`` is the step that failed; ``seconds`` is the time that the attempt took.
    """

    def __init__(self, cause: Cause, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.cause = cause
        self.seconds = seconds
