"""The size of a history, as far as the code of its run has got.

The node has the exact size, but a replay could not repeat the size of an earlier moment. So the worker adds up the values in the
events itself, up to the last event that the code was given: that is the same in each replay.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, get_args

from mainspring.workflows.history import Event

if TYPE_CHECKING:
    from mainspring.workflows.history import EventBase

EVENT_BYTES: Final = 30
"""About the bytes of an event besides its value."""
_VALUES: Final[dict[type[Any], str]] = {
    kind: name for kind in get_args(Event) for name in ("details", "result", "input") if name in kind.__struct_fields__
}
"""The attribute with the value of an event."""


class HistorySize:
    """Adds up the events of a run."""

    __slots__ = ("_later", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        """The size up to the event of the last ``advance``."""
        self._later: deque[tuple[int, int]] = deque()
        """The numbers and sizes of the events after it."""

    def add(self, event: EventBase) -> None:
        """Add the next event."""
        name = _VALUES.get(event.__class__)
        size = EVENT_BYTES if name is None else EVENT_BYTES + len(getattr(event, name))
        self._later.append((event.id, size))

    def advance(self, seen: int) -> None:
        """Include the events up to one."""
        later = self._later
        while later and later[0][0] <= seen:
            self.bytes += later.popleft()[1]
