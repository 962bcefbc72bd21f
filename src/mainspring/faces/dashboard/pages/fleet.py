"""The pages of the fleet: nodes of the store, connected workers, and namespaces in which the viewer has rights.

The drawing of nodes has a row of cells for the slots of each, and a bar for what is left of its lease. Arrows lead from ended
nodes to the pool of all nodes, with the number of the jobs that were given back, and the time.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.access.caller import EVERY_NAMESPACE, Permission
from mainspring.api.namespaces import NamespaceNode
from mainspring.api.nodes import (
    DrainNode,
    DrainWorker,
    NodeInfo,
    RemoveNode,
    StopWorker,
    UndrainNode,
    UndrainWorker,
    WorkerDetails,
    WorkerInfo,
)
from mainspring.api.request import PAGE_LIMIT
from mainspring.api.versions import WORKERS, sees_all, version_of
from mainspring.faces.dashboard import words
from mainspring.faces.dashboard.actions import Action, act
from mainspring.faces.dashboard.calls import Items, Problem
from mainspring.faces.dashboard.rendering import command_line
from mainspring.faces.dashboard.visit import Page
from mainspring.faces.web.exchange import ROOT, N
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.faces.dashboard.visit import Response, Visit

TOP: Final = 22
ROW: Final = 28
LEFT: Final = 190
CELLS: Final = 380
"""The width of all cells of a node."""
LEASE: Final = 680
"""Where the bars of leases begin."""
LEASE_WIDTH: Final = 200
MOST_NODES: Final = 40
MOST_CELLS: Final = 300
"""Of all nodes together."""
MOST_ARROWS: Final = 4
WIDEST: Final = 32
"""Cells of a node; with more slots, a cell stands for several."""


class Node(NamedTuple):
    """The shown values of a node."""

    name: str
    term: int
    state: str
    address: str | None
    version: str
    jobs: int
    slots: int | None
    lease: float
    lease_left: float | None
    started_at: str | None
    share: str
    """Its strategy and weight in words; empty where they are not shown."""
    prefetch: int | None

    @property
    def silent(self) -> float | None:
        """The seconds since its last heartbeat; None if the lease has ended, or nothing is known."""
        return self.lease - self.lease_left if self.lease_left else None

    @property
    def key(self) -> str:
        """Its name in calls. Of a dead node it is the term: a live one may have the same name."""
        return str(self.term) if self.state == "dead" else self.name


class Recovery(NamedTuple):
    """Jobs of ended terms that a node gave back to all nodes."""

    ended: str
    """The nodes and their terms in words."""
    jobs: int
    at: str
    by: str


class Arrow(NamedTuple):
    """A drawn recovery."""

    y: int
    recovery: Recovery


class Cell(NamedTuple):
    """One slot, or several."""

    x: float
    width: float
    is_busy: bool


class Line(NamedTuple):
    """A node."""

    y: int
    name: str
    state: str
    cells: list[Cell]
    load: str
    """Its jobs and slots in words."""
    lease: float
    """The width of the bar; 0: nothing is left."""
    has_lease: bool
    """Whether it is known what is left."""


class Fleet(NamedTuple):
    """The drawing."""

    lines: list[Line]
    per_cell: int
    """The slots of a cell."""
    jobs: int
    slots: int
    unlimited: int
    """The number of nodes without a limit, which have no slots."""
    left_out: int
    arrows: list[Arrow]

    @property
    def all_slots(self) -> str:
        """The slots of all nodes in words."""
        if not self.unlimited:
            return words.number(self.slots)
        return f"{words.number(self.slots)} and more" if self.slots else "no limit"

    @property
    def states(self) -> list[str]:
        """Those of the drawn nodes."""
        return list(dict.fromkeys(line.state for line in self.lines))

    @property
    def height(self) -> int:
        """The height of all."""
        return TOP + ROW * len(self.lines) + (TOP + ROW * len(self.arrows) if self.arrows else 0) + 6


def by_need(node: Node) -> tuple[bool, str]:
    """Return a key that sorts nodes: those that need somebody come first."""
    return node.state == "live", node.name


def fleet(nodes: Sequence[Node], recoveries: Sequence[Recovery] = ()) -> Fleet:
    """Return the drawing of nodes and recoveries: nodes that are not live come first, and so do the newest recoveries."""
    shown = sorted(nodes, key=by_need)[:MOST_NODES]
    most = max((node.slots or node.jobs for node in shown), default=0)
    number = max(1, min(WIDEST, MOST_CELLS // max(len(shown), 1)))
    per_cell = max(1, -(-most // number))
    width = round(CELLS / number, 1)
    lines = []
    for row, node in enumerate(shown):
        slots = node.slots if node.slots is not None else node.jobs
        busy = -(-min(node.jobs, slots) // per_cell)
        cells = [Cell(round(LEFT + at * width, 1), width - 2, at < busy) for at in range(-(-slots // per_cell))]
        load = words.number(node.jobs) + ("" if node.slots is None else f" of {words.number(node.slots)}")
        part = 0.0 if not node.lease_left or not node.lease else min(node.lease_left / node.lease, 1.0)
        has_lease = node.lease_left is not None
        lines.append(Line(TOP + ROW * row, node.name, node.state, cells, load, round(part * LEASE_WIDTH, 1), has_lease))
    below = TOP + ROW * len(lines) + TOP
    arrows = [Arrow(below + ROW * row, one) for row, one in enumerate(recoveries[:MOST_ARROWS])]
    return Fleet(
        lines,
        per_cell,
        sum(node.jobs for node in nodes),
        sum(node.slots or 0 for node in nodes),
        sum(node.slots is None for node in nodes),
        len(nodes) - len(shown),
        arrows,
    )


NODE: Final = f"{ROOT}/nodes/{{node}}"
DRAIN_NODE: Final = act(
    DrainNode,
    label="Drain",
    done="The node takes no more jobs.",
)
UNDRAIN_NODE: Final = act(
    UndrainNode,
    label="Let it work again",
    done="The node takes jobs again.",
    command="nodes drain {node} --off",
)
REMOVE_NODE: Final = act(
    RemoveNode,
    label="Remove",
    done="The node was removed. Other nodes run its jobs.",
    warning="Other nodes take its jobs at once. If its process still runs, it drops them and joins again.",
)
NODE_ACTIONS: Final = (DRAIN_NODE, UNDRAIN_NODE, REMOVE_NODE)
MOST_RECOVERIES: Final = 20
MOST_NAMES: Final = 3
"""Of the nodes of one version, in a sentence."""


def shown_node(node: NodeInfo | NamespaceNode) -> Node:
    """Return what is shown of a node; those of a namespace have the numbers of that alone."""
    address, jobs, share, prefetch = None, 0, "", None
    if isinstance(node, NodeInfo):
        address, jobs, prefetch = node.address, node.jobs, node.prefetch
        share = f"{node.strategy or 'unknown'}, weight {node.weight}"
    else:
        jobs = node.running
    return Node(
        node.name,
        node.term,
        node.state,
        address,
        node.version,
        jobs,
        node.slots,
        node.lease,
        node.lease_left,
        node.started_at,
        share,
        prefetch,
    )


def recovered(nodes: Sequence[NodeInfo]) -> list[Recovery]:
    """Return the recoveries of all nodes, the newest first."""
    found = [
        Recovery(
            ended=", ".join(f"{name} term {term}" for name, term in zip(one.nodes, one.terms, strict=True)),
            jobs=one.jobs,
            at=one.at,
            by=node.name,
        )
        for node in nodes
        for one in node.recoveries
    ]
    return sorted(found, key=lambda one: dt.datetime.fromisoformat(one.at), reverse=True)[:MOST_RECOVERIES]


def different_versions(nodes: Sequence[Node | NamespaceNode]) -> str:
    """Return a sentence with the versions of the nodes and some of their names; empty if all have the same one."""
    by_version: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda node: (node.version, node.name)):
        by_version.setdefault(node.version, []).append(node.name)
    if len(by_version) < 2:
        return ""
    parts = [f"{version} ({_some(names)})" for version, names in by_version.items()]
    return f"Nodes have different versions: {', '.join(parts)}."


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


async def nodes(visit: Visit) -> Response:
    """Show all nodes: with all of their work, or with that of the namespace if the viewer may see no more."""
    everything, of_namespace = await asyncio.gather(
        visit.optional(visit.calls.get_all(Items[NodeInfo], f"{ROOT}/nodes")),
        visit.calls.get_all(Items[NamespaceNode], f"{N}/nodes"),
    )
    shown: Sequence[NodeInfo | NamespaceNode] = of_namespace.items
    recoveries: list[Recovery] = []
    is_whole = isinstance(everything, Items) and sees_all(everything.items)
    if isinstance(everything, Items) and is_whole:
        shown = everything.items
        recoveries = recovered(everything.items)
    rows = sorted(map(shown_node, shown), key=by_need)

    def actions_of(node: Node) -> list[Action]:
        if not (is_whole and visit.may(Permission.ADMIN)) or (len(rows) == 1 and node.lease_left is None):
            return []  # the node of a store for one node alone refuses to drain
        return [REMOVE_NODE if node.state == "dead" else UNDRAIN_NODE if node.state == "draining" else DRAIN_NODE]

    return visit.render(
        "nodes.html",
        nodes=rows,
        sees_all=is_whole,
        drawing=fleet(rows, recoveries),
        recoveries=recoveries,
        actions_of=actions_of,
        different_versions=different_versions(rows),
        version=version_of(shown) if isinstance(everything, Items) else "",
    )


NODE_PAGES: Final = (Page(path="/nodes", handler=nodes, menu="Nodes"),)

WORKER_ROWS: Final = WORKERS
WORKER: Final = f"{N}/workers/{{worker}}"

DRAIN_WORKER: Final = act(
    DrainWorker,
    label="Drain",
    done="The worker gets no more jobs of tasks. Its running jobs go on.",
    of_all_functions=True,
)
UNDRAIN_WORKER: Final = act(
    UndrainWorker,
    label="Let it work again",
    done="The worker gets jobs again.",
    of_all_functions=True,
    command="workers drain {worker} --off",
)
STOP_WORKER: Final = act(
    StopWorker,
    label="Stop",
    done="The worker was asked to stop once its jobs have ended.",
    of_all_functions=True,
    warning="The process ends once its jobs have ended. A supervisor or a person has to start it again.",
)
WORKER_ACTIONS: Final = (DRAIN_WORKER, UNDRAIN_WORKER, STOP_WORKER)


async def workers(visit: Visit) -> Response:
    """Show all workers, or those with a name or an id."""
    name = visit.field("name")
    query = {"cursor": visit.field("cursor"), "limit": PAGE_LIMIT if name else WORKER_ROWS}
    listed = await visit.calls.get(Items[WorkerInfo], f"{N}/workers", query=query)
    version = "" if name or visit.field("cursor") else version_of(listed.items)
    if name:
        listed.items = [one for one in listed.items if name in {one.name, one.id}]
    return visit.render("workers.html", listed=listed, name=name, rows=WORKER_ROWS, version=version)


async def found(visit: Visit, name: str) -> str:
    """Return the address of the worker with a name or an id, if there is one alone; else of all that have it."""
    listed = await visit.optional(
        visit.calls.get(Items[WorkerInfo], f"{N}/workers", query={"limit": PAGE_LIMIT}), "workers"
    )
    fitting = [] if isinstance(listed, Problem) else [one for one in listed.items if name in {one.name, one.id}]
    if len(fitting) == 1:
        return visit.url("/workers/{worker}", worker=fitting[0].id)
    return visit.url("/workers", {"name": name})


async def worker(visit: Visit) -> Response:
    """Show a worker with its functions and its jobs."""
    shown, nodes = await asyncio.gather(
        visit.calls.get(WorkerDetails, WORKER, dict(visit.parameters)),
        visit.optional(visit.calls.get_all(Items[NodeInfo], f"{ROOT}/nodes")),
    )
    listed = [] if isinstance(nodes, Problem) else nodes.items
    node = next((one for one in listed if one.term == shown.term), None)
    server = [("--server", node.address)] if node and node.address else []
    fitting = [UNDRAIN_WORKER if shown.state == "draining" else DRAIN_WORKER, *([STOP_WORKER] if shown.stops else [])]
    return visit.render(
        "worker.html",
        worker=shown,
        actions=[one for one in fitting if visit.offers(one)],
        silent=node.lease - node.lease_left if node and node.lease_left else None,
        command=command_line(["workers", "show"], [shown.id], server, visit.namespace),
        version=version_of([shown]),
    )


WORKER_PAGES: Final = (
    Page(path="/workers", handler=workers, menu="Workers"),
    Page(path="/workers/{worker}", handler=worker),
)

MOST_NAMESPACES: Final = 500
"""Namespaces on the page; the form leads to the others."""


async def namespaces(visit: Visit) -> Response:
    """Show the namespaces."""
    listed = await visit.calls.get_all(Items[str], f"{ROOT}/namespaces")
    sees_all = any(grant.namespace == EVERY_NAMESPACE for grant in visit.identity.grants)
    found = sorted({*listed.items, *([DEFAULT, visit.namespace] if sees_all else [])})
    return visit.render(
        "namespaces.html",
        namespaces=found[:MOST_NAMESPACES],
        rest=max(len(found) - MOST_NAMESPACES, 0),
        sees_all=sees_all,
    )


NAMESPACE_PAGES: Final = (Page(path="/settings/namespaces", handler=namespaces),)
