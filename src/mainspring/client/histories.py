"""Histories of runs at a node, read page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.client.blocking import Client


def read_events(client: Client, key: str) -> list[dict[str, Any]]:
    """Return the events of a run as files of histories have them; none if it has not begun. Raises NotFoundError."""
    events: list[dict[str, Any]] = []
    first: int | None = 1
    while first is not None:
        page: Any = client.call("workflows.history", {"key": key, "from": first, "exact": True})
        events += page["events"]
        key, first = page.get("run") or key, page["next"]  # a handle may mean the next run of the chain by now
    return events
