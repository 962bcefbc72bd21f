"""Calls of the HTTP API for the browser that asked for a page.

A page has no rights of its own: each call goes through the whole HTTP API with the credentials, the address and the site of the
browser's request: a page shows no more, and changes no more, than the API allows its viewer.
"""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from mainspring.api.request import Page
from mainspring.errors import MainspringError
from mainspring.faces.web.exchange import PARAMETER, Document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Scope

T = TypeVar("T")
Items = Page
"""A page of a list; `visit.Page` is one of this site."""

_OWN: Final = frozenset(
    {
        b"accept-encoding",
        b"connection",
        b"content-length",
        b"content-type",
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"last-event-id",
        b"prefer",
        b"transfer-encoding",
    }
)
"""Headers of the browser's own request. Calls repeat all others, so that the API sees the caller and the site."""
READ_TIME: Final = 5.0
"""Seconds for a part that a page cannot do without."""
WRITE_TIME: Final = 20.0
"""Seconds for a change. It may happen later: a node repeats what its store has not answered."""
NO_HEADERS: Final[Mapping[bytes, bytes]] = MappingProxyType({})
NONE: Final[Mapping[str, Any]] = MappingProxyType({})
RESERVED: Final = frozenset({"batch", "new", "preview"})
"""Parts of paths in whose place names stand in others."""


class Problem(Document):
    """The reason of a refusal."""

    instance: str = ""

    @property
    def fields(self) -> dict[str, str]:
        """The names of the wrong values in the body, with the reasons."""
        return {one.pointer.split("/")[-1]: one.message for one in self.errors if one.pointer}

    @property
    def is_unsupported(self) -> bool:
        """Whether the store of the node has nothing of the kind."""
        return self.type == "urn:mainspring:problem:unsupported"


_UNREAD: Final = Problem(
    "", "The node does not answer in time", 503, f"Its store has not answered for {READ_TIME:.0f} s."
)
_UNCERTAIN: Final = Problem(
    "",
    "The outcome is not known",
    503,
    f"The store has not confirmed the change for {WRITE_TIME:.0f} s.",
)


class RefusedError(MainspringError):
    """A call that the API refused."""

    def __init__(self, problem: Problem, headers: Mapping[bytes, bytes]) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.headers = headers

    @property
    def status(self) -> int:
        """The status of the answer."""
        return self.problem.status


class Answer(NamedTuple):
    """The answer to a call."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes


class Calls:
    """The API for one request of a browser. All methods raise `RefusedError`."""

    def __init__(self, api: ASGIApp, scope: Scope, namespace: str, prefix: str = "") -> None:
        self._api = api
        self._scope = scope
        self._namespace = namespace
        self._prefix = prefix
        self._headers = [pair for pair in scope["headers"] if pair[0] not in _OWN]

    async def get(
        self, kind: type[T], path: str, parameters: Mapping[str, str] = NONE, *, query: Mapping[str, Any] = NONE
    ) -> T:
        """Return the answer to a GET. ``parameters`` are those of the path; ``query`` is sent without its empty values."""
        answer = await self.send("GET", path, parameters, query=query)
        return msgspec.json.decode(answer.body, type=kind)

    async def get_all(
        self, kind: type[Items[T]], path: str, parameters: Mapping[str, str] = NONE, *, query: Mapping[str, Any] = NONE
    ) -> Items[T]:
        """Return all items of a list, whose pages have up to a thousand of them."""
        listed = await self.get(kind, path, parameters, query=query)
        items, following = listed.items, listed.next
        while following is not None:
            listed = await self.get(kind, path, parameters, query={**query, "cursor": following})
            items += listed.items
            following = listed.next
        return Items(items)

    async def send(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] = NONE,
        *,
        query: Mapping[str, Any] = NONE,
        body: object = None,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> Answer:
        """Return the answer to a call."""
        pairs = [*self._headers, *(headers or {}).items()]
        encoded = b""
        if body is not None:
            encoded = msgspec.json.encode(body)
            pairs.append((b"content-type", b"application/json"))
        # The API removes the prefix once: without it here, it would remove the first segment of the path if they are equal.
        raw = (self._prefix + self.path(path, parameters)).encode("ascii")
        scope: Scope = {
            **self._scope,
            "method": method,
            "path": raw.decode("ascii"),
            "raw_path": raw,
            "query_string": encode_query(query).encode("ascii"),
            "headers": pairs,
        }
        is_read = method == "GET"
        try:
            async with asyncio.timeout(READ_TIME if is_read else WRITE_TIME):
                answer = await _exchange(self._api, scope, encoded)
        except TimeoutError:
            raise RefusedError(_UNREAD if is_read else _UNCERTAIN, NO_HEADERS) from None
        if answer.status >= 400:
            raise RefusedError(msgspec.json.decode(answer.body, type=Problem), answer.headers)
        return answer

    def path(self, path: str, parameters: Mapping[str, str] = NONE) -> str:
        """Return a path with its parameters; the namespace is that of the page. The API refuses bytes that are not UTF-8."""
        values = {"namespace": self._namespace, **parameters}
        return PARAMETER.sub(lambda match: segment(values[match[1]]), path)


def names_in(path: str) -> list[str]:
    """Return the names of the parameters of a path."""
    return PARAMETER.findall(path)


def segment(value: str) -> str:
    """Return a name as a part of a path. Names such as ``new`` are not the pages and calls of the same path."""
    if value in RESERVED:
        return f"%{ord(value[0]):02X}{value[1:]}"
    return quote(value, safe="", errors="surrogateescape")


def encode_query(query: Mapping[str, Any]) -> str:
    """Return the query of a path. Values that are None, empty or False are left out; lists become several fields."""
    pairs = [
        (name, "true" if one is True else str(one))
        for name, value in query.items()
        for one in (value if isinstance(value, list | tuple) else [value])
        if one is not None and one is not False and one != ""
    ]
    return urlencode(pairs, errors="surrogateescape")


async def _exchange(app: ASGIApp, scope: Scope, body: bytes) -> Answer:
    """Send one request to an application in this process."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    status, headers, parts = 0, {}, []

    async def receive() -> Message:
        if messages:
            return messages.pop()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], dict(message["headers"])
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return Answer(status, headers, b"".join(parts))
