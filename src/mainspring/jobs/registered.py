"""The functions that have workers: at this node now, at the other nodes as of their last heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.clock import Clock
    from mainspring.jobs.dispatch import Dispatch

STARTUP_GRACE: Final = 2.0
"""Seconds after a node's start for which the result is unknown: workers may still be starting or connecting."""
_NOWHERE: Final[frozenset[bytes]] = frozenset()


def nobody() -> frozenset[bytes]:
    """Return the functions of other nodes' workers for a node without other nodes."""
    return _NOWHERE


class Registered:
    """The functions that connected workers have registered.

    ``elsewhere`` returns those of the other nodes' workers, as of the nodes' last heartbeats, or None while they are unknown.
    A node whose store is not shared has no other nodes.
    """

    def __init__(
        self, dispatch: Dispatch, clock: Clock, elsewhere: Callable[[], frozenset[bytes] | None] = nobody
    ) -> None:
        self._dispatch = dispatch
        self._clock = clock
        self._settled = clock.monotonic() + STARTUP_GRACE
        self.elsewhere = elsewhere

    def has(self, function: bytes) -> bool | None:
        """Return whether any worker has registered a function; None if that is unknown.

        Workflows count as registered: their runs begin without a worker.
        """
        queue = self._dispatch.queues.get(function)
        if queue is not None and (queue.workers or queue.is_root):
            return True
        if self._clock.monotonic() < self._settled:
            return None
        elsewhere = self.elsewhere()
        return None if elsewhere is None else function in elsewhere

    def of_others(self) -> frozenset[bytes] | None:
        """Return the functions of the other nodes' workers; None while they are unknown."""
        return self.elsewhere()

    def names(self) -> Iterator[bytes]:
        """Return each function that workers have registered once; other nodes' functions only if they are known."""
        queues = self._dispatch.queues
        yield from (name for name, queue in queues.items() if queue.workers)
        yield from (name for name in self.elsewhere() or _NOWHERE if name not in queues or not queues[name].workers)
