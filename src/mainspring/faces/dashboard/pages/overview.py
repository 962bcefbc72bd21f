"""The first page: whether all is well, and where it is not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mainspring.access.roles import Permission
from mainspring.api.audit import MarkInfo
from mainspring.api.jobs import JobInfo
from mainspring.api.namespaces import NamespaceNode, NamespaceStatus
from mainspring.api.schedules import ScheduleInfo
from mainspring.faces.dashboard.calls import Items, N, Problem
from mainspring.faces.dashboard.pages.audit import MARK
from mainspring.faces.dashboard.registry import Page

if TYPE_CHECKING:
    from mainspring.faces.dashboard.visit import Response, Visit

NEXT_FIRES: Final = 5
NEWEST_FAILURES: Final = 5
LONG: Final = 300.0
"""Seconds after which a waiting job is old."""


def troubles(status: NamespaceStatus, nodes: list[NamespaceNode], *, workers: int) -> list[str]:
    """Return what is wrong, in sentences."""
    found = [f"The node {node.name} is {node.state}." for node in nodes if node.state != "live"]
    if status.jobs.waiting and not workers:
        found.append(f"{status.jobs.waiting:,} jobs wait, and no worker is connected.")
    elif status.oldest_waiting is not None and status.oldest_waiting.seconds > LONG:
        found.append(f"A job of {status.oldest_waiting.function} has waited for {status.oldest_waiting.seconds:.0f} s.")
    versions = {node.version for node in nodes}
    if len(versions) > 1:
        found.append(f"Nodes have different versions: {', '.join(sorted(versions))}.")
    return found


async def overview(visit: Visit) -> Response:
    """Show the state of a namespace."""
    calls = visit.calls
    status, nodes, schedules, failed, marks = await asyncio.gather(
        calls.get(NamespaceStatus, f"{N}/status"),
        calls.get(Items[NamespaceNode], f"{N}/nodes"),
        visit.optional(calls.get(Items[ScheduleInfo], f"{N}/schedules"), "schedules"),
        visit.optional(
            calls.get(Items[JobInfo], f"{N}/jobs", query={"state": "failed", "limit": NEWEST_FAILURES}), "failed"
        ),
        visit.optional(calls.get(Items[MarkInfo], f"{N}/marks", query={"limit": 3}), "marks"),
    )
    workers = sum(node.workers for node in nodes.items)
    due = [] if isinstance(schedules, Problem) else [one for one in schedules.items if one.next_at]
    return visit.render(
        "overview.html",
        status=status,
        nodes=nodes.items,
        workers=workers,
        troubles=troubles(status, nodes.items, workers=workers),
        next_fires=sorted(due, key=lambda one: one.next_at or "")[:NEXT_FIRES],
        failed=[] if isinstance(failed, Problem) else failed.items,
        marks=[] if isinstance(marks, Problem) else marks.items,
        mark=MARK if visit.may(Permission.OPERATE) and not isinstance(marks, Problem) else None,
    )


PAGES: Final = (Page(path="/", handler=overview, menu="Overview"),)
