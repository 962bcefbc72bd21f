"""Whole nodes, as a server runs them, on one PostgreSQL store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.engines import postgres_engine

from mainspring.ids import node_id
from mainspring.server.build import open_node
from mainspring.server.fleet import SystemClock
from mainspring.server.node import Shutdown
from mainspring.server.settings import FleetSettings, ProcessSettings, ServerSettings, parse_store

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from mainspring.server.node import Node


async def open_whole(database: str, name: str, stack: AsyncExitStack) -> Node:
    """Open a node; it closes with the stack."""
    settings = ServerSettings(
        name=node_id(name),
        store=parse_store("memory://"),
        fleet=FleetSettings(),
        process=replace(ProcessSettings(), grace=0.1),
    )
    clock = SystemClock()
    node = (await open_node(settings, postgres_engine(database), clock, Shutdown(clock, settings.process.grace))).node
    stack.push_async_callback(node.close)
    return node
