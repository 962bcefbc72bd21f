"""A whole node in memory with the application in front of it, as `server.http` builds it."""

from __future__ import annotations

import contextlib
from ipaddress import ip_network
from typing import TYPE_CHECKING

from mainspring.faces.rest.app import RestApp
from mainspring.faces.rest.routes import ROUTES, with_document
from mainspring.faces.rest.security import Doorkeeper, Hosts, Login
from mainspring.faces.rest.streams import Streams
from mainspring.server.build import open_node
from mainspring.server.engines import build_engine
from mainspring.server.fleet import SystemClock
from mainspring.server.http import token_knower
from mainspring.server.node import Shutdown
from mainspring.server.settings import ListenSettings, ServerSettings, WebhookSettings, parse_store

from .a_client import Client, MemoryAccess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mainspring.server.build import Built

ALL_ROUTES = with_document(ROUTES, version="1.0")


@contextlib.asynccontextmanager
async def whole_node(store: str = "memory://", *, prefix: str = "") -> AsyncIterator[tuple[Client, Built]]:
    """Yield a client with a token of each role, and the node."""
    clock = SystemClock()
    settings = ServerSettings(
        store=parse_store(store),
        listen=ListenSettings(gearman=()),
        webhooks=WebhookSettings(allow=(ip_network("127.0.0.1"),)),
    )
    built = await open_node(settings, build_engine(settings.store), clock, Shutdown(clock, 1.0))
    try:
        access, streams = MemoryAccess(), Streams()
        doorkeeper, login = Doorkeeper(access, Hosts(), prefix=prefix), Login(access, prefix=prefix)
        app = RestApp(
            built.api,
            ALL_ROUTES,
            doorkeeper,
            login,
            built.access.replies,
            streams,
            prefix=prefix,
            knows_token=token_knower(built),
        )
        yield Client(app, access, streams), built
    finally:
        await built.node.close()
