"""Calls about the nodes that share a store: their load, their drains and ends, and the workers that are connected to them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.declaration import delete, get, post
from mainspring.api.request import PAGE_LIMIT, Code, Cursor, Limit, NodeName, Page, Request, Touches, WorkerId
from mainspring.sizes import about


class WaitingJobs(msgspec.Struct):
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
    waiting: WaitingJobs


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


class ShowStatus(Request[NodeStatus]):
    """Show the node that answers, with the functions of one namespace."""

    permission = Permission.READ
    about_nodes = True
    call = "node.status"
    http = get("/status")


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


class ListNodes(Request[Page[NodeInfo]]):
    """List the nodes that share the store."""

    permission = Permission.READ
    about_nodes = True
    call = "nodes.list"
    http = get("/nodes")
    cursor: Cursor = None
    limit: Limit = PAGE_LIMIT


ONE_NODE = (Code.AMBIGUOUS_NODE,)
"""The problems of requests that name a node."""


class ShowNode(Request[NodeInfo]):
    """Show a node."""

    permission = Permission.READ
    touches = Touches.NODE
    reads_object = True
    about_nodes = True
    call = "nodes.show"
    http = get("/nodes/{node}", problems=ONE_NODE)
    node: NodeName


class DrainNode(Request[NodeInfo]):
    """Let a node take no more jobs."""

    permission = Permission.ADMIN
    touches = Touches.NODE
    in_all_namespaces = True
    call = "nodes.drain"
    http = post("/nodes/{node}/drain", problems=(*ONE_NODE, Code.ONLY_NODE))
    node: NodeName


class UndrainNode(Request[NodeInfo]):
    """Let a node take jobs again."""

    permission = Permission.ADMIN
    touches = Touches.NODE
    in_all_namespaces = True
    call = "nodes.undrain"
    http = post("/nodes/{node}/undrain", problems=(*ONE_NODE, Code.ONLY_NODE))
    node: NodeName


class RemoveNode(Request[NodeInfo]):
    """Remove a node: other nodes run its jobs."""

    permission = Permission.ADMIN
    touches = Touches.NODE
    in_all_namespaces = True
    call = "nodes.remove"
    http = delete("/nodes/{node}", problems=(*ONE_NODE, Code.NODE_LIVES, Code.ONLY_NODE))
    node: NodeName
    force: Annotated[bool, about("Remove it although it lives: it ends itself.")] = False


class WorkerInfo(msgspec.Struct):
    """A connected worker; docs/reference/protocol.md explains the keys."""

    id: str
    name: str
    node: str
    term: int
    """Of its node."""
    client: str
    """``extension`` or ``gearman``: its protocol."""
    state: str
    """``live``, ``silent`` or ``draining``."""
    slots: int | None
    """How many jobs it runs at a time, if it has declared it."""
    running: int
    connected_at: str | None
    version: str | None
    """Its version of Mainspring; None if unknown."""
    stops: bool
    """Whether it stops on request."""
    silent_since: str | None
    """Since when it has sent nothing although it should; it gets no work until it sends something."""


class WorkerDecisions(msgspec.Struct):
    """The decisions of workflows that a worker has."""

    running: int
    steps: int
    """Those of them that only keep a step, as of the worker's last report."""
    places: int
    """Decisions that it takes at a time, besides these."""
    full: bool
    """Whether all of its places are taken: it gets no further decision until one of them ends."""


class WorkerPace(msgspec.Struct):
    """The pace of a worker's heartbeats, as it has reported it last."""

    items: int
    """Its connections, and its jobs with heartbeat timeouts: each says something once in its period."""
    capacity: int
    """How many such items there may be if their periods are as now on average."""
    pace: float
    """Heartbeats of items in a second, at most."""
    load: float
    """Those that the items need."""
    lag: float
    """Seconds by which one was late, at most, in the last minute."""
    refused: int
    """Jobs that the worker has given back because there was no room, since its start."""
    throttled: int
    """Heartbeats that had to wait for answers of a server, since the worker's start."""
    failed: int
    """Items whose action has failed, since the worker's start."""
    full: bool
    """Whether it takes no more jobs of functions with heartbeat timeouts."""


class WatchProblem(msgspec.Struct):
    """Work in another system that a worker cannot look at."""

    handle: str
    function: str
    problem: str
    last_look: float | None
    """Seconds since the last look that had an answer; None: there was none."""


class WorkerWatch(msgspec.Struct):
    """The work in other systems that a worker watches."""

    jobs: int
    problems: list[WatchProblem]
    """The first 20."""
    failing: int
    """The number of all of them."""


class WorkerDetails(WorkerInfo):
    """A worker with its functions and jobs; these are None for a worker of another node than the one that answers."""

    functions: list[str] | None
    jobs: list[str] | None
    """The handles of running jobs, at most 1,000."""
    decisions: WorkerDecisions | None
    """None for a worker that decides no runs; of a worker of another node, as of its last heartbeat."""
    watches: WorkerWatch | None = None
    """None for a worker that watches no work in other systems, and for one of another node."""
    pace: WorkerPace | None = None
    """None for a worker that has not reported it: one of an earlier version, or of plain Gearman."""


class ListWorkers(Request[Page[WorkerInfo]]):
    """List the workers at all nodes.

    They are sorted by the terms of their nodes; of each other node than the one that answers, there are the first 200, as of its
    last heartbeat.
    """

    permission = Permission.READ
    call = "workers.list"
    http = get("workers")
    cursor: Cursor = None
    limit: Limit = 100


class ShowWorker(Request[WorkerDetails]):
    """Show a worker."""

    permission = Permission.READ
    touches = Touches.WORKER
    reads_object = True
    call = "workers.show"
    http = get("workers/{worker}")
    worker: WorkerId


class DrainWorker(Request[WorkerInfo]):
    """Give a worker no more jobs of tasks."""

    permission = Permission.OPERATE
    touches = Touches.WORKER
    call = "workers.drain"
    http = post("workers/{worker}/drain", status=202)
    worker: WorkerId


class UndrainWorker(Request[WorkerInfo]):
    """Give a worker jobs again."""

    permission = Permission.OPERATE
    touches = Touches.WORKER
    call = "workers.undrain"
    http = post("workers/{worker}/undrain", status=202)
    worker: WorkerId


class StopWorker(Request[WorkerInfo]):
    """Ask a worker to stop once its jobs have ended. Those of plain Gearman take no such requests."""

    permission = Permission.OPERATE
    touches = Touches.WORKER
    call = "workers.stop"
    http = post("workers/{worker}/stop", status=202, problems=(Code.CONFLICT,))
    worker: WorkerId
