"""Routes about nodes."""

from __future__ import annotations

from typing import Final

from mainspring.api import status
from mainspring.faces.rest.registry import ROOT, Route

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{ROOT}/status",
        request=status.Show,
        answer=status.NodeStatus,
        summary="Show the node that answers",
    ),
)
