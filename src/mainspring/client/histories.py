"""Histories of runs at a node, read page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mainspring.client.blocking import Client


PAGE: Final = 1000
"""Events of one request."""


def read_events(client: Client, key: str) -> list[dict[str, Any]]:
    """Return the events of a run as files of histories have them; none if it has not begun. Raises NotFoundError."""
    events: list[dict[str, Any]] = []
    params: dict[str, Any] = {"key": key, "exact": True, "limit": PAGE}
    while True:
        page: Any = client.call("workflows.history", params)
        events += page["items"]
        if page["next"] is None:
            return events
        params["cursor"] = page["next"]
