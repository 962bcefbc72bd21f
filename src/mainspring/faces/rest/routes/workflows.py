"""Routes about workflows: their types, and their runs.

A run has a key: the handle of its root job, the same with ``@`` and a number, or its workflow id.
"""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from mainspring.api import workflows
from mainspring.api.errors import PAGE_LIMIT, Code
from mainspring.api.job_filters import Time  # noqa: TC001 - msgspec reads the annotations
from mainspring.faces.rest.registry import N, Route
from mainspring.faces.rest.replies import Items, Reply


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


class RunsQuery(msgspec.Struct, kw_only=True):
    """The filter of a list of runs: at most one of ``status`` and the four flags."""

    namespace: str
    open: bool = False
    closed: bool = False
    parked: bool = False
    stranded: bool = False
    type: str | None = None
    id: str | None = None
    status: workflows.AnyStatus | None = None
    since: Time | None = None
    """The earliest start."""
    cursor: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100


class TypesQuery(msgspec.Struct, kw_only=True):
    """The filter of a list of versions."""

    namespace: str
    type: str | None = None


class RunKey(msgspec.Struct, kw_only=True):
    """A run."""

    namespace: str
    key: str


class HistoryQuery(RunKey, kw_only=True):
    """A part of a history."""

    native: bool = False
    cursor: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100


def _list(query: RunsQuery) -> workflows.List:
    criteria = msgspec.structs.asdict(query)
    since = criteria.pop("since")
    return workflows.List(after=criteria.pop("cursor"), since=None if since is None else since.timestamp(), **criteria)


def _history(query: HistoryQuery) -> workflows.History:
    return workflows.History(
        namespace=query.namespace,
        key=query.key,
        first=1 if query.cursor is None else int(query.cursor),
        limit=query.limit,
        native=query.native,
    )


def _started(started: workflows.Started, given: workflows.Start) -> Reply:
    path = f"{N.format(namespace=given.namespace)}/workflows/{quote(started.run, safe='')}"
    return Reply(started, 200 if started.joined else 201, {"Location": path})


def _pending(details: workflows.RunDetails, _: RunKey) -> Pending:
    return Pending(**{name: getattr(details, name) for name in Pending.__struct_fields__})


W: Final = f"{N}/workflows/{{key}}"
CHANGES: Final = (Code.RUN_NOT_FOUND, Code.CONFLICT, Code.UNSUPPORTED)

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/workflow-types",
        request=workflows.Versions,
        inputs=TypesQuery,
        make=lambda query: workflows.Versions(namespace=query.namespace, type=query.type),
        answer=Items[workflows.VersionInfo],
        reply=lambda listed, _: Items(listed.versions),
        summary="List the types and versions of workflows",
        problems=(Code.WORKFLOW_NOT_FOUND, Code.UNSUPPORTED),
    ),
    Route(
        method="GET",
        path=f"{N}/workflows",
        request=workflows.List,
        inputs=RunsQuery,
        make=_list,
        answer=Items[workflows.RunInfo],
        reply=lambda listed, _: Items(listed.runs, listed.next),
        summary="List runs, newest first",
        problems=(Code.UNSUPPORTED,),
    ),
    Route(
        method="POST",
        path=f"{N}/workflows",
        request=workflows.Start,
        answer=workflows.Started,
        reply=_started,
        status=201,
        others={200: "An open run has this workflow id already."},
        summary="Start a run",
        problems=(Code.WORKFLOW_NOT_FOUND, Code.TOO_LARGE, Code.REFUSED, Code.UNSUPPORTED),
        example={"function": "order", "unique": "order-17", "input": {"amount": 100}},
    ),
    Route(
        method="GET",
        path=W,
        request=workflows.Show,
        answer=workflows.RunDetails,
        summary="Show a run",
        problems=(Code.RUN_NOT_FOUND, Code.UNSUPPORTED),
    ),
    Route(
        method="GET",
        path=f"{W}/pending",
        request=workflows.Show,
        answer=Pending,
        reply=_pending,
        summary="Show the open work of a run",
        name="workflows_pending",
        problems=(Code.RUN_NOT_FOUND, Code.UNSUPPORTED),
    ),
    Route(
        method="GET",
        path=f"{W}/history",
        request=workflows.History,
        inputs=HistoryQuery,
        make=_history,
        answer=Items[dict[str, Any]],
        reply=lambda events, _: Items(events.events, None if events.next is None else str(events.next)),
        summary="Show the events of a run, in order",
        problems=(Code.RUN_NOT_FOUND, Code.UNSUPPORTED),
    ),
    Route(
        method="POST",
        path=f"{W}/signal",
        request=workflows.Signal,
        answer=workflows.Reached,
        status=202,
        summary="Send a signal to a run",
        problems=(*CHANGES, Code.TOO_LARGE),
        example={"name": "approve", "input": {"by": "ada"}},
    ),
    Route(
        method="POST",
        path=f"{W}/cancel",
        request=workflows.Cancel,
        answer=workflows.Reached,
        status=202,
        summary="Ask a run to cancel itself",
        problems=CHANGES,
        example={"reason": "the customer called"},
    ),
    Route(
        method="POST",
        path=f"{W}/terminate",
        request=workflows.Terminate,
        answer=workflows.Reached,
        summary="End a run at once",
        problems=CHANGES,
        example={"reason": "it does not end", "children": "cancel"},
    ),
    Route(
        method="POST",
        path=f"{W}/unpark",
        request=workflows.Unpark,
        inputs=RunKey,
        make=lambda given: workflows.Unpark(namespace=given.namespace, key=given.key),
        answer=workflows.Number,
        summary="Let the code try a parked run again",
        problems=CHANGES,
    ),
)
