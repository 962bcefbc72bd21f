"""The application without a server, on a node in memory, and clients with tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from tests.unit.api.a_node import opened

from mainspring.access.caller import Caller, Grant, Role, Shares
from mainspring.access.idempotency import ReplyService
from mainspring.access.proxy import TrustedProxies, parse_networks
from mainspring.faces.rest.app import RestApp
from mainspring.faces.rest.routes import ROUTES, with_document
from mainspring.faces.rest.security import Doorkeeper, Hosts, Login
from mainspring.faces.rest.streams import Streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from tests.unit.api.a_node import Node, Store

    from mainspring.faces.rest.registry import Route

EVERYWHERE = "*"


class MemoryAccess:
    """Tokens and sessions in memory: each is the name of its caller."""

    def __init__(self) -> None:
        self.callers: dict[str, Caller] = {}
        self.links: set[str] = {"msl_x"}
        self.watchers: dict[str, list[Callable[[], object]]] = {}

    def add(self, name: str, role: Role, namespace: str = EVERYWHERE, *, payloads: bool = False) -> str:
        self.callers[name] = Caller(name, (Grant(role, namespace, payloads=payloads),), token=name)
        return name

    async def caller_of_token(self, text: str, address: str = "") -> Caller | None:
        found = self.callers.get(text)
        return None if found is None else msgspec.structs.replace(found, address=address)

    async def caller_of_session(self, text: str, address: str = "") -> Caller | None:
        return await self.caller_of_token(text.removeprefix("session-"), address)

    async def sign_in(self, token: str) -> str | None:
        return f"session-{token}" if token in self.callers else None

    async def sign_in_by_link(self, link: str) -> str | None:
        if link not in self.links:
            return None
        self.links.remove(link)
        return "session-admin"

    async def sign_out(self, session: str) -> None:
        self.revoke(session.removeprefix("session-"))

    def watch(self, secret: str, ended: Callable[[], object]) -> Callable[[], None]:
        watchers = self.watchers.setdefault(secret, [])
        watchers.append(ended)
        return lambda: watchers.remove(ended)

    def revoke(self, secret: str) -> None:
        self.callers.pop(secret, None)
        for ended in self.watchers.get(secret, []):
            ended()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The last part of a problem's type."""
        assert self.headers["content-type"] == "application/problem+json", self.body
        return str(self.json["type"]).removeprefix("urn:mainspring:problem:")


class Client:
    def __init__(self, app: RestApp, access: MemoryAccess, streams: Streams) -> None:
        self.app = app
        self.streams = streams
        self.access = access
        for role in Role:
            access.add(role.name.lower(), role, payloads=role is Role.ADMIN)

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = "admin",
        headers: Iterable[tuple[str, str]] = (),
        host: str = "127.0.0.1:8080",
        scheme: str = "http",
        connected: bool = False,
        receive: Callable[[], Awaitable[dict[str, Any]]] | None = None,
    ) -> Answer:
        """Return the answer to one request; a body that is not bytes is sent as JSON.

        The client disconnects once the answer begins, unless it stays ``connected``. ``receive`` replaces what the client sends.
        """
        sent = [(b"host", host.encode())] if host else []
        if token is not None:
            sent.append((b"authorization", b"Bearer " + token.encode()))
        if body is not None and not isinstance(body, bytes):
            body = msgspec.json.encode(body)
            sent.append((b"content-type", b"application/json"))
        sent += [(name.lower().encode(), value.encode()) for name, value in headers]
        raw, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "scheme": scheme,
            "path": raw,
            "raw_path": raw.encode(),
            "query_string": query.encode(),
            "headers": sent,
            "client": ("127.0.0.1", 9),
        }
        messages: list[dict[str, Any]] = []
        received, begun = False, asyncio.Event()

        async def given() -> dict[str, Any]:
            nonlocal received
            if received or method == "GET":
                if connected:
                    await asyncio.Event().wait()
                await begun.wait()
                return {"type": "http.disconnect"}
            received = True
            return {"type": "http.request", "body": body or b"", "more_body": False}

        async def keep(message: Any) -> None:
            messages.append(message)
            begun.set()

        await self.app(scope, receive or given, keep)
        assert messages, "no answer"
        head = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        content = b"".join(one.get("body", b"") for one in messages[1:])
        assert "content-length" not in head or int(head["content-length"]) == len(content)
        return Answer(messages[0]["status"], head, content)

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.send("GET", path, **options)


@contextlib.asynccontextmanager
async def serving(
    routes: tuple[Route, ...] = ROUTES,
    *,
    hosts: Iterable[str] = (),
    prefix: str = "",
    streams: Streams | None = None,
    proxies: str = "10.9.9.9",
    store: Store | None = None,
    apart: Node | None = None,
    places: int = sys.maxsize,
    keeps_tokens: bool = True,
) -> AsyncIterator[tuple[Client, Node]]:
    """Yield a client with a token of each role, and the node behind the application; ``apart`` keeps the answers."""
    async with opened(store) as node:
        access = MemoryAccess()
        documented = with_document(routes, version="9.9", prefix=prefix)
        streams = Streams() if streams is None else streams
        doorkeeper = Doorkeeper(access, Hosts(hosts), TrustedProxies(parse_networks(proxies), ()), prefix=prefix)
        login = Login(access, prefix=prefix, keeps_tokens=keeps_tokens)
        keeper = node if apart is None else apart
        replies = ReplyService(keeper.commits, keeper.clock, atomic=keeper is node)
        app = RestApp(
            node.api, documented, doorkeeper, login, replies, streams, prefix=prefix, shares=Shares(places, "requests")
        )
        yield Client(app, access, streams), node
