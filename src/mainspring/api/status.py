"""Calls about the node itself: its identity and its load."""

from __future__ import annotations

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.request import Request


class Waiting(msgspec.Struct):
    """Numbers of waiting jobs, by priority."""

    high: int
    normal: int
    low: int


class FunctionStatus(msgspec.Struct):
    """The load of a function."""

    function: str
    total: int
    running: int
    workers: int
    waiting: Waiting


class JobNumbers(msgspec.Struct):
    """Numbers of jobs that have not ended."""

    total: int
    running: int
    waiting: int


class CommitNumbers(msgspec.Struct):
    """The commits of the node since its start."""

    groups: int
    jobs: int


class WorkflowStatus(msgspec.Struct):
    """The load of a version of a workflow."""

    type: str
    version: str
    workers: int
    parked: int
    stranded: int


class SetAsideStatus(msgspec.Struct):
    """A stored object that the node cannot handle: a schedule."""

    kind: str
    name: str
    since: str | None
    """When the node met it first, in RFC 3339."""
    fault: str


class NodeStatus(msgspec.Struct):
    """A node; docs/reference/cli.md explains the keys."""

    version: str
    name: str
    term: int
    store: str
    """Its address, without a password; its kind alone for callers who may not see all namespaces."""
    pid: int | None
    uptime: float
    connections: int | None
    """None, as ``commits``, for callers who may not see all namespaces. The other numbers are those of theirs then."""
    schedules: bool
    workers: int
    known_functions: int
    jobs: JobNumbers
    commits: CommitNumbers | None
    functions: list[FunctionStatus]
    workflows: list[WorkflowStatus] = []
    set_aside: list[SetAsideStatus] = []
    """Empty, for callers who may not see all namespaces."""


class Show(Request[NodeStatus]):
    """The status of the node that receives the request, with the functions of one namespace. Codes: none of its own."""

    permission = Permission.READ
    about_nodes = True
    call = "node.status"
