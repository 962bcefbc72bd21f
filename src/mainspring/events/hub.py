"""Where things that happened are told to whoever wants to watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Hub:
    """Hands events to watchers. Publishers look at ``active`` first, so that nobody pays where nobody watches."""

    def __init__(self) -> None:
        self._watchers: dict[Callable[[Any], None], None] = {}
        self.active = False

    def watch(self, watcher: Callable[[Any], None]) -> None:
        """Call a function with every event from now on."""
        self._watchers[watcher] = None
        self.active = True

    def leave(self, watcher: Callable[[Any], None]) -> None:
        """Stop calling a function."""
        self._watchers.pop(watcher, None)
        self.active = bool(self._watchers)

    def publish(self, event: Any) -> None:
        """Tell all watchers; a watcher must not raise."""
        for watcher in list(self._watchers):
            watcher(event)
