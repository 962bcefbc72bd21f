"""Routes about workflows: their types, and their runs.

A run has a key: the handle of its root job, the same with ``@`` and a number, or its workflow id.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mainspring.api import workflows
from mainspring.api.request import Code, Page
from mainspring.faces.rest.registry import (
    N,
    Route,
)


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


def _pending(details: workflows.RunDetails, _: workflows.ShowRun) -> Pending:
    return Pending(**{name: getattr(details, name) for name in Pending.__struct_fields__})


W: Final = f"{N}/workflows/{{key}}"

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/workflows",
        request=workflows.ListWorkflowRuns,
        times=("since",),
        answer=Page[workflows.RunInfo],
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
)
