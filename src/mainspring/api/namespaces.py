"""Calls about one namespace: its jobs, what fails and waits in it, its nodes, and streams of its live numbers and versions.

The figures are those of the namespace alone, so that callers with rights in it may see them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.declaration import get
from mainspring.api.functions import Acknowledged  # noqa: TC001 - msgspec reads the annotation
from mainspring.api.request import PAGE_LIMIT, Code, Cursor, Limit, NodeName, Page, Request, Touches
from mainspring.sizes import Text, about


class JobCounts(msgspec.Struct):
    """Numbers of jobs that have not ended, at all nodes."""

    total: int
    waiting: int
    """Due, and not running."""
    running: int
    """For other nodes, as of their last heartbeats."""
    scheduled: int
    """The others: those that are not due yet, and those that other nodes have in memory for their workers."""


class OldestJob(msgspec.Struct):
    """The due job that has waited longest."""

    function: str
    seconds: float


class RecentJobs(msgspec.Struct):
    """Attempts that ended in the last minutes, at all nodes; docs/reference/protocol.md explains the keys."""

    since: str
    seconds: float
    submitted: int
    succeeded: int
    failed: int
    retried: int
    timed_out: int
    lost: int
    cancelled: int
    released: int
    snoozed: int
    succeeded_per_second: float


class FailingFunction(msgspec.Struct):
    """A function with failed attempts."""

    function: str
    failures: int
    last_at: str | None
    error_type: str
    """Of the last one, as the next two."""
    message: str
    handle: str | None


class Failures(msgspec.Struct):
    """The functions with failed attempts since a time, those with the most first."""

    since: str
    functions: list[FailingFunction]


class TroubledFunction(msgspec.Struct):
    """A function at work; docs/reference/protocol.md explains the keys."""

    function: str
    waiting: int
    running: int
    workers: int
    registered: bool | None
    """As of `FunctionInfo`."""
    paused: bool
    oldest_seconds: float | None
    """For how long the due job has waited that waits longest."""
    failures: int
    """As of `FailingFunction`."""
    submitted: list[int] | None
    """By minute of the last hour, the oldest first; None where the store keeps no series."""
    succeeded: list[int] | None
    """Attempts, as the next."""
    not_succeeded: list[int] | None
    dead_letters: int | None = None
    """As of `FunctionInfo`, some seconds old."""


class TroubledSubscription(msgspec.Struct):
    """A listener or a webhook that is paused, or whose newest deliveries have failed."""

    kind: Literal["listener", "webhook"]
    name: str
    paused: str | None
    """Why it is paused."""
    failures: int
    """As of `ListenerInfo`."""


class StoreState(msgspec.Struct):
    """The store of the node that answers."""

    engine: str
    """``memory``, ``sqlite``, ``postgres`` or ``zookeeper``."""
    answers: bool
    """Whether it commits groups: the last one was not refused, and none has waited for long."""


class NamespaceStatus(msgspec.Struct):
    """A namespace; docs/reference/protocol.md explains the keys."""

    namespace: str
    jobs: JobCounts
    functions: int
    """Functions with jobs or workers at the node that answers."""
    oldest_waiting: OldestJob | None
    recent: RecentJobs | None
    """None where the store keeps no series."""
    failing: Failures | None
    """The same."""
    troubled: list[TroubledFunction] = []
    """Functions with work or failures, those with the most trouble first."""
    store: StoreState | None = None
    """None from an older node."""
    dead_letters: int | None = None
    """None from an older node, and where the store has too many functions to read them all, or cannot be read."""
    acknowledged: list[Acknowledged] = []
    """Functions whose failures somebody has acknowledged, and that have not failed since."""
    subscriptions: list[TroubledSubscription] = []
    """Listeners and webhooks that are paused or have failed, at most 20, by counts that are some seconds old."""


class NamespaceNode(msgspec.Struct):
    """A node, with the figures of one namespace; docs/reference/protocol.md explains the keys."""

    name: str
    term: int
    state: str
    version: str
    started_at: str | None
    beats: int
    lease: float
    workers: int
    slots: int | None
    running: int
    functions: list[str]
    lease_left: float | None = None


class ShowNamespace(Request[NamespaceStatus]):
    """Show the numbers of a namespace, with its failing functions and its oldest waiting job.

    They are those of the functions that the caller may see.
    """

    permission = Permission.READ
    call = "namespaces.status"
    http = get("status")
    only_reads = True


class ListNamespaceNodes(Request[Page[NamespaceNode]]):
    """List the nodes with the numbers of a namespace."""

    permission = Permission.READ
    call = "namespaces.nodes"
    http = get("nodes")
    cursor: Cursor = None
    limit: Limit = PAGE_LIMIT


class ShowNamespaceNode(Request[NamespaceNode]):
    """Show a node with the numbers of a namespace."""

    permission = Permission.READ
    touches = Touches.NODE
    reads_object = True
    call = "namespaces.node"
    http = get("nodes/{node}", problems=(Code.AMBIGUOUS_NODE,))
    node: NodeName


class Numbers(msgspec.Struct):
    """A sample of a namespace, of the functions that the caller may see; docs/reference/http-api.md explains the keys."""

    at: str | None
    waiting: int
    running: int
    scheduled: int
    submitted: int
    """New jobs at this node since it started."""
    workers: int
    oldest_function: str | None
    """The function of the due job that has waited longest, and for how long."""
    oldest_seconds: float | None
    succeeded: int | None
    """Attempts in the last minutes; None where the store keeps no series."""
    not_succeeded: int | None
    succeeded_per_second: float | None
    dead_letters: int | None = None
    """As of `NamespaceStatus`."""


class FunctionNumbers(msgspec.Struct):
    """A sample of one function."""

    waiting: int
    running: int
    workers: int
    running_at_all_nodes: int


class AllFunctionNumbers(msgspec.Struct):
    """A sample of the functions with jobs or workers at this node, or with running jobs at others, the first ones by name."""

    functions: dict[str, FunctionNumbers]
    more: bool
    """Whether there are more functions. Without them, functions that are missing have no jobs and no workers."""


class FollowNumbers(Request[Numbers]):
    """Follow the numbers of a namespace.

    Each second, `Numbers` are sent as the event ``numbers``, and `AllFunctionNumbers` as ``functions``.
    """

    permission = Permission.READ
    name_in_audit = "live.follow"
    functions: Annotated[bool, about("Whether to send the numbers of functions, too.")] = False
    troubled: Annotated[
        bool,
        about("Whether to send those of the functions that the last answers of `namespaces.status` named as troubled."),
    ] = False


VersionedSubject = Literal[
    "schedules",
    "schedule",
    "workers",
    "worker",
    "nodes",
    "runs",
    "run",
    "events",
    "listeners",
    "listener",
    "webhooks",
    "webhook",
    "troubles",
]
"""``troubles`` stands for the first page, without its numbers."""


class Version(msgspec.Struct):
    """The version of a list or an object."""

    version: str
    """Another one after each change, and the same one for all who see the same; empty: the object is gone."""
    spread: float
    """Seconds in which clients should read it again, each at a random time of its own: the more there are, the longer."""


class FollowVersion(Request[Version]):
    """Follow the version of a list or an object.

    A `Version` is sent at first, after each change, and every few seconds while it can be read, as the event ``version``.
    """

    permission = Permission.READ
    name_in_audit = "live.follow"
    subject: Annotated[VersionedSubject, about("The list or the object.")]
    name: Annotated[Text, about("The name of the object, the id of the worker, or the key of the run.")] = ""
