"""The pages of connected workers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mainspring.api.errors import PAGE_LIMIT
from mainspring.api.nodes import NodeInfo
from mainspring.api.versions import WORKERS, version_of
from mainspring.api.workers import WorkerDetails, WorkerInfo
from mainspring.faces.dashboard.actions import Action
from mainspring.faces.dashboard.calls import ROOT, Items, N, Problem
from mainspring.faces.dashboard.registry import Page
from mainspring.faces.dashboard.shell import command_line

if TYPE_CHECKING:
    from mainspring.faces.dashboard.visit import Response, Visit

ROWS: Final = WORKERS
WORKER: Final = f"{N}/workers/{{worker}}"

DRAIN: Final = Action(
    operation="workers_drain",
    label="Drain",
    done="The worker gets no more jobs of tasks. Its running jobs go on.",
    path=f"{WORKER}/drain",
    of_all_functions=True,
    command="workers drain {worker}",
)
UNDRAIN: Final = Action(
    operation="workers_undrain",
    label="Let it work again",
    done="The worker gets jobs again.",
    path=f"{WORKER}/undrain",
    of_all_functions=True,
    command="workers drain {worker} --off",
)
STOP: Final = Action(
    operation="workers_stop",
    label="Stop",
    done="The worker was asked to stop once its jobs have ended.",
    path=f"{WORKER}/stop",
    of_all_functions=True,
    command="workers stop {worker}",
    warning="The process ends once its jobs have ended. A supervisor or a person has to start it again.",
)
ACTIONS: Final = (DRAIN, UNDRAIN, STOP)


async def workers(visit: Visit) -> Response:
    """Show all workers, or those with a name or an id."""
    name = visit.field("name")
    query = {"cursor": visit.field("cursor"), "limit": PAGE_LIMIT if name else ROWS}
    listed = await visit.calls.get(Items[WorkerInfo], f"{N}/workers", query=query)
    version = "" if name or visit.field("cursor") else version_of(listed.items)
    if name:
        listed.items = [one for one in listed.items if name in {one.name, one.id}]
    return visit.render("workers.html", listed=listed, name=name, rows=ROWS, version=version)


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
    fitting = [UNDRAIN if shown.state == "draining" else DRAIN, *([STOP] if shown.stops else [])]
    return visit.render(
        "worker.html",
        worker=shown,
        actions=[one for one in fitting if visit.offers(one)],
        silent=node.lease - node.lease_left if node and node.lease_left else None,
        command=command_line(["workers", "show"], [shown.id], server, visit.namespace),
        version=version_of([shown]),
    )


PAGES: Final = (
    Page(path="/workers", handler=workers, menu="Workers"),
    Page(path="/workers/{worker}", handler=worker),
)
