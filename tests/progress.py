"""Whether accepted work moves: the check that the simulations and the chaos tests share.

After the last fault each accepted job and run must move within `LIMIT` seconds, or say why it waits. One that does neither is
stuck, which is as bad as lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

LIMIT: Final = 60.0
"""Seconds within which everything that was accepted has to move, of the machine or of the simulation."""


class Position(NamedTuple):
    """Where a job or a run is that has not ended."""

    at: Hashable
    """Values of which one changes when it moves: its state, attempt and events."""
    reason: str = ""
    """Why it may stay there, such as a due time in the future; empty if nothing explains it."""


def why_waiting(state: str, *, due_in: float = 0.0, able: bool = True, paused: bool = False) -> str:
    """Return why a job may wait in its state; empty if nothing explains it.

    ``due_in``: the seconds until it is due; ``able``: whether a worker has registered its function; ``paused``: whether the
    function is paused.
    """
    if state == "scheduled" and due_in > 0:
        return f"it is due in {due_in:.1f} s"
    if state == "pending" and not able:
        return "no worker has registered its function"
    if state == "pending" and paused:
        return "its function is paused"
    return ""


class Progress:
    """The last movement of each job and run that has not ended."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[Hashable, float]] = {}

    def stuck(self, positions: Mapping[str, Position], now: float) -> list[str]:
        """Return what has not moved for `LIMIT` seconds, and gives no reason; ``positions`` has all that have not ended."""
        before, self._since = self._since, {}
        found = []
        for name, position in positions.items():
            at, since = before.get(name, (position.at, now))
            if at != position.at or position.reason:
                since = now
            self._since[name] = position.at, since
            if now - since >= LIMIT:
                found.append(f"{name} has stood still at {position.at} for {now - since:.0f} s")
        return found
