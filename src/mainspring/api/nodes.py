"""Calls about the nodes that share a store: list, show, drain and remove them."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.roles import Permission
from mainspring.api.request import Request, Touches
from mainspring.sizes import Text  # noqa: TC001 - msgspec reads the annotations

T = TypeVar("T")


class RecoveryInfo(msgspec.Struct):
    """Jobs of ended terms that a node gave back to all nodes; docs/reference/protocol.md explains the keys."""

    terms: list[int]
    nodes: list[str]
    """The names of the nodes of these terms."""
    jobs: int
    at: str


class NodeInfo(msgspec.Struct):
    """A node; docs/reference/protocol.md explains the keys."""

    name: str
    term: int
    state: str
    address: str | None
    slots: int | None
    prefetch: int | None
    """None, as ``slots``, for callers who may not see all namespaces. ``jobs`` has the running ones of theirs then."""
    capacity: int | None
    """The former name of ``prefetch``."""
    jobs: int
    weight: int
    functions: list[str]
    beats: int
    lease: float
    started_at: str | None
    version: str
    lease_left: float | None = None
    strategy: str | None = None
    recoveries: list[RecoveryInfo] = []
    """Empty for callers who may not see all namespaces."""


class Listed(msgspec.Struct):
    """The nodes that share a store."""

    nodes: list[NodeInfo]
    next: str | UnsetType = UNSET
    """The value of ``after`` for the next page; left out: there are no more."""


class List(Request[Listed]):
    """The nodes that share a store. Codes: none of its own."""

    permission = Permission.READ
    about_nodes = True
    call = "nodes.list"
    rows = "nodes"
    after: Text | None = None


class Show(Request[NodeInfo]):
    """One node. Codes: ``node_not_found``, ``ambiguous_node``."""

    permission = Permission.READ
    about_nodes = True
    call = "nodes.show"
    node: Text
    """A name, or the number of a term."""


class Drain(Request[NodeInfo]):
    """Let a node accept no more jobs, or accept jobs again. Codes: ``node_not_found``, ``ambiguous_node``, ``only_node``."""

    permission = Permission.ADMIN
    touches = Touches.ALL
    in_all_namespaces = True
    call = "nodes.drain"
    node: Text
    draining: bool = True


class Remove(Request[NodeInfo]):
    """End a node's term. Codes: ``node_not_found``, ``ambiguous_node``, ``node_lives``, ``only_node``."""

    permission = Permission.ADMIN
    touches = Touches.ALL
    in_all_namespaces = True
    call = "nodes.remove"
    node: Text
    force: bool = False
