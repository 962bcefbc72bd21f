"""Parts of exchanges over HTTP that the API and the pages share: paths, the bodies of requests, and answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.errors import MainspringError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Receive, Send

ROOT: Final = "/api/v1"
N: Final = ROOT + "/namespaces/{namespace}"
"""The paths of a namespace begin so."""
LOGIN: Final = "/login"
PARAMETER: Final = re.compile(r"\{([a-z_]+)\}")
"""A name in the template of a path."""
HEADERS: Final = {
    b"cache-control": b"no-store",
    b"cross-origin-resource-policy": b"same-origin",
    b"x-content-type-options": b"nosniff",
}
"""Headers of each answer: nothing is kept by caches, or read by other sites."""


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """One wrong value of a request."""

    message: str
    pointer: str | None = None
    """Where it is in the body, as a JSON pointer."""
    parameter: str | None = None
    """Its name in the path or in the query."""


class Document(msgspec.Struct, omit_defaults=True):
    """The body of a refusal."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    """The id of the request, which the log has, too."""
    errors: tuple[Fault, ...] = ()
    live_handle: str | None = None
    """The job that has the unique now, if that is why the request was refused."""
    oldest: str | None = None
    """The number behind which a reader of events misses none, if it was refused because it has missed some."""


class IncompleteBodyError(MainspringError):
    """The client has disconnected before the end of its request's body."""


class LongBodyError(MainspringError):
    """The body of a request is longer than its limit."""


async def read_body(receive: Receive, limit: int) -> bytes:
    """Return the body of a request. Raises IncompleteBodyError, and LongBodyError above ``limit`` bytes."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise IncompleteBodyError("the body is incomplete")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise LongBodyError(f"the body has more than {limit} bytes")
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def send_answer(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
    """Send a whole answer."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})
