"""Routes about workflows: their types, and their runs.

A run has a key: the handle of its root job, the same with ``@`` and a number, or its workflow id.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mainspring.api import workflows
from mainspring.api.handlers.text import size_of
from mainspring.api.request import Code
from mainspring.faces.rest.registry import (
    Context,
    Limit,
    N,
    Route,
    number,
)
from mainspring.faces.rest.replies import Items
from mainspring.sizes import PAGE, Text, Texts


class Pending(msgspec.Struct):
    """The open work of a run."""

    status: str
    waits_for: str | None
    activities: list[workflows.ActivityInfo]
    children: list[workflows.ChildInfo]
    timers: list[workflows.TimerInfo]
    steps: list[str]
    """The functions of local steps that run."""
    receives: list[str]
    """The names of the signals that the code waits to receive."""
    unread: dict[str, int]
    """The number of unread signals, by name."""
    parked: workflows.ParkingInfo | None


class HistoryQuery(msgspec.Struct, kw_only=True):
    """A part of a history."""

    namespace: Text
    key: Text
    native: bool = False
    """Whether to add the attributes that Amazon SWF does not have."""
    reverse: bool = False
    """Whether to begin with the newest event."""
    kinds: Texts = []
    """Only events of these types, such as ``ActivityTaskFailed``."""
    cursor: Text | None = None
    limit: Limit = 100


class _Histories:
    """Reads the events of one request, page by page."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._query: HistoryQuery = context.inputs
        self._reads = 0
        self._size = 0
        self._events: list[dict[str, Any]] = []

    async def answer(self) -> Items[dict[str, Any]]:
        """Return the page that the query asks for."""
        place = None if self._query.cursor is None else number(self._query.cursor)
        following = await (self._backward(place) if self._query.reverse else self._forward(place or 1))
        return Items(self._events, following)

    @property
    def _goes_on(self) -> bool:
        return len(self._events) < self._query.limit and self._reads < MOST_READS and self._size < PAGE.most

    async def _read(self, first: int, limit: int) -> tuple[list[dict[str, Any]], int | None]:
        self._reads += 1
        query = self._query
        request = workflows.ReadHistory(
            namespace=query.namespace, key=query.key, first=first, limit=limit, native=query.native
        )
        page = await self._context.api.call(request, caller=self._context.caller)
        return page.events, page.next

    def _keep(self, event: dict[str, Any]) -> None:
        if not self._query.kinds or event["eventType"] in self._query.kinds:
            self._size += size_of([event])
            self._events.append(event)

    async def _forward(self, first: int) -> str | None:
        query = self._query
        while self._goes_on:
            # Without a filter, no more is read than is wanted.
            events, following = await self._read(first, PART if query.kinds else query.limit - len(self._events))
            for event in events:
                if len(self._events) == query.limit:
                    return str(event["eventId"])
                self._keep(event)
            if following is None:
                return None
            first = following
        return str(first)

    async def _backward(self, last: int | None) -> str | None:
        query = self._query
        if last is None:
            request = workflows.ShowRun(namespace=query.namespace, key=query.key)
            last = (await self._context.api.call(request, caller=self._context.caller)).events
        most = PART
        while last > 0 and self._goes_on:
            most = min(most, PART if query.kinds else query.limit - len(self._events))
            first = max(1, last - most + 1)
            part: list[dict[str, Any]] = []
            size = 0
            at: int | None = first
            while at is not None and at <= last:  # a page of large events is shorter than its limit
                events, at = await self._read(at, last - at + 1)
                part += events
                size += size_of(events)
                if size > PAGE.most and at is not None and at <= last:
                    break
            else:
                at = None
            if at is not None:  # they are too large together: begin nearer to the end
                most = max(1, (last - first + 1) // 4)
                self._reads = 0  # at most six times, so that each page has an event
                continue
            for event in reversed(part):
                if len(self._events) == query.limit:
                    return str(event["eventId"])
                self._keep(event)
            last = first - 1
        return str(last) if last > 0 else None


async def _history(context: Context) -> Items[dict[str, Any]]:
    return await _Histories(context).answer()


def _pending(details: workflows.RunDetails, _: workflows.ShowRun) -> Pending:
    return Pending(**{name: getattr(details, name) for name in Pending.__struct_fields__})


MOST_READS: Final = 20
"""Pages of a history that one request reads, apart from the rest of a part."""
PART: Final = 500
"""Events that are read at a time for a filter."""
W: Final = f"{N}/workflows/{{key}}"

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/workflow-types",
        request=workflows.ListVersions,
        cursor="after",
        answer=Items[workflows.VersionInfo],
        items="versions",
        summary="List the types and versions of workflows",
        problems=(Code.WORKFLOW_NOT_FOUND, Code.UNSUPPORTED),
    ),
    Route(
        method="GET",
        path=f"{N}/workflows",
        request=workflows.ListWorkflowRuns,
        cursor="after",
        fixed={"partial": True},
        times=("since",),
        answer=Items[workflows.RunInfo],
        items="runs",
        summary="List runs, newest first",
        problems=(Code.UNSUPPORTED,),
    ),
    Route(
        method="GET",
        path=f"{W}/pending",
        request=workflows.ShowRun,
        answer=Pending,
        reply=_pending,
        summary="Show the open work of a run",
        name="workflows_pending",
        problems=(Code.RUN_NOT_FOUND, Code.UNSUPPORTED),
    ),
    Route(
        method="GET",
        path=f"{W}/history",
        request=workflows.ReadHistory,
        inputs=HistoryQuery,
        handler=_history,
        answer=Items[dict[str, Any]],
        summary="Show the events of a run, in order or the newest first",
        problems=(Code.RUN_NOT_FOUND, Code.UNSUPPORTED),
    ),
)
